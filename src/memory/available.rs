//! How much memory can be had: checked before any of it is touched.
//!
//! The kernel gives an address range or a memfd of any size, and kills a process when more pages
//! are touched than there are. So a region is compared first with MemAvailable, the limits of the
//! control groups (version 1 and 2, from the process's own group up), and the limits of the
//! process. What other processes have reserved and not touched yet is not known.
//!
//! Parsing is pure; reading takes the root directory as an argument and passes over files that are
//! missing. RLIMIT_MEMLOCK is not looked at: nothing here is locked.

use crate::error::{Error, Result};
use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory is checked when this much has been asked for since the last check. A check reads a dozen
/// files, about 0.1 ms; first touching 16 MiB takes several milliseconds.
const CHECK_EVERY_BYTES: u64 = 16 << 20;
/// Bytes of a page for each byte of its entry in the page table.
const PAGE_TABLE_SHARE: u64 = 512;
/// The available memory that is assumed where /proc does not say.
const MEMORY_BYTES_ASSUMED: u64 = 4 << 30;
/// The deepest nesting of groups that is looked at.
const GROUP_DEPTH_MAX: usize = 64;

/// Bytes asked for since the last check.
static UNCHECKED: AtomicU64 = AtomicU64::new(0);
/// Bytes of all regions of this process. Relaxed everywhere: a number, which publishes nothing.
static RESERVED: AtomicU64 = AtomicU64::new(0);

/// Which limits apply to a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// A memfd, mapped.
    Shared,
    /// Anonymous memory of this process.
    Private,
}

/// Limits of the process, bytes; `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ProcessLimits {
    address_space: Option<u64>,
    data: Option<u64>,
    file_size: Option<u64>,
}

/// What can still be had under one limit, and how to raise it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    left_bytes: u64,
    text: String,
    remedy: String,
}

/// Where control groups of one version are mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct GroupMount {
    is_v2: bool,
    /// The group that is mounted there.
    root: String,
    point: PathBuf,
}

/// Fails if `bytes` more bytes cannot be had; `name` says what for.
pub(super) fn check(name: &str, bytes: u64, pages: Pages) -> Result<()> {
    let asked = UNCHECKED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    let limits = ProcessLimits::read();
    // Growing a file above RLIMIT_FSIZE ends the process by a signal, so this is checked for every
    // region, however small.
    let file = file_bound(&limits).filter(|_| pages == Pages::Shared);
    if let Some(bound) = file.filter(|bound| bound.left_bytes < bytes) {
        return Err(refused(name, bytes, bound));
    }
    if asked < CHECK_EVERY_BYTES {
        return Ok(());
    }
    UNCHECKED.store(0, Ordering::Relaxed);
    check_all(name, bytes, pages)
}

/// As [`check`], however few bytes. It also tells why the kernel has refused.
pub(super) fn check_all(name: &str, bytes: u64, pages: Pages) -> Result<()> {
    let root = Path::new("/");
    let status = read(&root.join("proc/self/status"));
    let reserved = RESERVED.load(Ordering::Relaxed);
    let mut bounds = memory_bounds(root, untouched_bytes(&status, reserved));
    bounds.extend(process_bounds(&ProcessLimits::read(), &status, pages));
    let with_tables = bytes.saturating_add(bytes / PAGE_TABLE_SHARE);
    match bounds.into_iter().min_by_key(|bound| bound.left_bytes) {
        Some(least) if least.left_bytes < with_tables => Err(refused(name, bytes, least)),
        _ => Ok(()),
    }
}

