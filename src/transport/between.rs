//! What ranks of several hosts use between their hosts, unless a setting says it: EFA or other
//! RDMA where every rank has a device of the same fabric, else connections. Each rank says what it
//! has when the ranks meet, and rank 0 decides for all ([`agree`]).

use super::fabric::Fabric;
use super::{Options, ofi, verbs};
use crate::error::{Error, Result as OurResult};
use crate::types::Rank;

/// The setting that asks for RDMA devices, for people.
pub const REQUIRED: &str = "LINERATE_REQUIRE=rdma (--require rdma)";

/// What a rank says: its fabric, or why it has none.
pub type Offer = Result<Fabric, Lack>;

/// Why a rank has no fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// In words for people.
    pub why: String,
    /// A device is there, and cannot be used in this job.
    pub has_device: bool,
}

impl From<String> for Lack {
    /// The lack of a rank that has no device, or is not to use it.
    fn from(why: String) -> Lack {
        Lack {
            why,
            has_device: false,
        }
    }
}

/// What ranks of several hosts can use between their hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Far {
    /// Connections.
    Tcp,
    /// RDMA through libibverbs.
    Verbs,
    /// EFA, through libfabric.
    Efa,
}

impl Far {
    /// All of them.
    pub const ALL: [Far; 3] = [Far::Tcp, Far::Verbs, Far::Efa];

    /// The name of its transport.
    pub fn name(self) -> &'static str {
        match self {
            Far::Tcp => "tcp",
            Far::Verbs => "verbs",
            Far::Efa => "ofi:efa",
        }
    }

    /// Whether devices move its bytes.
    pub fn is_rdma(self) -> bool {
        self != Far::Tcp
    }
}

impl From<Fabric> for Far {
    fn from(fabric: Fabric) -> Far {
        match fabric {
            Fabric::Efa => Far::Efa,
            Fabric::InfiniBand | Fabric::RoceV1 | Fabric::RoceV2 => Far::Verbs,
        }
    }
}

/// What is used between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    pub far: Far,
    /// Why, in words for people.
    pub reason: String,
    /// Some ranks have a device and cannot use it: it has too little of something, or others have
    /// none that fits.
    pub is_pity: bool,
}

/// What this rank can offer. It opens its devices and closes them again, because a device that is
/// there may be forbidden or full.
pub fn own_offer(rank: Rank, ranks: u32, options: &Options) -> Offer {
    if let Some((flag, what)) = options.unkept_promise() {
        return Err(format!("{flag} was asked for, and devices do not {what}").into());
    }
    // What has EFA is known to libibverbs, too, which cannot use it.
    let of_efa = ofi::probe_efa(rank, ranks, &options.verbs);
    let found = match of_efa {
        Some(Ok(())) => return Ok(Fabric::Efa),
        _ => verbs::probe(rank, ranks, &options.verbs),
    };
    let (of_efa, has_efa) = match of_efa {
        Some(Err(error)) => (Some(error), true),
        _ => (None, false),
    };
    found.map_err(|error| Lack {
        why: reason_of(of_efa.unwrap_or(error)),
        has_device: has_efa || verbs::check("").is_ok(),
    })
}

/// Refuses a transport that does without RDMA devices, where `LINERATE_REQUIRE` asks for them;
/// `agreed` is what the ranks use between their hosts, where they have met and that is open.
pub fn check_required(
    transport: &str,
    (rank, ranks): (Rank, u32),
    options: &Options,
    agreed: Option<&Agreed>,
) -> OurResult<()> {
    let (kind, detail) = transport.split_once(':').unwrap_or((transport, ""));
    let refuse = |reason: String| {
        Err(Error::Unavailable {
            transport: transport.into(),
            reason: format!("{REQUIRED} was asked for, and {reason}"),
        })
    };
    match (kind, agreed) {
        ("verbs", _) => Ok(()),
        ("router", None) if !detail.is_empty() => {
            check_required(detail, (rank, ranks), options, None)
        }
        ("ofi", _) => match ofi::check_device(detail) {
            Ok(()) => Ok(()),
            Err(error) => refuse(reason_of(error)),
        },
        ("auto" | "router", Some(agreed)) if agreed.far.is_rdma() => Ok(()),
        ("auto" | "router", Some(agreed)) => refuse(agreed.reason.clone()),
        ("auto" | "router", None) => match own_offer(rank, ranks, options) {
            Ok(_) => Ok(()),
            Err(lack) => refuse(format!(
                "rank {rank} has no usable RDMA device: {}",
                lack.why
            )),
        },
        _ => refuse(format!("{kind} uses no RDMA device")),
    }
}

fn reason_of(error: Error) -> String {
    match error {
        Error::Unavailable { reason, .. } => reason,
        other => other.to_string(),
    }
}

/// What each rank has, for people.
pub fn describe(offers: &[Offer]) -> String {
    let each = offers.iter().enumerate().map(|(rank, offer)| match offer {
        Ok(fabric) => format!("rank {rank}: {fabric}"),
        Err(lack) => format!("rank {rank}: none, {}", lack.why),
    });
    each.collect::<Vec<String>>().join("; ")
}

