//! [`Half`]: one end of a queue, as the other side is told of it: the name of its endpoint, and
//! what both sides must have in common.

use crate::transport::rdma::{OFFER_BYTES, Offer};
use linerate_fabric_sys::Version;
use sha2::{Digest, Sha256};

/// Bytes before the name.
const HEAD_BYTES: usize = 8;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Half {
    /// Of libfabric: what its software providers write to each other has no version of its own.
    pub version: Version,
    /// Of what else must be alike.
    pub fabric: u32,
    /// The endpoint's.
    pub name: Vec<u8>,
}

/// A number for texts that must be alike on both sides.
pub fn digest(texts: &[&str]) -> u32 {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let sum = hash.finalize();
    u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]])
}

impl Half {
    /// As bytes; none where the name is too long.
    pub fn emit(&self) -> Option<Offer> {
        let mut out = [0; OFFER_BYTES];
        let place = out[HEAD_BYTES..].get_mut(..self.name.len())?;
        place.copy_from_slice(&self.name);
        out[0] = u8::try_from(self.name.len()).ok()?;
        out[1] = u8::try_from(self.version.major).ok()?;
        out[2..4].copy_from_slice(&self.version.minor.to_le_bytes());
        out[4..HEAD_BYTES].copy_from_slice(&self.fabric.to_le_bytes());
        Some(out)
    }

    /// The error says what breaks the rules.
    pub fn parse(offer: &Offer) -> Result<Half, String> {
        let (head, rest) = offer.split_at(HEAD_BYTES);
        let bytes = usize::from(head[0]);
        let name = rest.get(..bytes).filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| format!("it offers an endpoint's name of {bytes} bytes"))?;
        Ok(Half {
            version: Version {
                major: u16::from(head[1]),
                minor: u16::from_le_bytes([head[2], head[3]]),
            },
            fabric: u32::from_le_bytes([head[4], head[5], head[6], head[7]]),
            name: name.to_vec(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest name that fits.
    const NAME_BYTES_MAX: usize = OFFER_BYTES - HEAD_BYTES;

    fn half(bytes: usize) -> Half {
        Half {
            version: Version {
                major: 2,
                minor: 300,
            },
            fabric: digest(&["tcp", "x"]),
            name: vec![7; bytes],
        }
    }

    #[test]
    fn halves_of_queues_come_back() {
        for bytes in [1, 16, NAME_BYTES_MAX] {
            let offer = half(bytes).emit().unwrap();
            assert_eq!(Half::parse(&offer), Ok(half(bytes)));
        }
        assert_eq!(half(NAME_BYTES_MAX + 1).emit(), None);
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let mut offer = half(4).emit().unwrap();
        for bytes in [0, NAME_BYTES_MAX as u8 + 1, u8::MAX] {
            offer[0] = bytes;
            let text = Half::parse(&offer).unwrap_err();
            assert!(text.contains(&format!("{bytes} bytes")), "{text}");
        }
    }

    #[test]
    fn texts_are_told_apart_wherever_one_ends() {
        assert_ne!(digest(&["a", "bc"]), digest(&["ab", "c"]));
        assert_eq!(digest(&["a", "bc"]), digest(&["a", "bc"]));
    }
}