/// A region of this many bytes exists now.
pub(super) fn note_reserved(bytes: usize) {
    RESERVED.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// A region of this many bytes has ended.
pub(super) fn note_freed(bytes: usize) {
    RESERVED.fetch_sub(bytes as u64, Ordering::Relaxed);
}

/// Memory that can be had without swapping, bytes: the machine's, within the limits of the control
/// groups.
pub fn available_memory_bytes() -> u64 {
    let bounds = memory_bounds(Path::new("/"), 0);
    let least = bounds.into_iter().map(|bound| bound.left_bytes).min();
    least.unwrap_or(MEMORY_BYTES_ASSUMED)
}

/// `name: value kB` of /proc/meminfo or /proc/self/status, bytes; counts have no unit and are given
/// as they are.
pub fn meminfo_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(':'))
    })?;
    let mut words = line[name.len() + 1..].split_whitespace();
    let value: u64 = words.next()?.parse().ok()?;
    match words.next() {
        Some("kB") => value.checked_mul(1024),
        _ => Some(value),
    }
}

fn refused(name: &str, bytes: u64, bound: Bound) -> Error {
    Error::Exhausted {
        what: format!("{} of memory for {name} cannot be had", size(bytes)),
        limit: bound.text,
        remedy: bound.remedy,
    }
}

impl ProcessLimits {
    fn read() -> ProcessLimits {
        let of = |resource| getrlimit(resource).current;
        ProcessLimits {
            address_space: of(Resource::As),
            data: of(Resource::Data),
            file_size: of(Resource::Fsize),
        }
    }
}

fn file_bound(limits: &ProcessLimits) -> Option<Bound> {
    let limit = limits.file_size?;
    Some(Bound {
        left_bytes: limit,
        text: format!(
            "RLIMIT_FSIZE is {} and shared memory is a file",
            size(limit)
        ),
        remedy: "allocate less, or raise it with `ulimit -f`".into(),
    })
}

/// What the process's own limits leave, given /proc/self/status.
fn process_bounds(limits: &ProcessLimits, status: &str, pages: Pages) -> Vec<Bound> {
    let field = |name| meminfo_field(status, name).unwrap_or(0);
    let data = limits.data.filter(|_| pages == Pages::Private);
    let file = file_bound(limits).filter(|_| pages == Pages::Shared);
    let of = |limit: Option<u64>, name: &str, used: u64, flag: &str| {
        limit.map(|limit| Bound {
            left_bytes: limit.saturating_sub(used),
            text: format!("{name} is {} and {} are in use", size(limit), size(used)),
            remedy: format!("allocate less, or raise it with `ulimit {flag}`"),
        })
    };
    let space = of(limits.address_space, "RLIMIT_AS", field("VmSize"), "-v");
    let data = of(data, "RLIMIT_DATA", field("VmData"), "-d");
    [space, data, file].into_iter().flatten().collect()
}

/// Bytes that regions of this process have reserved and not touched, at least: all resident memory
/// counts as touched by regions.
fn untouched_bytes(status: &str, reserved: u64) -> u64 {
    let resident = ["RssAnon", "RssShmem"].map(|name| meminfo_field(status, name).unwrap_or(0));
    reserved.saturating_sub(resident.iter().sum())
}

/// What the machine and the control groups leave, of which `untouched` bytes are spoken for.
fn memory_bounds(root: &Path, untouched: u64) -> Vec<Bound> {
    let mut bounds = Vec::new();
    let meminfo = read(&root.join("proc/meminfo"));
    let spoken_for = match untouched {
        0 => String::new(),
        bytes => format!(
            ", of which {} are allocated here and not yet touched",
            size(bytes)
        ),
    };
    if let Some(available) = meminfo_field(&meminfo, "MemAvailable") {
        bounds.push(Bound {
            left_bytes: available.saturating_sub(untouched),
            text: format!("MemAvailable is {}{spoken_for}", size(available)),
            remedy: "allocate less, start fewer ranks on this host, or end other programs".into(),
        });
    }
    let is_strict = read(&root.join("proc/sys/vm/overcommit_memory")).trim() == "2";
    let committed = ["CommitLimit", "Committed_AS"].map(|name| meminfo_field(&meminfo, name));
    if let (true, [Some(limit), Some(used)]) = (is_strict, committed) {
        bounds.push(Bound {
            left_bytes: limit.saturating_sub(used),
            text: format!(
                "CommitLimit is {} and {} are committed",
                size(limit),
                size(used)
            ),
            remedy: "allocate less, or raise vm.overcommit_ratio".into(),
        });
    }
    let groups = group_folders(
        &read(&root.join("proc/self/cgroup")),
        &read(&root.join("proc/self/mountinfo")),
    );
    bounds.extend(groups.into_iter().filter_map(|(is_v2, folder, name)| {
        let (limit, used) = group_numbers(root, is_v2, &folder)?;
        let file = if is_v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        Some(Bound {
            left_bytes: limit.saturating_sub(used).saturating_sub(untouched),
            text: format!(
                "{file} of control group {name} is {} and {} are in use{spoken_for}",
                size(limit),
                size(used)
            ),
            remedy: "allocate less, or raise the memory limit of the container or job".into(),
        })
    }));
    bounds
}

