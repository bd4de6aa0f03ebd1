//! Limits, memory, cores, libraries and clock of this host. Each check reads, and a pure function
//! beside it judges.

use super::finding::Finding;
use crate::{info, system};
use linerate::transport::Region;
use rustix::process::{Resource, getrlimit};
use std::path::Path;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Below it not even one zero-copy send can be pinned.
const MEMLOCK_BYTES_MIN: u64 = 64 << 10;
/// What distributions give by default, and what a device's queues and a few buffers need.
const MEMLOCK_BYTES_USUAL: u64 = 8 * MIB;
/// Each registered buffer takes a descriptor, and frameworks keep hundreds of files open.
const DESCRIPTORS_MIN: u64 = 256;
const DESCRIPTORS_USUAL: u64 = 1024;
/// Rings, windows and scratch of a rank; and what is left for its buffers.
const RANK_BYTES_MIN: u64 = 64 * MIB;
const RANK_BYTES_USUAL: u64 = GIB;

/// Everything about this host.
pub fn examine(ranks: u32) -> Vec<Finding> {
    let has_rdma = has_rdma_device();
    let soft = |resource| getrlimit(resource).current;
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let mut findings = vec![
        judge_memlock(soft(Resource::Memlock), has_rdma),
        judge_descriptors(
            soft(Resource::Nofile),
            linerate::unstable::bootstrap::check_descriptors(0, ranks).err(),
        ),
        judge_cores(cores, ranks),
        judge_memory(linerate::unstable::memory::available_memory_bytes(), ranks),
        judge_shared_memory(Region::shared("linerate-doctor", 4096).err()),
        judge_dev_shm(dev_shm_bytes()),
        judge_ptrace(system::read("/proc/sys/kernel/yama/ptrace_scope").as_deref()),
        judge_clock_daemon(&processes(), has_synchronised_flag()),
    ];
    for name in ["enabled", "shmem_enabled"] {
        let path = Path::new("/sys/kernel/mm/transparent_hugepage").join(name);
        findings.push(judge_huge_pages(name, system::read(path).as_deref()));
    }
    let source = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    findings.extend(system::read(source).map(|name| judge_clock_source(&name)));
    let (name, package) = ("libibverbs.so.1", "libibverbs1 ibverbs-providers");
    let place = info::find_library(&[name]);
    findings.push(judge_library(name, package, place, has_rdma));
    findings
}

fn has_rdma_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut entries| entries.next().is_some())
}

fn judge_memlock(limit: Option<u64>, has_rdma: bool) -> Finding {
    let name = "memlock";
    let Some(bytes) = limit else {
        return Finding::good(name, "memory may be locked without limit");
    };
    let text = format!(
        "{} KiB of memory may be locked (RLIMIT_MEMLOCK)",
        bytes >> 10
    );
    let mend = "ulimit -l unlimited; for good: echo '* - memlock unlimited' > /etc/security/limits.d/linerate.conf (containers: --ulimit memlock=-1)";
    if bytes < MEMLOCK_BYTES_MIN {
        let text =
            format!("{text}: nothing can be registered with a device or sent without a copy");
        return Finding::fault(name, text, mend);
    }
    match (has_rdma, bytes < MEMLOCK_BYTES_USUAL) {
        (true, true) => Finding::fault(
            name,
            format!("{text}: too little for the RDMA device that is here"),
            mend,
        ),
        (true, false) => Finding::warning(
            name,
            format!("{text}: buffers beyond that cannot be registered with the RDMA device"),
            mend,
        ),
        (false, _) => Finding::good(
            name,
            format!("{text}; there is no RDMA device to need more"),
        ),
    }
}

fn judge_descriptors(limit: Option<u64>, too_few: Option<linerate::Error>) -> Finding {
    let name = "descriptors";
    let mend = "ulimit -n 65536; for good: echo '* - nofile 65536' > /etc/security/limits.d/linerate-nofile.conf";
    match (limit, too_few) {
        (_, Some(error)) => Finding::fault(name, error.to_string(), mend),
        (Some(limit), None) if limit < DESCRIPTORS_MIN => Finding::fault(
            name,
            format!(
                "{limit} files may be open (RLIMIT_NOFILE), and each registered buffer takes one"
            ),
            mend,
        ),
        (Some(limit), None) if limit < DESCRIPTORS_USUAL => Finding::warning(
            name,
            format!("{limit} files may be open (RLIMIT_NOFILE)"),
            mend,
        ),
        (Some(limit), None) => Finding::good(name, format!("{limit} files may be open")),
        (None, None) => Finding::good(name, "any number of files may be open"),
    }
}

