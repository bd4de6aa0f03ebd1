//! What the kernel says about this machine, from /proc and /sys. Parsing is pure; reading gives `None` where a file is
//! missing.

use serde::Serialize;
use std::path::Path;

/// Assumed where /sys does not say, bytes: larger than most, so that a rotation still leaves the caches.
const CACHE_BYTES_ASSUMED: u64 = 64 << 20;
/// Assumed where /proc does not say, bytes.
const MEMORY_BYTES_ASSUMED: u64 = 4 << 30;

/// A cache of the first core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// 1 is next to the core.
    pub level: u32,
    /// Data, Instruction or Unified.
    pub kind: String,
    /// Size.
    pub bytes: u64,
}

/// The trimmed text of a file.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_string())
}

/// `name: value kB` of /proc/meminfo, bytes; counts have no unit and are given as they are.
pub fn meminfo_field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find(|line| {
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

/// Memory that can be had without swapping, bytes, within the control group's limit if there is one.
pub fn available_memory_bytes() -> u64 {
    let of_machine = read("/proc/meminfo")
        .and_then(|text| meminfo_field(&text, "MemAvailable"))
        .unwrap_or(MEMORY_BYTES_ASSUMED);
    let number = |path| read(path).and_then(|text| text.parse::<u64>().ok());
    let limit = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    match (limit, used) {
        (Some(limit), Some(used)) => of_machine.min(limit.saturating_sub(used)),
        _ => of_machine,
    }
}

/// The caches that hold data, nearest first.
pub fn caches() -> Vec<Cache> {
    let root = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let cache = |index: u32| {
        let folder = root.join(format!("index{index}"));
        Some(Cache {
            level: read(folder.join("level"))?.parse().ok()?,
            kind: read(folder.join("type"))?,
            bytes: linerate::config::parse_size(&read(folder.join("size"))?).ok()?,
        })
    };
    (0..8).map_while(cache).collect()
}

/// Bytes of the largest cache.
pub fn last_level_cache_bytes() -> u64 {
    let largest = caches().into_iter().map(|cache| cache.bytes).max();
    largest.unwrap_or(CACHE_BYTES_ASSUMED)
}

/// Package and core of a processor, as the kernel counts them: threads of one core are equal.
pub fn place_of_core(processor: usize) -> (u32, u32) {
    let root = Path::new("/sys/devices/system/cpu").join(format!("cpu{processor}/topology"));
    let number = |name| read(root.join(name))?.parse().ok();
    // Where the kernel does not say, the order is that of the numbers.
    let of = |name| number(name).unwrap_or(0);
    (of("physical_package_id"), of("core_id"))
}

/// Model name of the first core, from the text of /proc/cpuinfo.
pub fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str =
        "MemTotal:       24000 kB\nMemAvailable:   100 kB\nHugePages_Total:       3\nMem: 1\n";

    #[test]
    fn memory_is_told_in_bytes_and_pages_in_pages() {
        assert_eq!(meminfo_field(MEMINFO, "MemAvailable"), Some(102_400));
        assert_eq!(meminfo_field(MEMINFO, "HugePages_Total"), Some(3));
        assert_eq!(meminfo_field(MEMINFO, "Mem"), Some(1));
        assert_eq!(meminfo_field(MEMINFO, "Swap"), None);
        assert_eq!(meminfo_field("", "Mem"), None);
    }

    #[test]
    fn a_model_is_what_follows_the_colon() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC: 9 \n";
        assert_eq!(cpu_model(text).as_deref(), Some("AMD EPYC: 9"));
        assert_eq!(cpu_model("processor : 0"), None);
    }

    #[test]
    fn this_machine_has_memory_and_a_cache() {
        assert!(available_memory_bytes() > 0);
        assert!(last_level_cache_bytes() > 0);
    }
}
