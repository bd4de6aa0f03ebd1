//! [`Posted`]: what a key of the caller's exchange holds, as bytes. They are text, so that a person
//! who looks into a store can read it.

use super::publish::{emit_addresses, parse_addresses};
use crate::config::check_secret;
use crate::wire::cut_text;
use std::net::SocketAddr;

/// The first word of every value: whose it is, and which form it has.
const MARK: &str = "linerate-1";
/// Longest reason of a failure.
const REASON_BYTES_MAX: usize = 4096;
/// No value is longer: a secret has at most 4096 characters, a reason too, and eight addresses have
/// less than 500.
const VALUE_BYTES_MAX: usize = 8192;

/// The value of a key.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) enum Posted {
    Here(Here),
    /// The ranks cannot meet, and why.
    Failed(String),
    /// The ranks have met.
    Over,
}

/// Where rank 0 is, and what the others need to be let in.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Debug))]
pub(super) struct Here {
    /// How many ranks it expects.
    pub ranks: u32,
    /// A hash of their ranks in the communicator that the new one is made from, else 0.
    pub group: u64,
    /// Tells this meeting from all others: part of what both sides prove.
    pub nonce: u64,
    /// The secret that rank 0 has made, where the settings have none.
    pub secret: Option<String>,
    pub addresses: Vec<SocketAddr>,
}

impl Posted {
    pub fn emit(&self) -> Vec<u8> {
        let text = match self {
            Posted::Here(here) => format!(
                "{MARK} here {} {:016x} {:016x} {} {}",
                here.ranks,
                here.group,
                here.nonce,
                here.secret.as_deref().unwrap_or("-"),
                emit_addresses(&here.addresses)
            ),
            Posted::Failed(why) => format!("{MARK} failed {}", cut_text(why, REASON_BYTES_MAX)),
            Posted::Over => format!("{MARK} over"),
        };
        text.into_bytes()
    }

    /// `None`: nothing that a rank of this version has put there.
    pub fn parse(value: &[u8]) -> Option<Posted> {
        let value = Some(value).filter(|value| value.len() <= VALUE_BYTES_MAX)?;
        let text = std::str::from_utf8(value).ok()?;
        let (kind, rest) = match text.strip_prefix(MARK)?.strip_prefix(' ')? {
            "over" => return Some(Posted::Over),
            rest => rest.split_once(' ')?,
        };
        match kind {
            "here" => Here::parse(rest).map(Posted::Here),
            "failed" => Some(Posted::Failed(rest.into())),
            _ => None,
        }
    }
}

impl Here {
    fn parse(text: &str) -> Option<Here> {
        let words: Vec<&str> = text.split(' ').collect();
        let &[ranks, group, nonce, secret, addresses] = words.as_slice() else {
            return None;
        };
        let number = |text| u64::from_str_radix(text, 16).ok();
        let secret = (secret != "-").then_some(secret);
        let is_good = |secret: &str| check_secret("a value", secret.as_bytes()).is_ok();
        Some(Here {
            ranks: ranks.parse().ok()?,
            group: number(group)?,
            nonce: number(nonce)?,
            secret: match secret {
                Some(secret) => Some(secret.to_string())
                    .filter(|secret| is_good(secret))?
                    .into(),
                None => None,
            },
            addresses: parse_addresses(addresses).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(secret: Option<&str>) -> Here {
        Here {
            ranks: crate::limits::RANKS_MAX,
            group: 7,
            nonce: u64::MAX,
            secret: secret.map(String::from),
            addresses: vec!["10.0.0.1:4".parse().unwrap(), "[::1]:5".parse().unwrap()],
        }
    }

    #[test]
    fn a_value_survives_and_anything_else_is_refused() {
        let values = [
            Posted::Here(here(None)),
            Posted::Here(here(Some("0123456789abcdef"))),
            Posted::Failed("rank 3: no memory is left".into()),
            Posted::Over,
        ];
        for value in &values {
            assert_eq!(Posted::parse(&value.emit()).as_ref(), Some(value));
        }
        for bad in [
            &b""[..],
            b"linerate-1",
            b"linerate-1 ",
            b"linerate-2 over",
            b"linerate-1 over ",
            b"linerate-1 there 1 0 0 - 1.2.3.4:5",
            b"linerate-1 here 1 0 0 - 1.2.3.4",
            b"linerate-1 here 1 0 0 short 1.2.3.4:5",
            b"linerate-1 here 1 0 0 -",
            b"linerate-1 here -1 0 0 - 1.2.3.4:5",
            b"linerate-1 here 1 x 0 - 1.2.3.4:5",
            b"linerate-1 here 1 0 0 - 1.2.3.4:5 more",
            b"linerate-1 failed \xff",
        ] {
            assert_eq!(Posted::parse(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        let long = Posted::Failed("x".repeat(10 * REASON_BYTES_MAX)).emit();
        assert!(long.len() < VALUE_BYTES_MAX && Posted::parse(&long).is_some());
        let longer = [&long[..], &[b'x'; VALUE_BYTES_MAX]].concat();
        assert_eq!(Posted::parse(&longer), None);
    }

    #[test]
    fn any_bytes_are_parsed_or_refused() {
        let mut prng = crate::prng::Prng::new(5);
        for turn in 0..20_000 {
            let mut value = match turn % 3 {
                0 => Posted::Over.emit(),
                1 => Posted::Failed("a reason".into()).emit(),
                _ => Posted::Here(here(Some("0123456789abcdef"))).emit(),
            };
            for _ in 0..1 + prng.below(3) {
                let at = prng.below(value.len() as u64) as usize;
                value[at] = prng.next_u64() as u8;
            }
            value.truncate(prng.below(2 * value.len() as u64) as usize);
            let _ = Posted::parse(&value);
        }
    }
}
