//! Recorded texts of machines with and without control groups.

use super::*;

const MEMINFO: &str = "MemTotal:       24684084 kB\nMemFree:        22113912 kB\nMemAvailable:   22962808 kB\nCommitLimit:    12342040 kB\nCommitted_AS:    1000000 kB\nHugePages_Total:       3\n";
const MOUNTS_V1: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
    35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
    41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
const MOUNTS_V2: &str =
    "29 22 0:26 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
/// Docker without a namespace of groups: the mount shows the container's group only.
const MOUNTS_CONTAINER: &str =
    "900 899 0:32 /docker/0123abcd /sys/fs/cgroup/memory ro master:11 - cgroup cgroup rw,memory\n";

/// A folder of files, removed at the end.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str, files: &[(&str, &str)]) -> Tree {
        let root = std::env::temp_dir().join(format!("linerate-{name}-{}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Tree(root)
    }

    fn least(&self, untouched: u64) -> Bound {
        let bounds = memory_bounds(&self.0, untouched);
        bounds.into_iter().min_by_key(|b| b.left_bytes).unwrap()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folders(cgroup: &str, mountinfo: &str) -> Vec<(bool, String)> {
    let all = group_folders(cgroup, mountinfo);
    all.into_iter()
        .map(|(is_v2, folder, _)| (is_v2, folder.display().to_string()))
        .collect()
}

#[test]
fn memory_is_told_in_bytes_and_pages_in_pages() {
    assert_eq!(meminfo_field(MEMINFO, "MemAvailable"), Some(22962808 << 10));
    assert_eq!(meminfo_field(MEMINFO, "HugePages_Total"), Some(3));
    assert_eq!(meminfo_field(MEMINFO, "Mem"), None);
    assert_eq!(meminfo_field("", "Mem"), None);
    assert_eq!(meminfo_field("Mem: x kB", "Mem"), None);
}

#[test]
fn groups_are_looked_at_from_the_own_one_up() {
    let v1 = "9:name=systemd:/\n4:memory:/jobs/7\n1:cpu:/\n0::/\n";
    assert_eq!(
        folders(v1, MOUNTS_V1),
        [
            (false, "/sys/fs/cgroup/memory/jobs/7".into()),
            (false, "/sys/fs/cgroup/memory/jobs".into()),
            (false, "/sys/fs/cgroup/memory/".into()),
            (true, "/sys/fs/cgroup/unified/".into()),
        ]
    );
    let v2 = folders("0::/user.slice/session.scope\n", MOUNTS_V2);
    assert_eq!(v2.len(), 3);
    assert_eq!(v2[0].1, "/sys/fs/cgroup/user.slice/session.scope");
    let container = folders("4:memory:/docker/0123abcd/inner\n", MOUNTS_CONTAINER);
    assert_eq!(container[0].1, "/sys/fs/cgroup/memory/inner");
    assert_eq!(container.len(), 2);
    // A group outside of what is mounted, or of a namespace above this one.
    assert_eq!(folders("0::/../other\n", MOUNTS_V2).len(), 1);
    assert_eq!(folders("nonsense\n4:memory\n", MOUNTS_V1), []);
    assert_eq!(folders("0::/x\n", "nonsense - \n"), []);
}

#[test]
fn a_machine_without_groups_has_what_the_kernel_says() {
    let tree = Tree::new("bare", &[("proc/meminfo", MEMINFO)]);
    let bound = tree.least(0);
    assert_eq!(bound.left_bytes, 22962808 << 10);
    assert!(
        bound
            .text
            .contains("MemAvailable is 23513915392 bytes (21.9 GiB)"),
        "{}",
        bound.text
    );
    assert_eq!(tree.least(1 << 30).left_bytes, (22962808 << 10) - (1 << 30));
    assert!(tree.least(1 << 30).text.contains("not yet touched"));
}

#[test]
fn strict_accounting_is_a_limit_of_its_own() {
    let tree = Tree::new(
        "strict",
        &[
            ("proc/meminfo", MEMINFO),
            ("proc/sys/vm/overcommit_memory", "2\n"),
        ],
    );
    assert_eq!(tree.least(0).left_bytes, 11342040 << 10);
    assert!(tree.least(0).text.contains("CommitLimit"));
}

#[test]
fn the_tightest_group_above_counts_in_version_2() {
    let files = [
        ("proc/meminfo", MEMINFO),
        ("proc/self/cgroup", "0::/pod/container\n"),
        ("proc/self/mountinfo", MOUNTS_V2),
        ("sys/fs/cgroup/pod/container/memory.max", "max\n"),
        ("sys/fs/cgroup/pod/container/memory.current", "5000\n"),
        ("sys/fs/cgroup/pod/memory.max", "1073741824\n"),
        ("sys/fs/cgroup/pod/memory.current", "600000000\n"),
        (
            "sys/fs/cgroup/pod/memory.stat",
            "anon 1\ninactive_file 100000000\nactive_file 7\n",
        ),
    ];
    let bound = Tree::new("v2", &files).least(0);
    assert_eq!(bound.left_bytes, 1073741824 - 500000000);
    assert!(
        bound
            .text
            .contains("memory.max of control group /pod is 1073741824 bytes"),
        "{}",
        bound.text
    );
}

#[test]
fn version_1_says_unlimited_with_a_large_number() {
    let files = |limit: &'static str, hierarchy: &'static str| {
        [
            ("proc/meminfo", MEMINFO),
            ("proc/self/cgroup", "4:memory:/job\n"),
            ("proc/self/mountinfo", MOUNTS_V1),
            ("sys/fs/cgroup/memory/job/memory.limit_in_bytes", limit),
            (
                "sys/fs/cgroup/memory/job/memory.usage_in_bytes",
                "1000000\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.use_hierarchy", hierarchy),
        ]
    };
    let unlimited = Tree::new("v1-unlimited", &files("9223372036854771712\n", "1\n"));
    assert!(unlimited.least(0).text.contains("MemAvailable"));
    let limited = Tree::new("v1-limited", &files("50000000\n", "1\n"));
    assert_eq!(limited.least(0).left_bytes, 49000000);
    assert!(
        limited
            .least(0)
            .text
            .contains("memory.limit_in_bytes of control group /job")
    );
    let flat = Tree::new("v1-flat", &files("50000000\n", "0\n"));
    assert!(flat.least(0).text.contains("MemAvailable"));
}

#[test]
fn limits_of_the_process_apply_to_the_pages_they_count() {
    let status = "VmSize:\t  2048 kB\nVmData:\t 1024 kB\n";
    let limits = ProcessLimits {
        address_space: Some(4 << 20),
        data: Some(3 << 20),
        file_size: Some(1 << 20),
    };
    let of = |pages| {
        let bounds = process_bounds(&limits, status, pages);
        bounds
            .into_iter()
            .map(|b| (b.left_bytes >> 20, b.text))
            .collect::<Vec<_>>()
    };
    let (shared, private) = (of(Pages::Shared), of(Pages::Private));
    assert_eq!(shared.iter().map(|b| b.0).collect::<Vec<_>>(), [2, 1]);
    assert!(shared[0].1.contains("RLIMIT_AS") && shared[1].1.contains("RLIMIT_FSIZE"));
    assert_eq!(private.iter().map(|b| b.0).collect::<Vec<_>>(), [2, 2]);
    assert!(private[1].1.contains("RLIMIT_DATA"));
    assert_eq!(
        process_bounds(&ProcessLimits::default(), status, Pages::Private),
        []
    );
}

#[test]
fn what_is_reserved_and_not_touched_is_spoken_for() {
    let status = "RssAnon:\t 1024 kB\nRssFile:\t 9999 kB\nRssShmem:\t 2048 kB\n";
    assert_eq!(untouched_bytes(status, 10 << 20), 7 << 20);
    assert_eq!(untouched_bytes(status, 1 << 20), 0);
}

#[test]
fn sizes_are_exact_and_readable() {
    assert_eq!(size(1023), "1023 bytes");
    assert_eq!(size(1536), "1536 bytes (1.5 KiB)");
    assert_eq!(size(4 << 40), "4398046511104 bytes (4.0 TiB)");
    assert_eq!(size(u64::MAX), "18446744073709551615 bytes (16384.0 PiB)");
}

#[test]
fn this_machine_has_memory_but_not_four_tebibytes() {
    assert!(available_memory_bytes() > 0);
    check_all("a test", 1 << 20, Pages::Shared).unwrap();
    let error = check("a test", 4 << 40, Pages::Shared).unwrap_err();
    let Error::Exhausted { what, limit, .. } = &error else {
        panic!("{error}")
    };
    assert!(what.contains("4398046511104 bytes (4.0 TiB)"), "{what}");
    assert!(
        limit.contains("MemAvailable") || limit.contains("memory."),
        "{limit}"
    );
}