fn judge_cores(cores: u32, ranks: u32) -> Finding {
    let text = format!("{cores} cores for {ranks} ranks");
    match ranks <= cores {
        true => Finding::good("cores", text),
        false => Finding::warning(
            "cores",
            format!("{text}: they take turns, and every wait of one costs another one its core"),
            format!(
                "linerate launch -n {cores} -- CMD (containers: --cpus {ranks}; Slurm: --cpus-per-task)"
            ),
        ),
    }
}

fn judge_memory(available: u64, ranks: u32) -> Finding {
    let each = available / u64::from(ranks);
    let text = format!(
        "{} MiB can be used, {} MiB for each of {ranks} ranks (what the machine, the control group and the process leave)",
        available / MIB,
        each / MIB
    );
    let mend = "docker run --memory 16g, a higher limits.memory in Kubernetes, or echo max > memory.max of the control group; else fewer ranks";
    match each {
        e if e < RANK_BYTES_MIN => Finding::fault("memory", text, mend),
        e if e < RANK_BYTES_USUAL => Finding::warning("memory", text, mend),
        _ => Finding::good("memory", text),
    }
}

fn judge_shared_memory(refused: Option<linerate::Error>) -> Finding {
    match refused {
        None => Finding::good("shared memory", "sealed memory can be made (memfd_create)"),
        Some(error) => Finding::fault(
            "shared memory",
            format!("ranks of this host cannot share memory: {error}"),
            "allow memfd_create (containers: --security-opt seccomp=unconfined)",
        ),
    }
}

fn dev_shm_bytes() -> Option<u64> {
    let found = rustix::fs::statvfs("/dev/shm").ok()?;
    Some(found.f_bavail * found.f_frsize)
}

/// linerate leaves no file there, but what runs beside it does: MPI, NCCL, the workers of PyTorch's
/// DataLoader.
fn judge_dev_shm(bytes: Option<u64>) -> Finding {
    let mend = "mount -o remount,size=8G /dev/shm (containers: --shm-size 8g)";
    match bytes {
        None => Finding::warning(
            "/dev/shm",
            "is not there: MPI and data loaders beside linerate need it",
            "mount -t tmpfs -o size=8G tmpfs /dev/shm",
        ),
        Some(bytes) if bytes < GIB => Finding::warning(
            "/dev/shm",
            format!(
                "{} MiB are free: linerate needs none of it, MPI, NCCL and data loaders beside it do",
                bytes / MIB
            ),
            mend,
        ),
        Some(bytes) => Finding::good("/dev/shm", format!("{} MiB are free", bytes / MIB)),
    }
}

fn judge_ptrace(scope: Option<&str>) -> Finding {
    match scope {
        None | Some("0") => {
            Finding::good("ptrace", "ranks of one user may read each other's memory")
        }
        Some(scope) => Finding::note(
            "ptrace",
            format!(
                "kernel.yama.ptrace_scope is {scope}: messages of memory that is not registered are staged instead of being read where they lie"
            ),
            "sysctl -w kernel.yama.ptrace_scope=0",
        ),
    }
}

