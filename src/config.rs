//! Settings. Every knob: default, range, effect, and when one would change it.
//!
//! Reads no environment by itself: [`Config::from_lookup`] is told how to look a name up.

mod field;
mod job;
mod tcp;
mod verbs;

pub use field::parse_size;
pub use job::{JobSettings, Secret};
pub(crate) use job::{SECRET_BYTES_MAX, check_secret};
pub(crate) use tcp::tls_without_secret;
pub use tcp::{RAILS_MAX, TcpSettings};
pub use verbs::VerbsSettings;

use crate::error::{Error, Result};
use crate::limits;
use crate::types::Rank;
use field::{Field, parse_choice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

const UNIT: u64 = limits::CACHE_LINE_BYTES as u64;
const CHUNK_BYTES: Field = Field {
    unit: UNIT,
    ..Field::new("chunk_bytes", "LINERATE_CHUNK_BYTES", (4 << 10, 64 << 20))
};
const WINDOW_BYTES: Field = Field {
    unit: UNIT,
    ..Field::new(
        "window_bytes",
        "LINERATE_WINDOW_BYTES",
        (
            limits::WINDOW_BYTES_MIN as u64,
            limits::WINDOW_BYTES_MAX as u64,
        ),
    )
};
const THREADS: Field = Field::new("threads", "LINERATE_THREADS", (1, 64));

/// Settings of a communicator. All ranks must use the same values of the fields marked *shared*:
/// they are compared at bootstrap.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How long an operation may stand still before it fails. Default 60 s. `LINERATE_TIMEOUT`,
    /// seconds.
    pub timeout: Duration,
    /// Bytes per chunk (*shared*). Default 256 KiB (over `tcp`, 512 KiB), 4 KiB to 64 MiB, a
    /// multiple of 64. Raise it where a message costs more than the copy of its bytes.
    /// `LINERATE_CHUNK_BYTES`.
    pub chunk_bytes: usize,
    /// Bytes of one window slot (*shared*), the unit in which memory that is not registered is
    /// staged. Default 256 KiB; where ranks share memory and a rank has several threads, 512 KiB
    /// for each thread. 16 KiB to 16 MiB, a multiple of 64. `LINERATE_WINDOW_BYTES`.
    pub window_bytes: usize,
    /// Algorithm by name for every operation (*shared*); `None` lets the cost model choose.
    /// `LINERATE_ALGO`.
    pub algorithm: Option<String>,
    /// Transport by name; `auto` takes shared memory where all ranks share a host.
    /// `LINERATE_TRANSPORT`.
    pub transport: String,
    /// Whether a thread moves operations while the application computes. Default `auto`.
    /// `LINERATE_PROGRESS=auto|thread|inline`.
    pub progress: Progress,
    /// Ask for huge pages for registered memory of 2 MiB and more. Default on; where the kernel has
    /// none, it takes small ones. Off where memory is so fragmented that looking for huge pages
    /// takes longer than they save. `LINERATE_HUGE_PAGES=auto|off`.
    pub huge_pages: bool,
    /// Threads that share a copy or a reduction of 512 KiB and more, the calling one included. 1
    /// to 64. Default: the cores that the process may use, divided by the ranks of this host, at
    /// least 1 and at most 4. Set it where ranks are bound to several cores each, which the default
    /// cannot see. The results are the same bits. `LINERATE_THREADS`.
    pub threads: Option<usize>,
    /// Whether ranks of one host read messages of memory that is not registered out of each other's
    /// address spaces (cross-memory attach, `process_vm_readv`) instead of staging them. Default
    /// `auto`: where the kernel lets both ranks read each other, and a measurement of a
    /// millisecond, made when the rank joins, finds it faster than staging. `on`: wherever the
    /// kernel lets them. `off`: never, for a debugger or another tool that must not see such reads.
    /// It concerns messages of 32 KiB and more; collectives through windows are staged all the
    /// same. `LINERATE_CMA=auto|on|off`.
    pub cma: CrossMemory,
    /// Print what was chosen and why. Default off. `LINERATE_DEBUG=info|off`.
    pub debug: bool,
    /// Where the findings are that correct the choice of algorithms. Default the built-in ones; all
    /// ranks use those of rank 0. `LINERATE_MODEL`: a file, or `off` for the built-in ones; if it
    /// is not set, `linerate/model` in `XDG_CACHE_HOME` or in `~/.cache`. It is written by
    /// `linerate explain --calibrate`.
    pub findings: FindingsFrom,
    /// Overrides the identity of the host; ranks with equal ones use shared memory.
    /// `LINERATE_HOSTID`.
    pub host_id: Option<String>,
    /// Settings of the `tcp` transport.
    pub tcp: TcpSettings,
    /// Settings of the `verbs` transport.
    pub verbs: VerbsSettings,
    /// How ranks find and trust each other.
    pub job: JobSettings,
}

