//! Which provider and which of its domains a rank uses.
//!
//! `ofi` alone takes the first of [`ORDER`] that is there. `ofi:PROVIDER` names it as libfabric
//! does, with the layers on it (`tcp;ofi_rxm`). `ofi:PROVIDER,DOMAIN,..` names the domains too,
//! each of which is a rail.

use super::errors::{refused, unavailable};
use super::names;
use crate::error::Result;
use crate::transport::rdma::RAILS_MAX;
use linerate_fabric_sys::raw::{
    FI_CONTEXT, FI_CONTEXT2, FI_DELIVERY_COMPLETE, FI_MR_ALLOCATED, FI_MR_ENDPOINT, FI_MR_LOCAL,
    FI_MR_PROV_KEY, FI_MR_VIRT_ADDR, FI_MSG, FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RMA,
    FI_RX_CQ_DATA, FI_WRITE,
};
use linerate_fabric_sys::{Hints, Info, Library, Version};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Providers that are looked for, the best first: devices, and then the software ones.
const ORDER: [&str; 9] = [
    "efa",
    "cxi",
    "opx",
    "psm3",
    "verbs;ofi_rxm",
    "tcp",
    "tcp;ofi_rxm",
    "udp;ofi_rxd",
    "shm",
];
/// Where one looks that has no peers.
const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How many of these are devices.
const DEVICES: usize = 5;
/// Bytes of completion data that the protocol needs.
const DATA_BYTES: usize = 4;

/// Whether the processor moves its bytes.
pub fn is_software(provider: &str) -> bool {
    !ORDER[..DEVICES].contains(&provider)
}

/// Whether a provider reaches no other host.
pub fn is_of_one_host(provider: &str) -> bool {
    ["shm", "sm2"].contains(&provider)
}

/// One domain that can be used.
pub struct Found {
    pub info: Info,
    pub version: Version,
}

/// A provider of this machine, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// With the layers on it.
    pub provider: String,
    /// Its domains.
    pub domains: Vec<String>,
    /// Why it cannot be used; none: it can.
    pub why_not: Option<String>,
    /// The processor moves its bytes: it is used where it is asked for, or where there is no other.
    pub is_software: bool,
}

/// The domains that this rank uses, as `names` asks for.
pub fn choose(
    names: &str,
    ranks: u32,
    local: (u32, Option<u32>),
    ip: IpAddr,
) -> Result<Vec<Found>> {
    names::remove_left();
    let library = open_library(ranks)?;
    let mut parts = names.split(',').map(str::trim);
    let provider = parts.next().unwrap_or_default();
    let domains: Vec<&str> = parts.collect();
    let is_wrong = provider.is_empty() && !domains.is_empty()
        || domains.iter().any(|domain| domain.is_empty())
        || domains.len() > RAILS_MAX;
    if is_wrong {
        return Err(unavailable(format!(
            "'{names}' names no domains: ofi:PROVIDER,DOMAIN,.. with up to {RAILS_MAX} of them"
        )));
    }
    let version = library.version();
    let with_version = |info| Found { info, version };
    if provider.is_empty() {
        let mut reasons = Vec::new();
        for provider in ORDER {
            match of_provider(&library, provider, Some(ip)) {
                Ok(infos) => {
                    let own = share(infos, local);
                    return Ok(own.into_iter().map(with_version).collect());
                }
                Err(why) => reasons.push(format!("{provider}: {why}")),
            }
        }
        return Err(unavailable(format!(
            "{} offers no provider that can be used ({})",
            library.name(),
            reasons.join("; ")
        )));
    }
    // Who names domains may mean another network.
    let ip = domains.is_empty().then_some(ip);
    let infos = of_provider(&library, provider, ip).map_err(|why| {
        unavailable(format!(
            "'{provider}': {why}; here are: {}",
            names_of(&all(&library)).join(", ")
        ))
    })?;
    if domains.is_empty() {
        let own = share(infos, local);
        return Ok(own.into_iter().map(with_version).collect());
    }
    let known = |infos: &[Info]| {
        let names: Vec<String> = infos.iter().map(Info::domain_name).collect();
        names.join(", ")
    };
    let mut chosen = Vec::new();
    for domain in domains {
        let found = infos.iter().find(|info| info.domain_name() == domain);
        let found = found.ok_or_else(|| {
            unavailable(format!(
                "{provider} has no domain '{domain}': it has {}",
                known(&infos)
            ))
        })?;
        chosen.push(with_version(found.clone()));
    }
    Ok(chosen)
}

