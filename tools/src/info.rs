//! `linerate info`: what this machine and this build offer. Measures nothing and changes nothing.

use crate::rdma::{self, Rdma};
use crate::system::{self, Cache};
use clap::Args;
use linerate::options::{CrossMemory, FindingsFrom};
use linerate::{Config, Progress};
use linerate_job::ending::{self, FAILED};
use linerate_job::{output, settings};
use rustix::process::{Resource, getrlimit};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::path::Path;
use std::process::ExitCode;

/// Where distributions and vendors put libraries.
const LIBRARY_FOLDERS: [&str; 7] = [
    "/opt/amazon/efa/lib64",
    "/opt/amazon/efa/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/lib",
];

/// Arguments of `linerate info`.
#[derive(Args, Clone, Debug)]
pub struct InfoArgs {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

/// Everything that is told.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    cpu: Cpu,
    memory: Memory,
    transports: Vec<Transport>,
    rdma: Rdma,
    host: Host,
    limits: BTreeMap<&'static str, Option<u64>>,
    config: Result<BTreeMap<&'static str, String>, String>,
    environment: BTreeMap<String, String>,
}

#[derive(Debug, Serialize)]
struct Cpu {
    model: Option<String>,
    architecture: &'static str,
    cores: usize,
    /// What kernels may use.
    isa: Vec<&'static str>,
    caches: Vec<Cache>,
}

#[derive(Debug, Serialize)]
struct Memory {
    total_bytes: Option<u64>,
    available_bytes: u64,
    huge_page_bytes: Option<u64>,
    huge_pages_free: Option<u64>,
    transparent_huge_pages: Option<String>,
    transparent_huge_pages_shmem: Option<String>,
}