/// What moves operations that have been started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// As [`Progress::Thread`], from the first operation that is started on, if this host has more
    /// cores than ranks of the job; else as [`Progress::Inline`].
    Auto,
    /// A thread, so that operations advance while the application computes: one for all
    /// communicators that were made from one another. It sleeps while nothing is under way, and
    /// overlaps well even where every core has a rank, if computing takes long compared with an
    /// operation. It costs a hand-over for each operation: two ranks on two cores of an AMD EPYC
    /// (Zen 5) took 1.6 us for starting an allreduce of 8 bytes and waiting at once, 0.9 us with
    /// [`Progress::Inline`]; from 64 KiB on both took equally long.
    Thread,
    /// The calls of the application alone: operations advance inside `wait`, `test` and other calls
    /// only.
    Inline,
}

/// Whether ranks read out of each other's address spaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossMemory {
    /// Where it is allowed and faster.
    Auto,
    /// Where it is allowed.
    On,
    /// Never.
    Off,
}

/// Where the findings come from that correct the choice by the cost model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FindingsFrom {
    /// Those of the library.
    BuiltIn,
    /// A file that need not be there.
    Cached(PathBuf),
    /// A file that the user has named.
    Named(PathBuf),
}

impl Default for Config {
    fn default() -> Config {
        Config {
            timeout: Duration::from_secs(60),
            chunk_bytes: limits::CHUNK_BYTES_DEFAULT,
            window_bytes: limits::WINDOW_BYTES_DEFAULT,
            algorithm: None,
            transport: "auto".into(),
            progress: Progress::Auto,
            huge_pages: true,
            threads: None,
            cma: CrossMemory::Auto,
            debug: false,
            findings: FindingsFrom::BuiltIn,
            host_id: None,
            tcp: TcpSettings::default(),
            verbs: VerbsSettings::default(),
            job: JobSettings::default(),
        }
    }
}

impl Config {
    /// The settings of the environment (`LINERATE_...`), with the default for each that it does not
    /// set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: a value out of its range, with the range.
    pub fn from_env() -> Result<Config> {
        Config::from_lookup(|name| std::env::var(name).ok())
    }

