//! [`Settings`]: what `SOFT_VERBS` asks for.

use crate::faults::{self, Plan};
use crate::profile::Profile;
use std::path::PathBuf;

/// The environment variable.
pub const VARIABLE: &str = "SOFT_VERBS";
/// The longest message that `bytes=none` still moves: a page with headers, by which programs tell
/// each other about the bytes that are not moved.
const CONTROL_BYTES: u64 = 8192;
/// The longest time from post to execution of a request, on a device that keeps no order.
const LAND_NS: u64 = 10_000;
/// Devices of a host.
pub const DEVICES_MAX: usize = 8;

const WORDS: &str = "profile=mlx5|mlx4|irdma|qedr|bnxt|small-cq|no-srq|efa-like, rate=NUMBERgbit|mbit, latency=TIME, mtu=256..4096, \
                     bytes=none|all|NUMBER, map=memfd|none, devices=1..8, memlock=limit|none, host=NAME|each, net=FOLDER";

/// What the devices of this process are like.
#[derive(Clone, Debug)]
pub struct Settings {
    pub profile: &'static Profile,
    /// Bits per nanosecond, which are Gbit/s; `None`: as fast as memory is copied.
    pub gigabits: Option<f64>,
    /// From one port to another, in nanoseconds.
    pub latency_ns: u64,
    pub mtu_bytes: u32,
    /// Longer messages have completions and headers, but their bytes are not moved.
    pub bytes_max: u64,
    /// Whether peers map memory that lies in a memfd.
    pub has_maps: bool,
    pub devices: usize,
    /// Whether registered memory counts as locked (`ulimit -l`), as the kernel counts it.
    pub has_memlock: bool,
    /// Which host this is: ranks of a host share its devices.
    pub host: String,
    /// Where the processes of a network find each other.
    pub folder: PathBuf,
    /// What goes wrong.
    pub plan: Plan,
}

impl Settings {
    /// The settings of the environment.
    pub fn from_env() -> Result<Settings, String> {
        let host = std::env::var("LINERATE_HOSTID").unwrap_or_default();
        let words = std::env::var(VARIABLE).unwrap_or_default();
        Settings::parse(&words, &host)
    }

    /// The settings of a text, on a host of this name.
    pub fn parse(text: &str, host: &str) -> Result<Settings, String> {
        // SAFETY: takes nothing and cannot fail.
        let user = unsafe { libc::geteuid() };
        let mut settings = Settings {
            profile: Profile::named("mlx5").expect("it is there"),
            gigabits: None,
            latency_ns: 0,
            mtu_bytes: 4096,
            bytes_max: u64::MAX,
            has_maps: true,
            devices: 1,
            has_memlock: false,
            host: if host.is_empty() { "local" } else { host }.into(),
            folder: format!("/dev/shm/soft-verbs-{user}").into(),
            plan: Plan::default(),
        };
        for word in text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            settings.take(word).ok_or_else(|| {
                let faults = faults::WORDS;
                format!(
                    "{VARIABLE} has the word {word:?}, which is none of: {WORDS}, {faults}; TIME is NUMBERms|us|ns"
                )
            })?;
        }
        if settings.profile.is_datagrams && settings.plan.land_ns == 0 {
            settings.plan.land_ns = LAND_NS;
        }
        Ok(settings)
    }

    fn take(&mut self, word: &str) -> Option<()> {
        let (name, value) = word.split_once('=')?;
        match name {
            "profile" => self.profile = Profile::named(value)?,
            "rate" => self.gigabits = Some(scaled(value, &[("gbit", 1.0), ("mbit", 1e-3)])?),
            "latency" => self.latency_ns = time_of(value)?,
            "mtu" => {
                let bytes = value.parse().ok()?;
                let is_one = (8..=12).any(|power| bytes == 1u32 << power);
                self.mtu_bytes = is_one.then_some(bytes)?;
            }
            "bytes" => {
                self.bytes_max = match value {
                    "none" => CONTROL_BYTES,
                    "all" => u64::MAX,
                    number => number.parse().ok()?,
                }
            }
            "map" => {
                self.has_maps = match value {
                    "memfd" => true,
                    "none" => false,
                    _ => return None,
                }
            }
            "devices" => {
                let count = value.parse().ok()?;
                self.devices = (1..=DEVICES_MAX).contains(&count).then_some(count)?;
            }
            "memlock" => {
                self.has_memlock = match value {
                    "limit" => true,
                    "none" => false,
                    _ => return None,
                }
            }
            // Every process has a host, and so a wire, of its own.
            "host" if value == "each" => self.host = format!("process {}", std::process::id()),
            "host" if !value.is_empty() => self.host = value.into(),
            "net" if value.starts_with('/') => self.folder = value.into(),
            _ => self.plan.take(name, value)?,
        }
        Some(())
    }
}

/// A time in nanoseconds.
pub fn time_of(text: &str) -> Option<u64> {
    let nanoseconds = scaled(text, &[("ms", 1e6), ("us", 1e3), ("ns", 1.0)])?;
    Some(nanoseconds as u64)
}

/// A whole number from 1 on.
pub fn number_of(text: &str) -> Option<u64> {
    text.parse().ok().filter(|number| *number > 0)
}

/// A number above 0 with one of these units.
fn scaled(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(unit, factor)| {
        let number = text.strip_suffix(unit)?;
        Some((number, factor))
    })?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number > 0.0).then_some(number * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_in_any_order() {
        let text = "rate=100gbit, latency=2us,mtu=1024,bytes=none,profile=mlx4,devices=2,host=a";
        let settings = Settings::parse(text, "b").unwrap();
        assert_eq!(settings.gigabits, Some(100.0));
        assert_eq!((settings.latency_ns, settings.mtu_bytes), (2000, 1024));
        assert_eq!((settings.bytes_max, settings.devices), (8192, 2));
        assert_eq!((settings.profile.name, &*settings.host), ("mlx4", "a"));
        assert_eq!(Settings::parse("", "b").unwrap().host, "b");
        assert_eq!(
            Settings::parse("rate=500mbit", "").unwrap().gigabits,
            Some(0.5)
        );
    }

    #[test]
    fn a_word_that_is_none_is_named() {
        for word in [
            "speed=1",
            "rate=100",
            "rate=0gbit",
            "mtu=1000",
            "devices=9",
            "map=all",
            "host=",
            "net=x",
            "faults=many",
            "break=0",
            "down=3",
            "down=3+2",
            "purge=late",
        ] {
            let error = Settings::parse(&format!("mtu=256,{word}"), "").unwrap_err();
            assert!(
                error.contains(word) && error.contains("profile="),
                "{error}"
            );
        }
    }
}
