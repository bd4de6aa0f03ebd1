//! Tags and tokens: how a message finds its receive, and a completion its step.

/// Kinds of tags, in the two highest bits.
const COLLECTIVE: u64 = 0;
const PAIRWISE: u64 = 1;
const CONTROL: u64 = crate::transport::URGENT_CLASS as u64;

const CHUNK_BITS: u32 = 12;
const MESSAGE_BITS: u32 = 14;
const SEQUENCE_BITS: u32 = 24;
const KIND_SHIFT: u32 = 62;

const _: () = assert!(CHUNK_BITS + MESSAGE_BITS + SEQUENCE_BITS <= KIND_SHIFT);
// A ring sends 2 (P - 1) messages to one peer.
const _: () = assert!(2 * crate::limits::RANKS_MAX <= 1 << MESSAGE_BITS);
const _: () = assert!(crate::limits::CHUNKS_IN_FLIGHT < 1 << CHUNK_BITS);

/// The tag of a chunk of a message of a collective. Each number wraps far outside what is in flight.
pub fn collective(sequence: u64, message: u32, chunk: u32) -> u64 {
    (COLLECTIVE << KIND_SHIFT)
        | ((sequence & mask(SEQUENCE_BITS)) << (MESSAGE_BITS + CHUNK_BITS))
        | (u64::from(message) << CHUNK_BITS)
        | (u64::from(chunk) & mask(CHUNK_BITS))
}

/// The tag of a chunk of the n-th message of a pair.
pub fn pairwise(number: u64, chunk: u32) -> u64 {
    (PAIRWISE << KIND_SHIFT)
        | ((number & mask(MESSAGE_BITS + SEQUENCE_BITS)) << CHUNK_BITS)
        | (u64::from(chunk) & mask(CHUNK_BITS))
}

/// The tag of control messages.
pub const fn control() -> u64 {
    CONTROL << KIND_SHIFT
}

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A chunk of a step of the round at this place.
    Step {
        round: u32,
        generation: u32,
        step: u32,
        chunk: u32,
    },
    /// A signal or retirement count that nobody waits for.
    Forget,
    /// The receive of control messages from this peer.
    ControlReceive(u32),
}

const ROUND_BITS: u32 = 12;
const GENERATION_BITS: u32 = 14;
const STEP_BITS: u32 = 18;
const TOKEN_CHUNK_BITS: u32 = 19;
const _: () = assert!(1 + ROUND_BITS + GENERATION_BITS + STEP_BITS + TOKEN_CHUNK_BITS == 64);
const _: () = assert!(crate::limits::STEPS_MAX <= 1 << STEP_BITS);

/// Rounds that can be under way at once.
pub const ROUNDS_MAX: usize = 1 << ROUND_BITS;

impl Token {
    /// As a number for the transport.
    pub fn emit(self) -> u64 {
        match self {
            Token::Step {
                round,
                generation,
                step,
                chunk,
            } => {
                let mut bits = u64::from(round) & mask(ROUND_BITS);
                bits = (bits << GENERATION_BITS) | (u64::from(generation) & mask(GENERATION_BITS));
                bits = (bits << STEP_BITS) | (u64::from(step) & mask(STEP_BITS));
                (bits << TOKEN_CHUNK_BITS) | (u64::from(chunk) & mask(TOKEN_CHUNK_BITS))
            }
            Token::Forget => 1 << 63,
            Token::ControlReceive(peer) => (1 << 63) | (u64::from(peer) + 1),
        }
    }

    /// Back from a number.
    pub fn parse(mut bits: u64) -> Token {
        if bits >> 63 == 1 {
            return match bits as u32 {
                0 => Token::Forget,
                peer => Token::ControlReceive(peer - 1),
            };
        }
        let mut take = |width: u32| {
            let value = bits & mask(width);
            bits >>= width;
            value as u32
        };
        let chunk = take(TOKEN_CHUNK_BITS);
        let step = take(STEP_BITS);
        let generation = take(GENERATION_BITS);
        Token::Step {
            round: take(ROUND_BITS),
            generation,
            step,
            chunk,
        }
    }

    /// Whether a token's generation is this one.
    pub fn is_generation(token: u32, generation: u32) -> bool {
        u64::from(token) == u64::from(generation) & mask(GENERATION_BITS)
    }

    /// The chunk number at or after `done` that a token's chunk stands for.
    pub fn full_chunk(token: u32, done: u32) -> u32 {
        done + ((token.wrapping_sub(done)) & mask(TOKEN_CHUNK_BITS) as u32)
    }
}

const fn mask(width: u32) -> u64 {
    (1 << width) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_went() {
        for token in [
            Token::Forget,
            Token::ControlReceive(0),
            Token::ControlReceive(4095),
            Token::Step {
                round: 4095,
                generation: 1,
                step: (1 << 18) - 1,
                chunk: (1 << 19) - 1,
            },
            Token::Step {
                round: 0,
                generation: 0,
                step: 0,
                chunk: 0,
            },
        ] {
            assert_eq!(Token::parse(token.emit()), token);
        }
        let wrapped = Token::full_chunk(1, (1 << 19) - 1);
        assert_eq!(wrapped, (1 << 19) + 1);
    }

    #[test]
    fn tags_of_different_messages_differ() {
        let tags = [
            collective(0, 0, 0),
            collective(1, 0, 0),
            collective(0, 1, 0),
            collective(0, 0, 1),
            pairwise(0, 0),
            pairwise(1, 0),
            pairwise(0, 1),
            control(),
        ];
        for (i, a) in tags.iter().enumerate() {
            assert!(tags[..i].iter().all(|b| a != b));
        }
    }
}