    /// The settings of the environment with some changes: values by the names that they have there.
    /// A value of `None` means the default, whatever the environment says.
    ///
    /// ```
    /// use linerate::Config;
    /// let config = Config::from_settings([("LINERATE_TIMEOUT", Some("60"))])?;
    /// assert_eq!(config.timeout.as_secs(), 60);
    /// let text = Config::from_settings([("TIMEOUT", Some("60"))]).unwrap_err().to_string();
    /// assert!(text.contains("LINERATE_TIMEOUT"), "a name that is not known: the text has all of them");
    /// # Ok::<(), linerate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`]: there is no setting of a name, or a value is out of its range.
    pub fn from_settings<'a>(
        changes: impl IntoIterator<Item = (&'a str, Option<&'a str>)>,
    ) -> Result<Config> {
        let changes: BTreeMap<&str, Option<&str>> = changes.into_iter().collect();
        let asked = RefCell::new(BTreeSet::new());
        let config = Config::from_lookup(|name| {
            asked.borrow_mut().insert(name.to_owned());
            match changes.get(name) {
                Some(value) => value.map(str::to_owned),
                None => std::env::var(name).ok(),
            }
        });
        // A bad value ends the look-ups, so its error comes first: `asked` does not have all names.
        let config = config?;
        let mut known = asked.into_inner();
        known.retain(|name| name.starts_with("LINERATE_"));
        match changes.keys().find(|name| !known.contains(**name)) {
            None => Ok(config),
            Some(name) => Err(Error::invalid(format!(
                "there is no setting '{name}': one of {}",
                Vec::from_iter(known).join(" ")
            ))),
        }
    }

    /// Settings from named values, such as the process's environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config> {
        let mut config = Config::default();
        if let Some(text) = lookup("LINERATE_TIMEOUT") {
            config.timeout = parse_timeout("LINERATE_TIMEOUT", &text)?;
        }
        if let Some(text) = lookup("LINERATE_CHUNK_BYTES") {
            config.chunk_bytes = CHUNK_BYTES.parse_size(&text)? as usize;
        }
        if let Some(text) = lookup("LINERATE_WINDOW_BYTES") {
            config.window_bytes = WINDOW_BYTES.parse_size(&text)? as usize;
        }
        config.algorithm =
            lookup("LINERATE_ALGO").filter(|name| !name.is_empty() && name != "auto");
        if let Some(name) = lookup("LINERATE_TRANSPORT").filter(|name| !name.is_empty()) {
            config.transport = name;
        }
        let progress = [
            ("auto", Progress::Auto),
            ("thread", Progress::Thread),
            ("inline", Progress::Inline),
        ];
        config.progress =
            parse_choice(&lookup, "LINERATE_PROGRESS", &progress)?.unwrap_or(config.progress);
        if let Some(text) = lookup("LINERATE_THREADS").filter(|text| !text.is_empty()) {
            config.threads = Some(THREADS.parse(&text)? as usize);
        }
        let huge_pages = [("auto", true), ("off", false)];
        config.huge_pages =
            parse_choice(&lookup, "LINERATE_HUGE_PAGES", &huge_pages)?.unwrap_or(config.huge_pages);
        let cma = [
            ("auto", CrossMemory::Auto),
            ("on", CrossMemory::On),
            ("off", CrossMemory::Off),
        ];
        config.cma = parse_choice(&lookup, "LINERATE_CMA", &cma)?.unwrap_or(config.cma);
        if let Some(text) = lookup("LINERATE_DEBUG") {
            config.debug = match text.to_ascii_lowercase().as_str() {
                "info" | "debug" | "trace" | "1" => true,
                "" | "off" | "error" | "warn" | "0" => false,
                _ => {
                    let text = format!("LINERATE_DEBUG is '{text}': info, or off");
                    return Err(Error::invalid(text));
                }
            };
        }
        config.findings = findings_from(&lookup);
        config.host_id = lookup("LINERATE_HOSTID").filter(|id| !id.is_empty());
        config.tcp = TcpSettings::from_lookup(&lookup)?;
        config.verbs = VerbsSettings::from_lookup(&lookup)?;
        config.job = JobSettings::from_lookup(&lookup)?;
        Ok(config)
    }

    /// Checks every field, wherever it was set. Every way to make a communicator begins with this.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        field::check_timeout("timeout (LINERATE_TIMEOUT)", self.timeout)?;
        CHUNK_BYTES.check(self.chunk_bytes as u64)?;
        WINDOW_BYTES.check(self.window_bytes as u64)?;
        THREADS.check_some(self.threads)?;
        self.tcp.check()?;
        self.verbs.check()?;
        self.job.check()
    }

    /// The shared fields, compared between ranks at bootstrap: the two lowest bits are switches,
    /// the rest is a hash.
    pub fn shared_fingerprint(&self) -> u64 {
        let mut hash = crate::prng::mix(self.chunk_bytes as u64);
        hash = crate::prng::mix(hash ^ self.window_bytes as u64);
        for byte in self.algorithm.as_deref().unwrap_or("").bytes() {
            hash = crate::prng::mix(hash ^ u64::from(byte));
        }
        hash << 2 | u64::from(self.tcp.has_tls) << 1 | u64::from(self.tcp.has_crc)
    }
}

/// The error of a rank whose fingerprint differs from that of rank 0.
pub(crate) fn differing_settings(rank: Rank, theirs: u64, heads: u64) -> Error {
    let words = [
        (1, "LINERATE_TLS", "on (--tls)"),
        (0, "LINERATE_INTEGRITY", "crc (--integrity crc)"),
    ];
    let differs = |bit: &u32| (theirs ^ heads) >> bit & 1 == 1;
    Error::Bootstrap(match words.iter().find(|(bit, _, _)| differs(bit)) {
        Some((bit, name, on)) => {
            let word = |print: u64| if print >> bit & 1 == 1 { on } else { "off" };
            format!(
                "rank {rank} has {name}={}, rank 0 {}: all ranks need the same",
                word(theirs),
                word(heads)
            )
        }
        None => format!(
            "rank {rank} has other settings than rank 0: LINERATE_CHUNK_BYTES, LINERATE_WINDOW_BYTES and LINERATE_ALGO must be equal on all ranks"
        ),
    })
}

fn findings_from(lookup: &impl Fn(&str) -> Option<String>) -> FindingsFrom {
    let path = |name| lookup(name).filter(|text| !text.is_empty());
    match path("LINERATE_MODEL") {
        Some(text) if text == "off" => FindingsFrom::BuiltIn,
        Some(text) => FindingsFrom::Named(text.into()),
        None => {
            let of_home = || path("HOME").map(|home| PathBuf::from(home).join(".cache"));
            let cache = path("XDG_CACHE_HOME").map(PathBuf::from).or_else(of_home);
            cache.map_or(FindingsFrom::BuiltIn, |folder| {
                FindingsFrom::Cached(folder.join("linerate").join("model"))
            })
        }
    }
}

/// The time, if an operation may wait that long.
pub(crate) fn checked_timeout(timeout: Duration) -> Result<Duration> {
    field::check_timeout("the timeout of an operation", timeout)?;
    Ok(timeout)
}

