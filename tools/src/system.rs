//! What the kernel says about this machine, from /proc and /sys. Parsing is pure; reading gives
//! `None` where a file is missing.

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Bytes that are assumed where /sys does not say. Most caches are smaller, so that a rotation
/// still exceeds them.
const CACHE_BYTES_ASSUMED: u64 = 64 << 20;

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

/// How long the threads of this process were ready to run and had no processor, so far.
pub fn waited_for_processor() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let of_thread = |folder: std::fs::DirEntry| wait_of(&read(folder.path().join("schedstat"))?);
    let waits = threads.filter_map(|folder| of_thread(folder.ok()?));
    Some(waits.sum())
}

/// How long processors have run the threads of this process, so far.
pub fn processor_time() -> Duration {
    time_of(ClockId::ProcessCPUTime)
}

/// How long processors have run this thread, so far.
pub fn processor_time_of_thread() -> Duration {
    time_of(ClockId::ThreadCPUTime)
}

fn time_of(clock: ClockId) -> Duration {
    let time = clock_gettime(clock);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The second number of a schedstat file, nanoseconds.
fn wait_of(schedstat: &str) -> Option<Duration> {
    let nanoseconds = schedstat.split(' ').nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The caches of the first core, nearest first.
pub fn caches() -> Vec<Cache> {
    let root = Path::new("/sys/devices/system/cpu/cpu0/cache");
    let cache = |index: u32| {
        let folder = root.join(format!("index{index}"));
        Some(Cache {
            level: read(folder.join("level"))?.parse().ok()?,
            kind: read(folder.join("type"))?,
            bytes: linerate::unstable::config::parse_size(&read(folder.join("size"))?).ok()?,
        })
    };
    (0..8).map_while(cache).collect()
}

/// Bytes of the last-level cache.
pub fn last_level_cache_bytes() -> u64 {
    linerate::unstable::comm::last_level_cache_bytes()
        .map_or(CACHE_BYTES_ASSUMED, |bytes| bytes as u64)
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

    #[test]
    fn a_model_is_what_follows_the_colon() {
        let text = "processor\t: 0\nmodel name\t: AMD EPYC: 9 \n";
        assert_eq!(cpu_model(text).as_deref(), Some("AMD EPYC: 9"));
        assert_eq!(cpu_model("processor : 0"), None);
    }

    #[test]
    fn a_wait_is_the_second_number() {
        let waited = wait_of("1200 257584 9");
        assert_eq!(waited, Some(Duration::from_nanos(257584)));
        assert_eq!(wait_of("1200"), None);
    }

    #[test]
    fn a_thread_that_works_takes_processor_time_of_its_process() {
        let (before, all_before) = (processor_time_of_thread(), processor_time());
        while processor_time_of_thread() == before {
            std::hint::spin_loop();
        }
        assert!(processor_time() > all_before);
    }

    #[test]
    fn this_machine_has_a_cache() {
        assert!(last_level_cache_bytes() > 0);
    }
}
