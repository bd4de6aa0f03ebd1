//! Tags and tokens: how a message finds its receive, and a completion its step.

/// Kinds of tags, in the two highest bits.
use crate::transport::UNAWAITED;
const COLLECTIVE: u64 = 0;
const PAIRWISE: u64 = 1;
const CONTROL: u64 = crate::transport::URGENT_CLASS as u64;
const NOTICE: u64 = 3;
/// Messages with tags of the user. They have the kind of notices and one more bit, because of which
/// the transport tells their arrival.
const TAGGED: u64 = 0b111 << 61;
const USER_TAG_SHIFT: u32 = 29;
const TAGGED_NUMBER_BITS: u32 = USER_TAG_SHIFT - CHUNK_BITS;

const CHUNK_BITS: u32 = 12;
const MESSAGE_BITS: u32 = 15;
const SEQUENCE_BITS: u32 = 24;
const KIND_SHIFT: u32 = 62;

const _: () = assert!(crate::transport::tells_arrival(TAGGED));
// Numbers wrap, so those that are under way at once must be fewer than half of all numbers.
const _: () = assert!(crate::limits::TAGGED_UNMATCHED < 1 << (TAGGED_NUMBER_BITS - 1));
const _: () = assert!(CHUNK_BITS + MESSAGE_BITS + SEQUENCE_BITS <= KIND_SHIFT);
// A ring sends 2 (P - 1) messages to one peer.
const _: () = assert!(2 * crate::limits::RANKS_MAX <= 1 << MESSAGE_BITS);
const _: () = assert!(crate::limits::CHUNKS_IN_FLIGHT_GRANTED < 1 << CHUNK_BITS);

/// The tag of a chunk of a message of a collective. Each number wraps, but far beyond what can be
/// under way at once.
#[inline]
pub fn collective(sequence: u64, message: u32, chunk: u32) -> u64 {
    let first = (COLLECTIVE << KIND_SHIFT)
        | ((sequence & mask(SEQUENCE_BITS)) << (MESSAGE_BITS + CHUNK_BITS));
    of_message(first, message, chunk)
}

/// As [`collective`], given the tag of the first chunk of the collective's first message.
#[inline]
pub fn of_message(first: u64, message: u32, chunk: u32) -> u64 {
    first | (u64::from(message) << CHUNK_BITS) | (u64::from(chunk) & mask(CHUNK_BITS))
}

/// The operation that a tag of a collective belongs to: of those that it may stand for, the nearest
/// to `near`. `None`: it is the tag of something else.
pub fn sequence_of(tag: u64, near: u64) -> Option<u64> {
    if tag >> KIND_SHIFT != COLLECTIVE {
        return None;
    }
    let ahead = (tag >> (MESSAGE_BITS + CHUNK_BITS)).wrapping_sub(near) & mask(SEQUENCE_BITS);
    match ahead >> (SEQUENCE_BITS - 1) {
        0 => near.checked_add(ahead),
        _ => near.checked_sub((1 << SEQUENCE_BITS) - ahead),
    }
}

/// The tag of a chunk of the n-th message of a pair.
pub fn pairwise(number: u64, chunk: u32) -> u64 {
    (PAIRWISE << KIND_SHIFT)
        | ((number & mask(MESSAGE_BITS + SEQUENCE_BITS)) << CHUNK_BITS)
        | (u64::from(chunk) & mask(CHUNK_BITS))
}

/// The tag of the first chunk of a pair's n-th message with a tag of the user. [`of_message`] gives
/// the tags of its other chunks.
pub fn tagged(user_tag: u32, number: u64) -> u64 {
    let number = number & mask(TAGGED_NUMBER_BITS);
    TAGGED | u64::from(user_tag) << USER_TAG_SHIFT | number << CHUNK_BITS
}

/// The tag that the user has given a message, from the tag of the message's first chunk.
pub fn user_tag(first: u64) -> u32 {
    (first >> USER_TAG_SHIFT) as u32
}