/// Parses seconds: a decimal number above zero.
pub fn parse_timeout(name: &str, text: &str) -> Result<Duration> {
    let seconds = text.parse().ok();
    let timeout = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let timeout = timeout.filter(|timeout| field::check_timeout(name, *timeout).is_ok());
    timeout.ok_or_else(|| field::refuse_timeout(name, &format!("'{text}'")))
}

#[cfg(test)]
mod bounds_tests;

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &'static str, value: &'static str) -> Result<Config> {
        Config::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn sizes_take_binary_suffixes_and_nothing_else() {
        assert_eq!(parse_size("64K").unwrap(), 65536);
        assert_eq!(parse_size("1g").unwrap(), 1 << 30);
        assert_eq!(parse_size("8").unwrap(), 8);
        for bad in [
            "",
            "K",
            "-1",
            "1.5M",
            "8Q",
            "99999999999999999999",
            "18446744073709551615G",
        ] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bad_value_names_its_knob_and_the_range() {
        let text = config("LINERATE_CHUNK_BYTES", "100")
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("LINERATE_CHUNK_BYTES") && text.contains("4096"),
            "{text}"
        );
        assert!(config("LINERATE_TIMEOUT", "0").is_err());
        assert!(config("LINERATE_TIMEOUT", "nan").is_err());
        assert!(config("LINERATE_PROGRESS", "maybe").is_err());
        for bad in ["0", "65", "many"] {
            let text = config("LINERATE_THREADS", bad).unwrap_err().to_string();
            assert!(
                text.contains("LINERATE_THREADS") && text.contains("64"),
                "{text}"
            );
        }
        assert_eq!(config("LINERATE_THREADS", "3").unwrap().threads, Some(3));
        let text = config("LINERATE_CMA", "yes").unwrap_err().to_string();
        assert!(text.contains("LINERATE_CMA") && text.contains("auto"));
        for (text, cma) in [
            ("", CrossMemory::Auto),
            ("on", CrossMemory::On),
            ("off", CrossMemory::Off),
        ] {
            assert_eq!(config("LINERATE_CMA", text).unwrap().cma, cma);
        }
        assert!(config("LINERATE_HUGE_PAGES", "on").is_err());
        assert!(!config("LINERATE_HUGE_PAGES", "off").unwrap().huge_pages);
        assert!(
            config("LINERATE_DEBUG", "inf")
                .unwrap_err()
                .to_string()
                .contains("LINERATE_DEBUG")
        );
        assert!(config("LINERATE_DEBUG", "info").unwrap().debug);
        assert_eq!(config("LINERATE_TRANSPORT", "").unwrap().transport, "auto");
        assert_eq!(
            config("LINERATE_TIMEOUT", "0.5").unwrap().timeout,
            Duration::from_millis(500)
        );
    }

    #[test]
    fn findings_are_named_cached_or_built_in() {
        let list = |name, value| config(name, value).unwrap().findings;
        assert_eq!(list("LINERATE_MODEL", "off"), FindingsFrom::BuiltIn);
        assert_eq!(list("LINERATE_MODEL", "m"), FindingsFrom::Named("m".into()));
        let cached = |path: &str| FindingsFrom::Cached(path.into());
        assert_eq!(list("XDG_CACHE_HOME", "/c"), cached("/c/linerate/model"));
        assert_eq!(list("HOME", "/h"), cached("/h/.cache/linerate/model"));
        assert_eq!(list("OTHER", ""), FindingsFrom::BuiltIn);
    }

    #[test]
    fn the_fingerprint_sees_shared_fields_only() {
        let base = Config::default();
        let mut other = base.clone();
        other.timeout = Duration::from_secs(1);
        assert_eq!(base.shared_fingerprint(), other.shared_fingerprint());
        other.chunk_bytes *= 2;
        assert_ne!(base.shared_fingerprint(), other.shared_fingerprint());
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let base = Config::default();
        let print = |change: fn(&mut Config)| {
            let mut other = base.clone();
            change(&mut other);
            other.shared_fingerprint()
        };
        let own = base.shared_fingerprint();
        let tls = print(|c| c.tcp.has_tls = true);
        let text = differing_settings(3, tls, own).to_string();
        let named = ["rank 3", "LINERATE_TLS=on (--tls)", "rank 0 off"];
        assert!(named.iter().all(|name| text.contains(name)), "{text}");
        let text = differing_settings(3, own, print(|c| c.tcp.has_crc = true)).to_string();
        let named = ["LINERATE_INTEGRITY=off", "rank 0 crc"];
        assert!(named.iter().all(|name| text.contains(name)), "{text}");
        let text = differing_settings(3, print(|c| c.window_bytes *= 2), own).to_string();
        assert!(text.contains("LINERATE_WINDOW_BYTES"), "{text}");
    }
}