#[derive(Debug, Serialize)]
struct Transport {
    name: String,
    available: bool,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Host {
    /// Ranks with equal ids share memory.
    id: String,
    boot_id: Option<String>,
    network_namespace: Option<String>,
}

/// Prints it. Fails (1) if a `LINERATE_*` variable has a value that would be refused.
pub fn run(args: &InfoArgs) -> ExitCode {
    let info = collect();
    let text = if args.json {
        match serde_json::to_string_pretty(&info) {
            Ok(text) => text + "\n",
            Err(error) => format!("{{\"error\": \"{error}\"}}\n"),
        }
    } else {
        describe(&info)
    };
    match output::print_text(&text).and(info.config) {
        Ok(_) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

fn collect() -> Info {
    let config = settings::from_environment();
    let host_id = config.as_ref().ok().and_then(|c| c.host_id.clone());
    Info {
        version: env!("CARGO_PKG_VERSION"),
        cpu: Cpu {
            model: system::read("/proc/cpuinfo").and_then(|text| system::cpu_model(&text)),
            architecture: std::env::consts::ARCH,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            isa: isa(),
            caches: system::caches(),
        },
        memory: memory(),
        transports: transports(),
        rdma: rdma::collect(),
        host: host(host_id),
        limits: limits(),
        config: config.map(|config| values(&config)),
        environment: std::env::vars()
            .filter(|(name, _)| name.starts_with("LINERATE_"))
            .map(|(name, value)| match name == "LINERATE_SECRET" {
                true => (name, "(set, and not shown)".into()),
                false => (name, value),
            })
            .collect(),
    }
}

fn isa() -> Vec<&'static str> {
    #[cfg(target_arch = "x86_64")]
    let found = [
        ("avx2", std::is_x86_feature_detected!("avx2")),
        ("f16c", std::is_x86_feature_detected!("f16c")),
        ("fma", std::is_x86_feature_detected!("fma")),
        ("avx512f", std::is_x86_feature_detected!("avx512f")),
        ("avx512bw", std::is_x86_feature_detected!("avx512bw")),
        ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    #[cfg(not(target_arch = "x86_64"))]
    let found: [(&str, bool); 0] = [];
    let scalar = std::iter::once("scalar");
    let present = found.into_iter().filter(|(_, is_present)| *is_present);
    scalar.chain(present.map(|(name, _)| name)).collect()
}

fn memory() -> Memory {
    let meminfo = system::read("/proc/meminfo").unwrap_or_default();
    let huge = Path::new("/sys/kernel/mm/transparent_hugepage");
    Memory {
        total_bytes: linerate::unstable::memory::meminfo_field(&meminfo, "MemTotal"),
        available_bytes: linerate::unstable::memory::available_memory_bytes(),
        huge_page_bytes: linerate::unstable::memory::meminfo_field(&meminfo, "Hugepagesize"),
        huge_pages_free: linerate::unstable::memory::meminfo_field(&meminfo, "HugePages_Free"),
        transparent_huge_pages: system::read(huge.join("enabled")),
        transparent_huge_pages_shmem: system::read(huge.join("shmem_enabled")),
    }
}

fn transports() -> Vec<Transport> {
    let available = |name: &str, detail: &str| Transport {
        name: name.into(),
        available: true,
        detail: detail.into(),
    };
    let mut transports = vec![
        available(
            "shm",
            &format!(
                "ranks of one host; reading each other's memory: {}",
                cross_memory()
            ),
        ),
        available(
            "sim",
            "a modelled network in virtual time, all ranks in one process",
        ),
        available("tcp", "ranks of any hosts, over connections"),
        verbs(),
        router(),
    ];
    transports.extend(ofi());
    transports
}

/// What libfabric offers: the provider that `ofi` alone takes, and then each by itself.
fn ofi() -> Vec<Transport> {
    let row = |name: &str, available, detail| Transport {
        name: name.into(),
        available,
        detail,
    };
    let listed = linerate::unstable::ofi::list();
    let candidates = match listed {
        Ok((_, candidates)) => candidates,
        Err(error) => return vec![row("ofi", false, error.to_string())],
    };
    let mut rows = match linerate::unstable::ofi::check("") {
        Ok(chosen) => vec![row("ofi", true, chosen)],
        Err(error) => vec![row("ofi", false, error.to_string())],
    };
    for candidate in candidates {
        let name = format!("ofi:{}", candidate.provider);
        let kind = match candidate.is_software {
            true => "software, ",
            false => "",
        };
        let domains = candidate.domains.join(", ");
        let detail = match &candidate.why_not {
            Some(why) => why.clone(),
            None => format!("{kind}domains {domains}"),
        };
        rows.push(row(&name, candidate.why_not.is_none(), detail));
    }
    rows
}

/// Which ports ranks would use, or why they can use none.
fn verbs() -> Transport {
    let (available, detail) = match linerate::unstable::verbs::check("") {
        Ok(choice) => (true, choice.to_string().lines().next().map(String::from)),
        Err(error) => (false, Some(error.to_string())),
    };
    Transport {
        name: "verbs".into(),
        available,
        detail: detail.unwrap_or_default(),
    }
}

/// What `auto` is for ranks of several hosts, as far as this one decides it.
fn router() -> Transport {
    let offer =
        linerate::unstable::transport::own_offer(0, 2, &linerate::transport::Options::default());
    let far = match offer {
        Ok(fabric) => format!("verbs over {fabric}, if every rank has such a device; else tcp"),
        Err(lack) => format!("tcp ({})", lack.why),
    };
    Transport {
        name: "router".into(),
        available: true,
        detail: format!(
            "auto for ranks of several hosts: shared memory within, between hosts {far}"
        ),
    }
}

/// Whether ranks may read each other's memory, as far as that is known without another rank.
fn cross_memory() -> String {
    let byte = match linerate::transport::Region::private(1) {
        Ok(region) => region,
        Err(error) => return error.to_string(),
    };
    if let Err(error) = linerate::unstable::shm::fetch_own(byte.view(), byte.view()) {
        return format!("no (process_vm_readv: {error})");
    }
    let scope = system::read("/proc/sys/kernel/yama/ptrace_scope");
    match scope.as_deref().map(str::trim) {
        None | Some("0") => "yes, those of one user".into(),
        Some(scope) => format!("only with CAP_SYS_PTRACE (kernel.yama.ptrace_scope is {scope})"),
    }
}

/// Where a library is, by any of its names.
pub fn find_library(names: &[&str]) -> Option<String> {
    let folders = LIBRARY_FOLDERS.iter().map(Path::new);
    let mut paths = folders.flat_map(|folder| names.iter().map(move |name| folder.join(name)));
    let found = paths.find(|path| path.exists())?;
    Some(found.display().to_string())
}

/// The id that tells hosts apart: ranks with equal ids share memory.
pub fn host_id(override_id: Option<String>) -> String {
    host(override_id).id
}

fn host(override_id: Option<String>) -> Host {
    let boot_id = system::read("/proc/sys/kernel/random/boot_id");
    let network_namespace = std::fs::read_link("/proc/self/ns/net")
        .ok()
        .map(|link| link.display().to_string());
    let unknown = || "unknown".to_string();
    let own = format!(
        "{} {}",
        boot_id.clone().unwrap_or_else(unknown),
        network_namespace.clone().unwrap_or_else(unknown)
    );
    Host {
        id: override_id.unwrap_or(own),
        boot_id,
        network_namespace,
    }
}

/// Soft limits; `None` is no limit.
fn limits() -> BTreeMap<&'static str, Option<u64>> {
    let soft = |resource| getrlimit(resource).current;
    BTreeMap::from([
        ("nofile", soft(Resource::Nofile)),
        ("memlock_bytes", soft(Resource::Memlock)),
    ])
}

fn values(config: &Config) -> BTreeMap<&'static str, String> {
    let or_auto = |text: &Option<String>| text.clone().unwrap_or_else(|| "auto".into());
    let progress = match config.progress {
        Progress::Auto => "auto",
        Progress::Thread => "thread",
        Progress::Inline => "inline",
    };
    let findings = match &config.findings {
        FindingsFrom::BuiltIn => "off".into(),
        FindingsFrom::Cached(path) | FindingsFrom::Named(path) => path.display().to_string(),
    };
    BTreeMap::from([
        ("LINERATE_TIMEOUT", config.timeout.as_secs_f64().to_string()),
        ("LINERATE_CHUNK_BYTES", config.chunk_bytes.to_string()),
        ("LINERATE_WINDOW_BYTES", config.window_bytes.to_string()),
        ("LINERATE_ALGO", or_auto(&config.algorithm)),
        ("LINERATE_TRANSPORT", config.transport.clone()),
        ("LINERATE_PROGRESS", progress.into()),
        (
            "LINERATE_THREADS",
            config.threads.map_or("auto".into(), |t| t.to_string()),
        ),
        (
            "LINERATE_HUGE_PAGES",
            if config.huge_pages { "auto" } else { "off" }.into(),
        ),
        (
            "LINERATE_CMA",
            match config.cma {
                CrossMemory::Auto => "auto",
                CrossMemory::On => "on",
                CrossMemory::Off => "off",
            }
            .into(),
        ),
        (
            "LINERATE_DEBUG",
            if config.debug { "info" } else { "off" }.into(),
        ),
        ("LINERATE_MODEL", findings),
        ("LINERATE_HOSTID", or_auto(&config.host_id)),
        (
            "LINERATE_REQUIRE",
            match config.job.needs_rdma {
                true => "rdma".into(),
                false => "none".into(),
            },
        ),
        ("LINERATE_IFNAME", or_auto(&config.job.interfaces)),
        ("LINERATE_TCP_RAILS", config.tcp.rails.to_string()),
        (
            "LINERATE_TCP_TIMEOUT",
            config.tcp.timeout.as_secs_f64().to_string(),
        ),
        (
            "LINERATE_INTEGRITY",
            if config.tcp.has_crc { "crc" } else { "off" }.into(),
        ),
        (
            "LINERATE_TLS",
            if config.tcp.has_tls { "on" } else { "off" }.into(),
        ),
        (
            "LINERATE_INSECURE",
            u8::from(config.job.is_insecure).to_string(),
        ),
    ])
}

fn describe(info: &Info) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &dyn Display| {
        let _ = writeln!(text, "{name:<24}{value}");
    };
    let unknown = "unknown".to_string();
    let or_unknown = |value: &Option<String>| value.clone().unwrap_or_else(|| unknown.clone());
    line("linerate", &info.version);
    let cpu = &info.cpu;
    line("cpu", &or_unknown(&cpu.model));
    line("cores", &format!("{} ({})", cpu.cores, cpu.architecture));
    line("kernels may use", &cpu.isa.join(" "));
    for cache in &cpu.caches {
        let name = format!("L{} {}", cache.level, cache.kind.to_lowercase());
        line(&name, &size(Some(cache.bytes)));
    }
    let memory = &info.memory;
    line("memory", &size(memory.total_bytes));
    line("memory available", &size(Some(memory.available_bytes)));
    let pages = memory.huge_pages_free.unwrap_or(0);
    let page = size(memory.huge_page_bytes);
    line("huge pages free", &format!("{pages} of {page}"));
    line(
        "transparent huge",
        &or_unknown(&memory.transparent_huge_pages),
    );
    line(
        "  in shared memory",
        &or_unknown(&memory.transparent_huge_pages_shmem),
    );
    for transport in &info.transports {
        let yes = if transport.available { "yes" } else { "no" };
        let name = format!("transport {}", transport.name);
        line(&format!("{name} "), &format!("{yes}: {}", transport.detail));
    }
    for (name, value) in rdma::describe(&info.rdma) {
        line(&name, &value);
    }
    line("host id", &info.host.id);
    for (name, value) in &info.limits {
        let shown = value.map_or("unlimited".into(), |n| n.to_string());
        line(&format!("limit {name}"), &shown);
    }
    for (name, value) in info.config.iter().flatten() {
        let origin = match info.environment.contains_key(*name) {
            true => "set",
            false => "default",
        };
        line(name, &format!("{value} ({origin})"));
    }
    text
}