/// How many messages after the one with this number the message with this first chunk comes. If it
/// comes before that one, the result is very large.
pub fn tagged_distance(first: u64, number: u64) -> u64 {
    (first >> CHUNK_BITS).wrapping_sub(number) & mask(TAGGED_NUMBER_BITS)
}

/// Returns this tag if it is that of the first chunk of a message with a tag of the user.
pub fn tagged_first(tag: u64) -> Option<u64> {
    (tag >> 61 == TAGGED >> 61 && tag & mask(CHUNK_BITS) == 0).then_some(tag)
}

/// The tag of control messages.
pub const fn control() -> u64 {
    CONTROL << KIND_SHIFT
}

/// The tag of notices.
pub const fn notice() -> u64 {
    NOTICE << KIND_SHIFT
}

/// What a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// A chunk of a step of the round at this place.
    Step { round: u32, step: u32, chunk: u32 },
    /// A post whose end nobody waits for: of a signal, a retirement count, a control message or a
    /// notice.
    Forget,
    /// The receive of control messages from this peer.
    ControlReceive(u32),
    /// The receive of notices from this peer.
    NoticeReceive(u32),
    /// An operation on memory of a peer: its place, and its generation.
    Remote(u32, u32),
}

const ROUND_BITS: u32 = 12;
const GENERATION_BITS: u32 = 14;
const STEP_BITS: u32 = 18;
const TOKEN_CHUNK_BITS: u32 = 19;
const _: () = assert!(1 + ROUND_BITS + GENERATION_BITS + STEP_BITS + TOKEN_CHUNK_BITS == 64);
const _: () = assert!(crate::limits::STEPS_MAX <= 1 << STEP_BITS);

/// The bit of tokens of operations on memory of peers.
const REMOTE_SHIFT: u32 = 61;
const REMOTE_GENERATION_BITS: u32 = REMOTE_SHIFT - 32;

/// Rounds that can be under way at once.
pub const ROUNDS_MAX: usize = 1 << ROUND_BITS;

/// What the tokens of all steps of a round begin with: its place and its generation, which tells it
/// from other rounds that have used this place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundToken(u64);

impl RoundToken {
    /// The token of the round at this place.
    pub fn new(place: u32, generation: u32) -> RoundToken {
        let place = u64::from(place) & mask(ROUND_BITS);
        let bits = (place << GENERATION_BITS) | (u64::from(generation) & mask(GENERATION_BITS));
        RoundToken(bits << (STEP_BITS + TOKEN_CHUNK_BITS))
    }

    /// The token of a chunk of a step.
    #[inline]
    pub fn chunk(self, step: u32, chunk: u32) -> u64 {
        debug_assert!(u64::from(step) <= mask(STEP_BITS));
        self.0 | (u64::from(step) << TOKEN_CHUNK_BITS) | (u64::from(chunk) & mask(TOKEN_CHUNK_BITS))
    }

    /// Whether a token is one of this round's.
    #[inline]
    pub fn is_of(self, token: u64) -> bool {
        (self.0 ^ token) >> (STEP_BITS + TOKEN_CHUNK_BITS) == 0
    }
}

impl Token {
    /// [`Token::Forget`] as a number for the transport.
    pub const FORGET: u64 = UNAWAITED;

    /// The greatest generation of an operation on memory of a peer.
    pub const REMOTE_GENERATION_MAX: u32 = mask(REMOTE_GENERATION_BITS) as u32;

    /// The token of an operation on memory of a peer.
    pub fn remote(place: u32, generation: u32) -> u64 {
        let generation = u64::from(generation) & mask(REMOTE_GENERATION_BITS);
        (1 << 63) | (1 << REMOTE_SHIFT) | generation << 32 | u64::from(place)
    }

    /// The token of the receive of control messages from a peer.
    pub fn control_receive(peer: u32) -> u64 {
        (1 << 63) | (u64::from(peer) + 1)
    }

    /// The token of the receive of notices from a peer.
    pub fn notice_receive(peer: u32) -> u64 {
        (1 << 63) | (1 << 62) | (u64::from(peer) + 1)
    }

