//! The messages by which two ranks join their queues over the control transport: at the start, and
//! after a fault. Urgent messages to a peer without queues go this way, too: news of a failure
//! concerns all ranks, and few of them are connected in a large job.
//!
//! A *generation* is the life of one set of queues. The side that begins one has destroyed its
//! queues of the last one, so that nothing can come on them any more. Its proposal says how much of
//! the ring had come until then.

use super::device::{OFFER_BYTES, Offer};
use super::record::RAILS_MAX;
use crate::limits::CONTROL_BYTES;
use crate::transport::TAG_CLASSES;
use crate::transport::credits::Counts;

/// Bytes of the longest greeting: a proposal for all rails.
pub const GREETING_BYTES_MAX: usize = 52 + RAILS_MAX * RAIL_BYTES;
const RAIL_BYTES: usize = 12 + OFFER_BYTES;
const _: () = assert!(20 + CONTROL_BYTES <= GREETING_BYTES_MAX);
/// Changes with the meaning of anything that two ranks exchange.
const VERSION: u8 = 6;

/// One half of a queue, and how the peer reaches the ring over its rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailOffer {
    /// The remote key of the ring.
    pub ring_key: u64,
    pub half: Offer,
}

/// What has come to one side in all generations so far. Nothing else of them ever will.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Had {
    /// Positions of the peer's sends.
    pub received: u64,
    /// How many of the last of these are not told as consumed yet: those from the first put on that
    /// named no region, of which the peer has yet to hear.
    pub untold: u32,
    pub matched: Counts,
}

/// What one side brings into a generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    pub generation: u32,
    pub had: Had,
    /// The ring that the peer writes into.
    pub ring_address: u64,
    pub slots: u32,
    /// The number by which this side knows the other one.
    pub number: u32,
    /// By rail; none where this side cannot use it (now).
    pub rails: Vec<Option<RailOffer>>,
}

/// What a side that leaves says of the positions of both rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goodbye {
    /// It has had this many, even if the other side's device has confirmed fewer.
    pub received: u64,
    /// Its device has confirmed this many, even if the other side has not been told of all; 0: it
    /// does not wait for what it has sent.
    pub sent: u64,
}

/// A message between two ranks about their queues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Greeting {
    Propose(Proposal),
    /// The queues of this generation can receive.
    Ready(u32),
    /// This side leaves.
    Leaving(Goodbye),
    /// A message with this tag and header, of at most [`CONTROL_BYTES`].
    Message(u64, u64, Vec<u8>),
}

impl Greeting {
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(GREETING_BYTES_MAX);
        match self {
            Greeting::Propose(p) => {
                out.extend([VERSION, 1, p.rails.len() as u8, 0]);
                out.extend(p.generation.to_le_bytes());
                out.extend(p.had.received.to_le_bytes());
                out.extend(p.had.untold.to_le_bytes());
                p.had
                    .matched
                    .iter()
                    .for_each(|m| out.extend(m.to_le_bytes()));
                out.extend(p.ring_address.to_le_bytes());
                out.extend(p.slots.to_le_bytes());
                out.extend(p.number.to_le_bytes());
                for rail in &p.rails {
                    emit_rail(rail.as_ref(), &mut out);
                }
            }
            Greeting::Ready(generation) => {
                out.extend([VERSION, 2, 0, 0]);
                out.extend(generation.to_le_bytes());
            }
            Greeting::Leaving(goodbye) => {
                out.extend([VERSION, 3, 0, 0]);
                out.extend(goodbye.received.to_le_bytes());
                out.extend(goodbye.sent.to_le_bytes());
            }
            Greeting::Message(tag, header, bytes) => {
                out.extend([VERSION, 4, 0, 0]);
                out.extend(tag.to_le_bytes());
                out.extend(header.to_le_bytes());
                out.extend(bytes);
            }
        }
        out
    }

    pub fn parse(bytes: &[u8]) -> Result<Greeting, String> {
        let mut rest = Reader(bytes);
        let [version, kind, rails, _] = rest.take()?;
        if version != VERSION {
            return Err(format!(
                "it speaks version {version} of the protocol between RDMA devices and this rank {VERSION}: run the same release on all ranks"
            ));
        }
        match kind {
            1 if rails as usize <= RAILS_MAX => Ok(Greeting::Propose(Proposal {
                generation: rest.number()?,
                had: Had {
                    received: rest.long()?,
                    untold: rest.number()?,
                    matched: {
                        let mut matched = [0; TAG_CLASSES];
                        for count in &mut matched {
                            *count = u16::from_le_bytes(rest.take()?);
                        }
                        matched
                    },
                },
                ring_address: rest.long()?,
                slots: rest.number()?,
                number: rest.number()?,
                rails: (0..rails)
                    .map(|_| parse_rail(&mut rest))
                    .collect::<Result<_, _>>()?,
            })),
            2 => Ok(Greeting::Ready(rest.number()?)),
            3 => Ok(Greeting::Leaving(Goodbye {
                received: rest.long()?,
                sent: rest.long()?,
            })),
            4 => {
                let (tag, header) = (rest.long()?, rest.long()?);
                Ok(Greeting::Message(tag, header, rest.0.to_vec()))
            }
            kind => Err(format!("a greeting of kind {kind} with {rails} rails")),
        }
    }
}