/// A group's limit, and what it uses without caches that can be dropped; `None` if it has no limit.
fn group_numbers(root: &Path, is_v2: bool, folder: &Path) -> Option<(u64, u64)> {
    let folder = root.join(folder.strip_prefix("/").unwrap_or(folder));
    let number = |name: &str| read(&folder.join(name)).trim().parse::<u64>().ok();
    let (limit, used, cached) = if is_v2 {
        ("memory.max", "memory.current", "inactive_file")
    } else {
        (
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "total_inactive_file",
        )
    };
    // Without a limit, version 2 says "max" and version 1 the largest multiple of a page. In
    // version 1 a group without `use_hierarchy` does not limit its children.
    let limit = number(limit).filter(|&bytes| bytes < 1 << 62)?;
    if !is_v2 && number("memory.use_hierarchy") == Some(0) {
        return None;
    }
    let dropped = stat_field(&read(&folder.join("memory.stat")), cached).unwrap_or(0);
    Some((limit, number(used)?.saturating_sub(dropped)))
}

/// `name value` of a group's memory.stat.
fn stat_field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(key, _)| *key == name)?.1.trim().parse().ok()
}

/// The folders of the memory groups that the process is in: its own, then each parent's. With the
/// version and the name.
fn group_folders(cgroup: &str, mountinfo: &str) -> Vec<(bool, PathBuf, String)> {
    let mounts = group_mounts(mountinfo);
    let mut folders = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_v2 = number == "0" && controllers.is_empty();
        if !is_v2 && !controllers.split(',').any(|name| name == "memory") {
            continue;
        }
        let Some(mount) = mounts.iter().find(|mount| mount.is_v2 == is_v2) else {
            continue;
        };
        // Inside a container the mount may show a part of the tree only, from that container's
        // group on.
        let inside = Path::new(path)
            .strip_prefix(&mount.root)
            .unwrap_or(Path::new(""));
        let is_below = inside
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        let own = if is_below { inside } else { Path::new("") };
        for group in own.ancestors().take(GROUP_DEPTH_MAX) {
            let name = Path::new(&mount.root).join(group).display().to_string();
            folders.push((is_v2, mount.point.join(group), name));
        }
    }
    folders
}

/// The mounts of memory groups in /proc/self/mountinfo:
/// `id parent dev root point options [tags] - type source options`.
fn group_mounts(mountinfo: &str) -> Vec<GroupMount> {
    let mount = |line: &str| {
        let (place, kind) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let is_v2 = *kind.first()? == "cgroup2";
        let is_v1 = kind[0] == "cgroup" && kind.last()?.split(',').any(|o| o == "memory");
        (is_v1 || is_v2).then_some(GroupMount {
            is_v2,
            root: (*place.get(3)?).into(),
            point: (*place.get(4)?).into(),
        })
    };
    mountinfo.lines().filter_map(mount).collect()
}

/// Empty where there is no such file.
fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// `4398046511104 bytes (4.0 TiB)`.
fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let Some(power) = (1..=units.len()).rev().find(|&p| bytes >> (10 * p) > 0) else {
        return format!("{bytes} bytes");
    };
    let value = bytes as f64 / (1u64 << (10 * power)) as f64;
    format!("{bytes} bytes ({value:.1} {})", units[power - 1])
}

#[cfg(test)]
#[path = "available_tests.rs"]
mod tests;
