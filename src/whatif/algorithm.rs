//! [`Algorithm`]: how the gradients of a flush are reduced, and its name for people and commands.

use crate::collective::algorithms;
use crate::error::{Error, Result};
use crate::types::Collective;
use std::fmt;
use std::str::FromStr;

/// Bytes of a partition of ByteScheduler, unless another number is given.
const PARTITION_BYTES: u64 = 4 << 20;
/// Bytes of a partition, at least: less would not be worth a message.
const PARTITION_BYTES_MIN: u64 = 4 << 10;
/// Servers of a parameter server, at most.
const SERVERS_MAX: u32 = 1 << 20;

/// How the gradients of a flush are reduced. Its text is what `linerate whatif --algo` takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Algorithm {
    /// `ring`: the ring of the published model. Each link carries `2 S (N - 1) / N` bytes of a
    /// flush of `S`.
    #[default]
    Ring,
    /// `auto`: for each flush the schedule of linerate that is cheapest by the prices of messages
    /// and bytes; or the one of this name, such as `tree` or `hierarchical`.
    Linerate(Option<String>),
    /// `oktopk:DENSITY`: sparse allreduce of this share of all gradients, `k` of them. A link
    /// carries `6 k (N - 1) / N` words of four bytes at most, which is what is taken.
    OkTopk {
        /// Above 0, at most 1.
        density: f64,
    },
    /// `partial:SHARE`: a ring that begins when this share of the GPUs has come, and takes what the
    /// others have by then. Where [`WhatIf::spread`](super::WhatIf) is 0 that is as a ring.
    Partial {
        /// Above 0, at most 1; rounded up to whole GPUs.
        share: f64,
    },
    /// `ps:SERVERS`: members push to servers, which add, and pull. Each server has one part of
    /// every flush, and a link of its own as fast as that of a member.
    ParameterServer {
        /// From 1.
        servers: u32,
    },
    /// `switchml`: the switch adds while bytes pass it, so that each link carries a flush once in
    /// each direction, and nobody else adds.
    SwitchMl,
    /// `bytescheduler` or `bytescheduler:BYTES`: rings of parts of single gradients, of this many
    /// bytes at most. Those of the layers that the next forward pass needs first go first, and the
    /// forward pass of a layer begins when its gradients are reduced.
    ByteScheduler {
        /// From 4096.
        partition_bytes: u64,
    },
}

impl Algorithm {
    /// Refuses numbers that are out of range, and schedules that do not exist.
    pub(super) fn check(&self) -> Result<()> {
        let part = |what: &str, value: f64| match value > 0.0 && value <= 1.0 {
            true => Ok(()),
            false => Err(Error::invalid(format!(
                "{what} is {value}; allowed: more than 0, at most 1"
            ))),
        };
        match self {
            Algorithm::Ring | Algorithm::SwitchMl | Algorithm::Linerate(None) => Ok(()),
            Algorithm::Linerate(Some(name)) => {
                let names = schedules();
                match names.contains(&name.as_str()) {
                    true => Ok(()),
                    false => Err(unknown(name)),
                }
            }
            Algorithm::OkTopk { density } => part("the density", *density),
            Algorithm::Partial { share } => part("the quorum's share of all GPUs", *share),
            Algorithm::ParameterServer { servers } => match (1..=SERVERS_MAX).contains(servers) {
                true => Ok(()),
                false => Err(Error::invalid(format!(
                    "the number of servers is {servers}; allowed: 1 to {SERVERS_MAX}"
                ))),
            },
            Algorithm::ByteScheduler { partition_bytes } => {
                match *partition_bytes >= PARTITION_BYTES_MIN {
                    true => Ok(()),
                    false => Err(Error::invalid(format!(
                        "partitions of {partition_bytes} bytes; allowed: {PARTITION_BYTES_MIN} or more"
                    ))),
                }
            }
        }
    }
}

/// Schedules of an allreduce over a network.
fn schedules() -> Vec<&'static str> {
    let all = algorithms(Collective::AllReduce).iter();
    let all = all.filter(|one| !one.needs.mapped && one.name != "ring");
    all.map(|one| one.name).collect()
}

fn unknown(text: &str) -> Error {
    Error::invalid(format!(
        "algorithm '{text}' is none of ring, auto, {}, oktopk:DENSITY, partial:SHARE, ps:SERVERS, switchml, bytescheduler[:BYTES]",
        schedules().join(", ")
    ))
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Algorithm> {
        fn number<T: FromStr>(text: &str, value: &str) -> Result<T> {
            value.parse().map_err(|_| unknown(text))
        }
        let found = match text.split_once(':') {
            None => match text {
                "ring" => Algorithm::Ring,
                "auto" => Algorithm::Linerate(None),
                "switchml" => Algorithm::SwitchMl,
                "bytescheduler" => Algorithm::ByteScheduler {
                    partition_bytes: PARTITION_BYTES,
                },
                name => Algorithm::Linerate(Some(name.into())),
            },
            Some(("oktopk", value)) => Algorithm::OkTopk {
                density: number(text, value)?,
            },
            Some(("partial", value)) => Algorithm::Partial {
                share: number(text, value)?,
            },
            Some(("ps", value)) => Algorithm::ParameterServer {
                servers: number(text, value)?,
            },
            Some(("bytescheduler", value)) => Algorithm::ByteScheduler {
                partition_bytes: number(text, value)?,
            },
            Some(_) => return Err(unknown(text)),
        };
        found.check()?;
        Ok(found)
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Algorithm::Ring => f.write_str("ring"),
            Algorithm::Linerate(None) => f.write_str("auto"),
            Algorithm::Linerate(Some(name)) => f.write_str(name),
            Algorithm::OkTopk { density } => write!(f, "oktopk:{density}"),
            Algorithm::Partial { share } => write!(f, "partial:{share}"),
            Algorithm::ParameterServer { servers } => write!(f, "ps:{servers}"),
            Algorithm::SwitchMl => f.write_str("switchml"),
            Algorithm::ByteScheduler { partition_bytes } => {
                write!(f, "bytescheduler:{partition_bytes}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_an_algorithm_is_read_back_and_a_bad_one_is_named() {
        for text in [
            "ring",
            "auto",
            "tree",
            "hierarchical",
            "rabenseifner",
            "oktopk:0.01",
            "partial:0.5",
            "ps:4",
            "switchml",
            "bytescheduler:1048576",
        ] {
            assert_eq!(text.parse::<Algorithm>().unwrap().to_string(), text);
        }
        for (text, named) in [
            ("rings", "algorithm 'rings' is none of ring, auto"),
            ("direct", "algorithm 'direct' is none of"),
            ("oktopk", "oktopk:DENSITY"),
            ("oktopk:2", "the density is 2"),
            ("partial:0", "share of all GPUs is 0"),
            ("partial:nan", "share of all GPUs is NaN"),
            ("ps:0", "the number of servers is 0"),
            ("ps:-1", "algorithm 'ps:-1'"),
            ("bytescheduler:1", "partitions of 1 bytes"),
            ("tree:2", "algorithm 'tree:2'"),
        ] {
            let error = text.parse::<Algorithm>().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