/// Which providers there are, the best first, and what libfabric this is.
pub fn list() -> Result<(String, Vec<Candidate>)> {
    let library = open_library(1)?;
    let title = format!("{} {}", library.name(), library.version());
    let mut candidates: Vec<Candidate> = Vec::new();
    let infos = all(&library);
    for provider in names_of(&infos) {
        let of_it = infos.iter().filter(|info| info.provider_name() == provider);
        let domains = each_once(of_it.map(Info::domain_name));
        candidates.push(Candidate {
            why_not: of_provider(&library, &provider, None).err(),
            is_software: is_software(&provider),
            domains,
            provider,
        });
    }
    let place = |candidate: &Candidate| {
        let found = ORDER.iter().position(|known| *known == candidate.provider);
        (candidate.why_not.is_some(), found.unwrap_or(ORDER.len()))
    };
    candidates.sort_by_key(place);
    Ok((title, candidates))
}

/// The provider that `ofi` alone would take, and its domains.
pub fn check(names: &str) -> Result<String> {
    let found = choose(names, 1, (0, None), LOOPBACK)?;
    let names: Vec<String> = found.iter().map(|f| f.info.domain_name()).collect();
    let first = &found[0];
    let provider = first.info.provider_name();
    let kind = match is_software(&provider) {
        true => ", software",
        false => "",
    };
    Ok(format!(
        "{provider} on {}{kind} (libfabric {})",
        names.join(", "),
        first.version
    ))
}

/// An error unless devices move the bytes of what `names` asks for.
pub fn check_device(names: &str) -> Result<()> {
    let found = choose(names, 1, (0, None), LOOPBACK)?;
    let provider = found[0].info.provider_name();
    match is_software(&provider) {
        true => Err(unavailable(format!("{provider} is software"))),
        false => Ok(()),
    }
}

/// Whether the kernel has a device of EFA. To ask libfabric, which takes longer, is then worth it.
pub fn has_efa() -> bool {
    const AMAZON: &str = "0x1d0f";
    let devices = std::fs::read_dir(Path::new("/sys/class/infiniband"));
    let mut devices = devices.into_iter().flatten().flatten();
    devices.any(|device| {
        let vendor = std::fs::read_to_string(device.path().join("device/vendor"));
        vendor.is_ok_and(|vendor| vendor.trim() == AMAZON)
    })
}

fn open_library(ranks: u32) -> Result<Arc<Library>> {
    Library::open(ranks as usize).map_err(refused)
}

/// What every provider offers of the least that can be used.
fn all(library: &Arc<Library>) -> Vec<Info> {
    Info::query(library, &hints("", None, 0)).unwrap_or_default()
}

/// Their names, each once.
fn names_of(infos: &[Info]) -> Vec<String> {
    each_once(infos.iter().map(Info::provider_name))
}

