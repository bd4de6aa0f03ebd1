//! What a rank may use of its host: threads, and the last-level cache.

use crate::config::Config;
use crate::engine::Host;
use std::fs;
use std::path::Path;

/// The most threads of one rank that share a large copy or reduction, unless the settings say
/// otherwise. A few cores saturate the memory of a host; the other cores are left to the
/// application.
const THREADS_DERIVED_MAX: usize = 4;

/// What one of `local_ranks` ranks may use of this host.
pub(super) fn share_of_host(config: &Config, local_ranks: usize) -> Host {
    // The cores that the affinity mask and the quota of the control group leave to this process. A
    // rank that is bound to cores of its own gets too small a share of them, because its mask looks
    // like one that all ranks share.
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Host {
        threads_max: threads_for(config.threads, cores, local_ranks),
        cache_bytes: last_level_cache_bytes().unwrap_or(usize::MAX),
        is_size_only: false,
    }
}

fn threads_for(configured: Option<usize>, cores: usize, local_ranks: usize) -> usize {
    let derived = (cores / local_ranks.max(1)).clamp(1, THREADS_DERIVED_MAX);
    configured.unwrap_or(derived)
}

/// Bytes of the last-level cache of core 0; `None` if the host does not say. Operations whose
/// buffers fill that cache use streaming stores.
pub fn last_level_cache_bytes() -> Option<usize> {
    last_level_bytes(Path::new("/sys/devices/system/cpu/cpu0/cache"))
}

/// Bytes of the cache of the highest level that `folder` describes; `None` if it describes none.
fn last_level_bytes(folder: &Path) -> Option<usize> {
    let caches = fs::read_dir(folder).ok()?.filter_map(|entry| {
        let folder = entry.ok()?.path();
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        let level: u32 = read("level")?.trim().parse().ok()?;
        let bytes = crate::config::parse_size(&read("size")?).ok()?;
        Some((level, bytes as usize))
    });
    caches.max().map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_cores_are_shared_by_the_ranks_of_the_host() {
        assert_eq!(threads_for(None, 2, 2), 1);
        assert_eq!(threads_for(None, 2, 32), 1);
        assert_eq!(threads_for(None, 7, 2), 3);
        assert_eq!(threads_for(None, 128, 2), THREADS_DERIVED_MAX);
        assert_eq!(threads_for(Some(3), 2, 2), 3);
    }

    #[test]
    fn the_last_level_is_the_highest_one() {
        let folder = std::env::temp_dir().join(format!("linerate-cache-{}", std::process::id()));
        for (index, level, size) in [(0, "1", "32K"), (3, "3", "32768K\n"), (2, "2", "1024K")] {
            let cache = folder.join(format!("index{index}"));
            fs::create_dir_all(&cache).unwrap();
            fs::write(cache.join("level"), level).unwrap();
            fs::write(cache.join("size"), size).unwrap();
        }
        fs::write(folder.join("uevent"), "").unwrap();
        let found = last_level_bytes(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Some(32 << 20));
        assert_eq!(last_level_bytes(&folder), None);
    }
}