fn judge_huge_pages(name: &'static str, setting: Option<&str>) -> Finding {
    let what = match name {
        "enabled" => "huge pages for private memory",
        _ => "huge pages for shared memory",
    };
    let path = format!("/sys/kernel/mm/transparent_hugepage/{name}");
    let chosen = setting.and_then(|text| text.split(['[', ']']).nth(1));
    match chosen {
        Some("never" | "deny") => Finding::warning(
            "huge pages",
            format!("{what} are off ({path})"),
            format!("echo advise > {path}"),
        ),
        Some(chosen) => Finding::good("huge pages", format!("{what}: {chosen}")),
        None => Finding::note(
            "huge pages",
            format!("{what}: {path} says nothing"),
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

/// Names of all processes that can be seen.
fn processes() -> Vec<String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| system::read(entry.path().join("comm")))
        .collect()
}

fn has_synchronised_flag() -> bool {
    Path::new("/run/systemd/timesync/synchronized").exists()
}

/// Timestamps of several hosts are compared in logs and traces only: a wrong clock breaks nothing.
fn judge_clock_daemon(processes: &[String], has_flag: bool) -> Finding {
    let daemons = [
        "chronyd",
        "ntpd",
        "ntpsec",
        "ptp4l",
        "systemd-timesyn",
        "openntpd",
    ];
    let found = processes
        .iter()
        .find(|name| daemons.contains(&name.as_str()));
    match (found, has_flag) {
        (Some(name), _) => Finding::good("clock", format!("{name} keeps it")),
        (None, true) => Finding::good("clock", "systemd-timesyncd has synchronised it"),
        (None, false) => Finding::note(
            "clock",
            "nothing is seen that keeps it (in a container the host may); --peers compares it",
            "apt-get install chrony && systemctl enable --now chrony",
        ),
    }
}

fn judge_clock_source(name: &str) -> Finding {
    match name {
        "acpi_pm" | "hpet" | "jiffies" => Finding::warning(
            "clock source",
            format!("{name}: a look at the clock takes a microsecond instead of a few nanoseconds"),
            "echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        name => Finding::good("clock source", name),
    }
}

fn judge_library(
    name: &'static str,
    package: &str,
    place: Option<String>,
    has_rdma: bool,
) -> Finding {
    let mend = format!("apt-get install {package}");
    match (place, has_rdma) {
        (Some(place), _) => Finding::good("library", format!("{name}: {place}")),
        (None, true) => Finding::fault(
            "library",
            format!("{name} is missing, and there is an RDMA device"),
            mend,
        ),
        (None, false) => Finding::note(
            "library",
            format!("{name} is missing; no RDMA device is here to need it"),
            mend,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn check(finding: &Finding, level: Level, mend: &str) {
        assert_eq!(finding.level, level, "{finding:?}");
        let found = finding.mend.as_deref().unwrap_or_default();
        assert!(found.contains(mend), "{finding:?}");
        // Everything that is not good says what mends it.
        assert_eq!(finding.mend.is_none(), level == Level::Good, "{finding:?}");
    }

    #[test]
    fn memory_that_cannot_be_locked_is_a_fault() {
        check(&judge_memlock(None, true), Level::Good, "");
        check(&judge_memlock(Some(0), false), Level::Fault, "ulimit -l");
        check(
            &judge_memlock(Some(MEMLOCK_BYTES_MIN), false),
            Level::Good,
            "",
        );
        check(
            &judge_memlock(Some(MEMLOCK_BYTES_MIN), true),
            Level::Fault,
            "ulimit -l",
        );
        check(&judge_memlock(Some(GIB), true), Level::Warning, "ulimit -l");
    }

    #[test]
    fn descriptors_are_judged_by_what_ranks_need_and_by_what_is_usual() {
        check(
            &judge_descriptors(Some(64), None),
            Level::Fault,
            "ulimit -n",
        );
        check(
            &judge_descriptors(Some(512), None),
            Level::Warning,
            "ulimit -n",
        );
        check(&judge_descriptors(Some(1024), None), Level::Good, "");
        check(&judge_descriptors(None, None), Level::Good, "");
        let error = linerate::Error::InvalidArgument("too few".into());
        check(
            &judge_descriptors(Some(4096), Some(error)),
            Level::Fault,
            "ulimit -n",
        );
    }

    #[test]
    fn ranks_beyond_the_cores_are_warned_of() {
        check(&judge_cores(2, 2), Level::Good, "");
        check(&judge_cores(2, 3), Level::Warning, "launch -n 2");
    }

    #[test]
    fn memory_is_judged_per_rank() {
        check(&judge_memory(4 * GIB, 2), Level::Good, "");
        check(&judge_memory(GIB, 2), Level::Warning, "--memory");
        check(&judge_memory(100 * MIB, 2), Level::Fault, "--memory");
    }

    #[test]
    fn small_dev_shm_is_warned_of() {
        check(&judge_dev_shm(Some(64 * MIB)), Level::Warning, "--shm-size");
        check(&judge_dev_shm(None), Level::Warning, "mount");
        check(&judge_dev_shm(Some(GIB)), Level::Good, "");
    }

    #[test]
    fn huge_pages_that_are_off_are_warned_of() {
        let judge = |text| judge_huge_pages("shmem_enabled", text);
        check(
            &judge(Some("always within_size advise [never] deny force")),
            Level::Warning,
            "echo advise > /sys",
        );
        check(&judge(Some("always [advise] never")), Level::Good, "");
        check(&judge(None), Level::Note, "CONFIG");
    }

    #[test]
    fn a_library_is_missed_where_its_device_is() {
        let judge =
            |place, has_rdma| judge_library("libibverbs.so.1", "libibverbs1", place, has_rdma);
        check(
            &judge(None, true),
            Level::Fault,
            "apt-get install libibverbs1",
        );
        check(&judge(None, false), Level::Note, "apt-get");
        check(&judge(Some("/usr/lib/x".into()), true), Level::Good, "");
    }

    #[test]
    fn clocks_are_kept_by_somebody_or_not() {
        let names = |name: &str| vec!["bash".to_string(), name.to_string()];
        check(
            &judge_clock_daemon(&names("chronyd"), false),
            Level::Good,
            "",
        );
        check(&judge_clock_daemon(&names("cat"), true), Level::Good, "");
        check(
            &judge_clock_daemon(&names("cat"), false),
            Level::Note,
            "chrony",
        );
        check(&judge_clock_source("hpet"), Level::Warning, "tsc");
        check(&judge_clock_source("tsc"), Level::Good, "");
        check(&judge_ptrace(Some("1")), Level::Note, "sysctl");
    }
}