fn emit_rail(rail: Option<&RailOffer>, out: &mut Vec<u8>) {
    let Some(rail) = rail else {
        return out.extend([0; RAIL_BYTES]);
    };
    out.extend([1, 0, 0, 0]);
    out.extend(rail.ring_key.to_le_bytes());
    out.extend(rail.half);
}

fn parse_rail(rest: &mut Reader<'_>) -> Result<Option<RailOffer>, String> {
    let [is_there, ..]: [u8; 4] = rest.take()?;
    let (ring_key, half) = (rest.long()?, rest.take()?);
    Ok((is_there == 1).then_some(RailOffer { ring_key, half }))
}

/// What is left of a greeting.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (first, rest) = self
            .0
            .split_first_chunk()
            .ok_or_else(|| String::from("a greeting that ends too early"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u32, String> {
        self.take().map(u32::from_le_bytes)
    }

    fn long(&mut self) -> Result<u64, String> {
        self.take().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal() -> Proposal {
        let rail = RailOffer {
            ring_key: u64::MAX,
            half: [7; OFFER_BYTES],
        };
        Proposal {
            generation: 3,
            had: Had {
                received: 1 << 40,
                untold: 5,
                matched: [1, 2, 3, u16::MAX],
            },
            ring_address: 0x7f00_0000_1000,
            slots: 64,
            number: 4095,
            rails: vec![Some(rail), None],
        }
    }

    #[test]
    fn greetings_come_back() {
        let longest = Proposal {
            rails: vec![proposal().rails[0]; RAILS_MAX],
            ..proposal()
        };
        for greeting in [
            Greeting::Propose(proposal()),
            Greeting::Propose(longest),
            Greeting::Ready(5),
            Greeting::Leaving(Goodbye {
                received: u64::MAX,
                sent: 7,
            }),
            Greeting::Message(2 << 62, 0, Vec::new()),
            Greeting::Message(u64::MAX, 7, vec![9; CONTROL_BYTES]),
        ] {
            let bytes = greeting.emit();
            assert!(bytes.len() <= GREETING_BYTES_MAX);
            assert_eq!(Greeting::parse(&bytes), Ok(greeting));
        }
    }

    #[test]
    fn no_beginning_of_a_greeting_is_one() {
        let bytes = Greeting::Propose(proposal()).emit();
        for end in 0..bytes.len() {
            assert!(Greeting::parse(&bytes[..end]).is_err(), "{end}");
        }
        let mut other = bytes.clone();
        other[0] = 9;
        let text = Greeting::parse(&other).unwrap_err();
        assert!(text.contains("version 9"), "{text}");
        other = bytes;
        other[2] = RAILS_MAX as u8 + 1;
        assert!(Greeting::parse(&other).is_err());
    }
}