    /// The token that a number stands for.
    #[inline]
    pub fn parse(mut bits: u64) -> Token {
        if bits >> 63 == 1 {
            if bits >> REMOTE_SHIFT & 1 == 1 {
                let generation = (bits >> 32 & mask(REMOTE_GENERATION_BITS)) as u32;
                return Token::Remote(bits as u32, generation);
            }
            return match (bits as u32, bits >> 62 & 1) {
                (0, _) => Token::Forget,
                (peer, 0) => Token::ControlReceive(peer - 1),
                (peer, _) => Token::NoticeReceive(peer - 1),
            };
        }
        let mut take = |width: u32| {
            let value = bits & mask(width);
            bits >>= width;
            value as u32
        };
        let chunk = take(TOKEN_CHUNK_BITS);
        let step = take(STEP_BITS);
        take(GENERATION_BITS);
        let round = take(ROUND_BITS);
        Token::Step { round, step, chunk }
    }

    /// The first chunk number from `done` on that a token's chunk may stand for.
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
        assert_eq!(Token::parse(Token::FORGET), Token::Forget);
        for peer in [0, crate::limits::RANKS_MAX - 1] {
            let token = Token::control_receive(peer);
            assert_eq!(Token::parse(token), Token::ControlReceive(peer));
            let token = Token::notice_receive(peer);
            assert_eq!(Token::parse(token), Token::NoticeReceive(peer));
        }
        for (place, generation) in [(0, 0), (u32::MAX, Token::REMOTE_GENERATION_MAX), (7, 1)] {
            let token = Token::remote(place, generation);
            assert_eq!(Token::parse(token), Token::Remote(place, generation));
        }
        for (round, generation, step, chunk) in [
            (4095, 1, (1 << 18) - 1, (1 << 19) - 1),
            (0, 0, 0, 0),
            (7, 3, 2, 1),
        ] {
            let of_round = RoundToken::new(round, generation);
            let token = of_round.chunk(step, chunk);
            assert_eq!(Token::parse(token), Token::Step { round, step, chunk });
            assert!(of_round.is_of(token));
            assert!(!RoundToken::new(round, generation + 1).is_of(token));
            assert!(!RoundToken::new(round ^ 1, generation).is_of(token));
        }
        let wrapped = Token::full_chunk(1, (1 << 19) - 1);
        assert_eq!(wrapped, (1 << 19) + 1);
    }

    #[test]
    fn the_operation_of_a_tag_is_the_nearest_one() {
        let far = 5 << SEQUENCE_BITS;
        for (sequence, near) in [
            (0, 0),
            (3, 9),
            (9, 3),
            (far - 2, far + 1),
            (far + 1, far - 2),
        ] {
            let tag = collective(sequence, 7, 1);
            assert_eq!(sequence_of(tag, near), Some(sequence));
        }
        assert_eq!(sequence_of(collective(mask(SEQUENCE_BITS), 0, 0), 2), None);
        assert_eq!(sequence_of(pairwise(1, 0), 1), None);
        assert_eq!(sequence_of(control(), 1), None);
    }

    #[test]
    fn a_message_has_the_users_tag_and_the_number_of_its_pair() {
        for user in [0, 7, u32::MAX] {
            let far = 5 << TAGGED_NUMBER_BITS;
            for (number, next, distance) in [(0, 0, 0), (9, 7, 2), (far + 1, far - 1, 2)] {
                let first = tagged(user, number);
                assert_eq!(user_tag(first), user);
                assert_eq!(tagged_distance(first, next), distance);
                assert_eq!(tagged_first(first), Some(first));
                assert_eq!(tagged_first(of_message(first, 0, 3)), None);
            }
            assert!(tagged_distance(tagged(user, 6), 7) > 1000, "it is before");
        }
        assert_eq!(tagged_first(notice()), None);
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
            notice(),
            tagged(0, 0),
            tagged(1, 0),
            tagged(0, 1),
            of_message(tagged(0, 0), 0, 1),
        ];
        for (i, a) in tags.iter().enumerate() {
            assert!(tags[..i].iter().all(|b| a != b));
        }
    }
}