fn each_once(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for name in names {
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// What is asked of a provider; of any where it has no name.
fn hints<'a>(provider: &'a str, source: Option<&'a str>, op_flags: u64) -> Hints<'a> {
    let virtual_addresses = match is_of_one_host(provider) {
        // It then checks no keys.
        true => 0,
        false => FI_MR_VIRT_ADDR,
    };
    Hints {
        provider: Some(provider).filter(|name| !name.is_empty()),
        source,
        caps: FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
        mode: FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA,
        mr_mode: FI_MR_LOCAL
            | FI_MR_ALLOCATED
            | FI_MR_PROV_KEY
            | FI_MR_ENDPOINT
            | virtual_addresses,
        op_flags,
        ..Hints::default()
    }
}

/// The domains of a provider that can be used, or why there is none.
fn of_provider(
    library: &Arc<Library>,
    provider: &str,
    ip: Option<IpAddr>,
) -> std::result::Result<Vec<Info>, String> {
    if provider == "efa" && library.version() < Version::EFA {
        return Err(format!(
            "{} is libfabric {}, and EFA needs {}",
            library.name(),
            library.version(),
            Version::EFA
        ));
    }
    // Where these listen is known by the address of the host.
    let is_internet = provider.starts_with("tcp") || provider.starts_with("udp");
    let source = match (is_internet, is_of_one_host(provider)) {
        (true, _) => ip.map(|ip| ip.to_string()),
        (_, true) => names::new_name(),
        _ => None,
    };
    let source = source.as_deref();
    // A write is complete when its bytes are there. Not all devices can be asked for that: they
    // complete it when the other one has confirmed it.
    let asked = |op_flags| Info::query(library, &hints(provider, source, op_flags));
    let found = match (asked(FI_DELIVERY_COMPLETE), asked(0)) {
        (Ok(first), Ok(others)) if !is_software(provider) => Ok([first, others].concat()),
        (Err(_), found) if !is_software(provider) => found,
        (Err(_), Ok(_)) => return Err("it does not tell when bytes have come".to_owned()),
        (found, _) => found,
    };
    let mut found = found.map_err(|error| match error.code() {
        Some(libc::ENODATA) => "libfabric finds none here".to_owned(),
        _ => error.to_string(),
    })?;
    prefer_direct(&mut found);
    let mut usable: Vec<Info> = Vec::new();
    let mut reason = "libfabric finds none here".to_owned();
    for info in found {
        // A name is taken for any that begins with it.
        if info.provider_name() != provider {
            continue;
        }
        if info.cq_data_bytes() < DATA_BYTES {
            reason = format!(
                "its writes carry {} bytes of completion data, and {DATA_BYTES} are needed",
                info.cq_data_bytes()
            );
            continue;
        }
        let name = info.domain_name();
        if !usable.iter().any(|known| known.domain_name() == name) {
            usable.push(info);
        }
    }
    match usable.is_empty() {
        true => Err(reason),
        false => Ok(usable),
    }
}

/// Leaves EFA's fabric without copies, where it is there.
fn prefer_direct(infos: &mut Vec<Info>) {
    let is_direct = |info: &Info| info.fabric_name() == "efa-direct";
    if infos.iter().any(is_direct) {
        infos.retain(is_direct);
    }
}

/// The domains that a rank uses of all: of software providers one, of devices its share.
fn share(mut infos: Vec<Info>, (local_rank, local_ranks): (u32, Option<u32>)) -> Vec<Info> {
    let first = infos.first().map(Info::provider_name).unwrap_or_default();
    if is_software(&first) {
        infos.truncate(1);
        return infos;
    }
    // PCI addresses ascend with the distance from the first: neighbours share a switch, also with
    // the GPU that stands among them.
    let place = |info: &Info| {
        let pci = info.nic().and_then(|nic| nic.pci);
        pci.map(|pci| (pci.domain, pci.bus, pci.device, pci.function))
    };
    infos.sort_by_key(|info| (place(info), info.domain_name()));
    let own = share_of(infos.len(), (local_rank, local_ranks));
    infos.drain(own).collect()
}

/// Which devices of a row of this many are those of a rank.
fn share_of(devices: usize, (local_rank, local_ranks): (u32, Option<u32>)) -> Range<usize> {
    let Some(ranks) = local_ranks.filter(|ranks| *ranks > local_rank) else {
        let at = local_rank as usize % devices.max(1);
        return at..(at + 1).min(devices);
    };
    let (rank, ranks) = (local_rank as usize, ranks as usize);
    let first = rank * devices / ranks;
    let end = ((rank + 1) * devices / ranks).max(first + 1);
    first..end.min(first + RAILS_MAX).min(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rank whose GPU is closest to a NIC, by the order of their PCI addresses on a machine.
    fn nics_of(machine: &[(&str, &[&str])]) -> Vec<Vec<String>> {
        let mut nics: Vec<&str> = machine
            .iter()
            .flat_map(|(_, nics)| nics.iter().copied())
            .collect();
        nics.sort_unstable();
        nics.dedup();
        let ranks = machine.len() as u32;
        let of = |rank| share_of(nics.len(), (rank, Some(ranks)));
        (0..ranks)
            .map(|rank| nics[of(rank)].iter().map(|nic| nic.to_string()).collect())
            .collect()
    }

    /// GPUs of an instance, with the NICs behind the PCIe switch of each, as aws-ofi-nccl's files
    /// of topology have them (p4d-24xl-topo.xml, p5.48xl-topo.xml).
    const P4D: [(&str, &[&str]); 8] = [
        ("10:1c", &["10:1b"]),
        ("10:1d", &["10:1b"]),
        ("20:1c", &["20:1b"]),
        ("20:1d", &["20:1b"]),
        ("90:1c", &["90:1b"]),
        ("90:1d", &["90:1b"]),
        ("a0:1c", &["a0:1b"]),
        ("a0:1d", &["a0:1b"]),
    ];
    const P5: [(&str, &[&str]); 8] = [
        ("53:00", &["4f:00", "50:00", "51:00", "52:00"]),
        ("64:00", &["60:00", "61:00", "62:00", "63:00"]),
        ("75:00", &["71:00", "72:00", "73:00", "74:00"]),
        ("86:00", &["82:00", "83:00", "84:00", "85:00"]),
        ("97:00", &["93:00", "94:00", "95:00", "96:00"]),
        ("a8:00", &["a4:00", "a5:00", "a6:00", "a7:00"]),
        ("b9:00", &["b5:00", "b6:00", "b7:00", "b8:00"]),
        ("ca:00", &["c6:00", "c7:00", "c8:00", "c9:00"]),
    ];

    #[test]
    fn each_rank_of_an_instance_gets_the_nics_beside_its_gpu() {
        for machine in [P4D, P5] {
            let expected: Vec<Vec<String>> = machine
                .iter()
                .map(|(_, nics)| nics.iter().map(|nic| nic.to_string()).collect())
                .collect();
            assert_eq!(nics_of(&machine), expected);
        }
    }

    #[test]
    fn every_device_is_used_once_where_there_are_enough_and_never_none() {
        for devices in 1..20 {
            for ranks in 1..20 {
                let shares: Vec<Range<usize>> = (0..ranks)
                    .map(|rank| share_of(devices, (rank, Some(ranks))))
                    .collect();
                for share in &shares {
                    assert!(!share.is_empty() && share.end <= devices && share.len() <= RAILS_MAX);
                }
                if devices >= ranks as usize && devices <= RAILS_MAX {
                    let all: Vec<usize> = shares.into_iter().flatten().collect();
                    assert!(all.into_iter().eq(0..devices), "{devices} for {ranks}");
                }
            }
            assert_eq!(share_of(devices, (7, None)).len(), 1);
        }
        assert!(share_of(0, (0, None)).is_empty());
    }

    #[test]
    fn only_known_devices_are_no_software() {
        assert!(!is_software("efa") && !is_software("verbs;ofi_rxm"));
        assert!(is_software("tcp;ofi_rxm") && is_software("shm") && is_software("sockets"));
        assert!(is_of_one_host("shm") && !is_of_one_host("udp;ofi_rxd"));
    }
}
