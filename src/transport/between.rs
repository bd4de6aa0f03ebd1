//! What ranks of several hosts use between their hosts, unless a setting says it: RDMA where every
//! rank has a device for it, else connections. Each rank says what it has when the ranks meet, and
//! rank 0 decides for all ([`agree`]).

use super::Options;
use super::verbs::{self, Fabric};
use crate::types::Rank;

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

/// What is used between hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// RDMA is used; otherwise connections are.
    pub is_verbs: bool,
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
    let found = verbs::probe(rank, ranks, &options.verbs);
    found.map_err(|error| Lack {
        why: match error {
            crate::error::Error::Unavailable { reason, .. } => reason,
            other => other.to_string(),
        },
        has_device: verbs::check("").is_ok(),
    })
}

/// Decides for all ranks, by what each has offered.
pub fn agree(offers: &[Offer]) -> Agreed {
    let refuse = |reason: String, is_pity| Agreed {
        is_verbs: false,
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
            is_verbs: true,
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
            agreed.is_verbs && agreed.reason.contains("RoCEv2"),
            "{agreed:?}"
        );
        let agreed = agree(&[some(), some(), none(), none()]);
        assert!(!agreed.is_verbs && agreed.is_pity);
        let expected = "rank 2 has no usable RDMA device: the kernel has none, nor have 1 others";
        assert_eq!(agreed.reason, expected);
        let agreed = agree(&[none(), none()]);
        assert!(!agreed.is_verbs && !agreed.is_pity);
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
        assert_eq!((agreed.is_verbs, agreed.reason.as_str()), (false, expected));
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