/// Decides for all ranks, by what each has offered.
pub fn agree(offers: &[Offer]) -> Agreed {
    let refuse = |reason: String, is_pity| Agreed {
        far: Far::Tcp,
        reason,
        is_pity,
    };
    let lacks =
        |(rank, offer): (usize, &Offer)| offer.as_ref().err().map(|lack| (rank, lack.clone()));
    let lacking: Vec<(usize, Lack)> = offers.iter().enumerate().filter_map(lacks).collect();
    // The reason of a rank that has a device says more than others.
    let with_device = lacking.iter().find(|(_, lack)| lack.has_device);
    if let Some((rank, Lack { why, has_device })) = with_device.or(lacking.first()) {
        let who = match lacking.len() == offers.len() {
            true => "no rank has a usable RDMA device".into(),
            false => format!("rank {rank} has no usable RDMA device"),
        };
        let further = match lacking.len() {
            1 => String::new(),
            count if count == offers.len() => format!(" (rank {rank})"),
            count => format!(", nor have {} others", count - 1),
        };
        return refuse(
            format!("{who}: {why}{further}"),
            lacking.len() < offers.len() || *has_device,
        );
    }
    let fabrics: Vec<Fabric> = offers.iter().flatten().copied().collect();
    let first = fabrics[0];
    match fabrics.iter().position(|&fabric| fabric != first) {
        Some(rank) => refuse(
            format!(
                "rank {rank}'s device speaks {}, and rank 0's {first}",
                fabrics[rank]
            ),
            true,
        ),
        None => Agreed {
            far: first.into(),
            reason: format!("every rank has a device that speaks {first}"),
            is_pity: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_need_every_rank_and_who_lacks_them_is_named() {
        let none = || Err(String::from("the kernel has none").into());
        let some = || Ok(Fabric::RoceV2);
        let agreed = agree(&[some(), some()]);
        assert!(
            agreed.far == Far::Verbs && agreed.reason.contains("RoCEv2"),
            "{agreed:?}"
        );
        let agreed = agree(&[Ok(Fabric::Efa), Ok(Fabric::Efa)]);
        assert_eq!((agreed.far, agreed.far.name()), (Far::Efa, "ofi:efa"));
        let agreed = agree(&[some(), some(), none(), none()]);
        assert!(agreed.far == Far::Tcp && agreed.is_pity);
        let expected = "rank 2 has no usable RDMA device: the kernel has none, nor have 1 others";
        assert_eq!(agreed.reason, expected);
        let agreed = agree(&[none(), none()]);
        assert!(agreed.far == Far::Tcp && !agreed.is_pity);
        assert!(agreed.reason.starts_with("no rank has"), "{agreed:?}");
        let small = Lack {
            why: "it has 64 queue pairs".into(),
            has_device: true,
        };
        let agreed = agree(&[none(), Err(small.clone())]);
        let expected = "no rank has a usable RDMA device: it has 64 queue pairs (rank 1)";
        assert_eq!((agreed.is_pity, agreed.reason.as_str()), (true, expected));
        let agreed = agree(&[some(), Ok(Fabric::InfiniBand)]);
        let expected = "rank 1's device speaks InfiniBand, and rank 0's RoCEv2";
        assert_eq!((agreed.far, agreed.reason.as_str()), (Far::Tcp, expected));
    }

    #[test]
    fn what_is_required_is_refused_by_name_where_it_is_not() {
        let options = Options::default();
        let check = |name: &str, agreed: Option<&Agreed>| {
            let checked = check_required(name, (0, 2), &options, agreed);
            checked.map_err(|error| error.to_string())
        };
        for name in ["verbs", "verbs:mlx5_0", "router:verbs"] {
            assert_eq!(check(name, None), Ok(()));
        }
        for name in ["tcp", "shm", "sim", "router:tcp", "ofi:shm", "ofi:nosuch"] {
            let text = check(name, None).unwrap_err();
            assert!(text.contains("LINERATE_REQUIRE=rdma"), "{text}");
        }
        let none = Err(Lack::from(String::from("the kernel has none")));
        let offers = [Ok(Fabric::RoceV2), none];
        let text = check("auto", Some(&agree(&offers))).unwrap_err();
        assert!(text.contains("rank 1 has no usable"), "{text}");
        assert_eq!(check("auto", Some(&agree(&offers[..1]))), Ok(()));
        let expected = "rank 0: RoCEv2; rank 1: none, the kernel has none";
        assert_eq!(describe(&offers), expected);
    }

    #[test]
    fn what_must_be_encrypted_does_not_go_over_devices() {
        let mut options = Options::default();
        options.tcp.has_tls = true;
        let Lack { why, has_device } = own_offer(0, 2, &options).unwrap_err();
        assert!(
            why.contains("LINERATE_TLS") && why.contains("encrypt") && !has_device,
            "{why}"
        );
    }
}