fn size(bytes: Option<u64>) -> String {
    match bytes {
        None => "unknown".into(),
        Some(bytes) if bytes >= 10 << 30 => format!("{} GiB", bytes >> 30),
        Some(bytes) if bytes >= 10 << 20 => format!("{} MiB", bytes >> 20),
        Some(bytes) => format!("{} KiB", bytes >> 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_of_the_design_is_named_with_its_state() {
        let text = describe(&collect());
        for expected in [
            "transport shm           yes",
            "transport tcp           yes",
            "transport verbs         ",
            "transport ofi           ",
            "rdma ",
            "reading each other's memory: ",
            "LINERATE_CHUNK_BYTES",
            "LINERATE_CMA",
            "limit nofile",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
    }

    #[test]
    fn a_host_id_can_be_given() {
        assert_eq!(host(Some("blue".into())).id, "blue");
        assert!(host(None).id.contains("net:["));
    }

    #[test]
    fn scalar_kernels_are_always_there() {
        assert_eq!(isa()[0], "scalar");
    }

    #[test]
    fn sizes_have_binary_units() {
        let sizes = [Some(32 << 10), Some(32 << 20), Some(24 << 30), None].map(size);
        assert_eq!(sizes, ["32 KiB", "32 MiB", "24 GiB", "unknown"]);
    }
}
