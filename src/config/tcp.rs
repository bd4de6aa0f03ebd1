//! Settings of the `tcp` transport.

use super::field::{Field, check_timeout, parse_choice};
use crate::error::{Error, Result};
use std::net::IpAddr;
use std::time::Duration;

/// Connections to one peer, at most: more cost memory and gain nothing.
pub const RAILS_MAX: u32 = 16;

const RAILS: Field = Field::new("tcp.rails", "LINERATE_TCP_RAILS", (1, RAILS_MAX as u64));
const PACE: Field = Field::new(
    "tcp.pace_bits_per_second",
    "LINERATE_TCP_PACE",
    (1000, 1_000_000_000_000_000),
);

/// Settings of the `tcp` transport.
#[derive(Clone, PartialEq, Eq)]
pub struct TcpSettings {
    /// Connections to each peer, over which long messages and puts are spread. Default 1, at most
    /// 16; more where one connection does not fill the network, or where there are several
    /// interfaces. `LINERATE_TCP_RAILS`.
    pub rails: u32,
    /// What proves that a rank belongs to the job (*shared*). None: only loopback is served. A
    /// communicator takes it from [`super::JobSettings`].
    pub secret: Option<Vec<u8>>,
    /// Serve other hosts without a secret: any process that reaches a port may speak to it. Default
    /// off. A communicator takes it from [`super::JobSettings`].
    pub is_insecure: bool,
    /// A CRC32C for every frame (*shared*), against changes of bytes that the checksums of TCP do
    /// not see. Default off. `LINERATE_INTEGRITY=crc|off`.
    pub has_crc: bool,
    /// Encrypt every connection with TLS 1.3, with keys that only holders of the job's secret have
    /// (*shared*). Needs a secret. Default off: it takes the time of encrypting every byte on both
    /// sides. Turn it on where others can reach the network. `LINERATE_TLS=on|off`.
    pub has_tls: bool,
    /// A connection is given up when the kernel of the other side has been silent for this time,
    /// and a peer that cannot be reached for this time has failed. Default 20 s;
    /// `LINERATE_TCP_TIMEOUT`, seconds.
    pub timeout: Duration,
    /// The most bits per second that this rank sends, over all its connections: it shows on fast
    /// links how a job runs on slow ones. From 1000 up; default no limit. `LINERATE_TCP_PACE`, such
    /// as `1gbit`, `2.5gbit`, `100mbit`.
    pub pace_bits_per_second: Option<u64>,
    /// Report what usually does not matter, such as options that the kernel refuses. A communicator
    /// takes it from [`super::Config::debug`].
    pub is_debugging: bool,
    /// Addresses of this host on which to listen. None: loopback.
    pub addresses: Vec<IpAddr>,
}

impl std::fmt::Debug for TcpSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TcpSettings")
            .field("rails", &self.rails)
            .field("has_secret", &self.secret.is_some())
            .field("is_insecure", &self.is_insecure)
            .field("has_crc", &self.has_crc)
            .field("has_tls", &self.has_tls)
            .field("timeout", &self.timeout)
            .field("pace_bits_per_second", &self.pace_bits_per_second)
            .field("is_debugging", &self.is_debugging)
            .field("addresses", &self.addresses)
            .finish()
    }
}

impl Default for TcpSettings {
    fn default() -> TcpSettings {
        TcpSettings {
            rails: 1,
            secret: None,
            is_insecure: false,
            has_crc: false,
            has_tls: false,
            timeout: Duration::from_secs(20),
            pace_bits_per_second: None,
            is_debugging: false,
            addresses: Vec::new(),
        }
    }
}

impl TcpSettings {
    /// Settings from named values, such as the process's environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<TcpSettings> {
        let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let mut settings = TcpSettings::default();
        if let Some(text) = lookup("LINERATE_TCP_RAILS") {
            settings.rails = RAILS.parse(&text)? as u32;
        }
        let integrity = [("crc", true), ("off", false)];
        settings.has_crc =
            parse_choice(&lookup, "LINERATE_INTEGRITY", &integrity)?.unwrap_or(false);
        let on_or_off = [("on", true), ("off", false)];
        settings.has_tls = parse_choice(&lookup, "LINERATE_TLS", &on_or_off)?.unwrap_or(false);
        if let Some(text) = lookup("LINERATE_TCP_TIMEOUT") {
            settings.timeout = super::parse_timeout("LINERATE_TCP_TIMEOUT", &text)?;
        }
        if let Some(text) = lookup("LINERATE_TCP_PACE") {
            settings.pace_bits_per_second = Some(parse_pace(&text)?);
        }
        Ok(settings)
    }

    /// Checks every field, wherever it was set.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field, its value and what is allowed.
    pub fn check(&self) -> Result<()> {
        RAILS.check(self.rails.into())?;
        PACE.check_some(self.pace_bits_per_second)?;
        if let Some(secret) = &self.secret {
            super::check_secret("tcp.secret", secret)?;
        }
        check_timeout("tcp.timeout (LINERATE_TCP_TIMEOUT)", self.timeout)
    }
}

/// Bits per second: a number with kbit, mbit or gbit (powers of 1000).
fn parse_pace(text: &str) -> Result<u64> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let parse = |(unit, factor): &(&str, f64)| {
        let number: f64 = text.strip_suffix(unit)?.parse().ok()?;
        let bits = number * factor;
        (PACE.least as f64..=PACE.most as f64)
            .contains(&bits)
            .then_some(bits as u64)
    };
    units.iter().find_map(parse).ok_or_else(|| {
        Error::invalid(format!(
            "LINERATE_TCP_PACE is '{text}': a number with kbit, mbit or gbit, at least 1kbit, such as 1gbit"
        ))
    })
}

/// The error of TLS without a secret, from which its keys come.
pub(crate) fn tls_without_secret() -> Error {
    Error::invalid(
        "LINERATE_TLS=on (--tls) without a secret, of which keys are made, lets anybody stand between two ranks: set LINERATE_SECRET (or LINERATE_SECRET_FILE) to the same secret on all ranks, such as the output of `openssl rand -hex 32`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(name: &'static str, value: &'static str) -> Result<TcpSettings> {
        TcpSettings::from_lookup(|asked| (asked == name).then(|| value.to_string()))
    }

    #[test]
    fn a_bad_value_names_its_knob_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("LINERATE_TCP_RAILS", "0", "16"),
            ("LINERATE_TCP_RAILS", "17", "16"),
            ("LINERATE_INTEGRITY", "md5", "crc or off"),
            ("LINERATE_TLS", "1.2", "on or off"),
            ("LINERATE_TCP_TIMEOUT", "-1", "seconds"),
            ("LINERATE_TCP_PACE", "1000000", "gbit"),
            ("LINERATE_TCP_PACE", "0gbit", "at least 1kbit"),
            ("LINERATE_TCP_PACE", "nangbit", "gbit"),
        ] {
            let text = settings(name, value).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(allowed), "{text}");
        }
    }

    #[test]
    fn good_values_are_taken_and_a_secret_is_not_printed() {
        assert_eq!(settings("LINERATE_TCP_RAILS", "4").unwrap().rails, 4);
        assert!(settings("LINERATE_INTEGRITY", "crc").unwrap().has_crc);
        assert!(settings("LINERATE_TLS", "on").unwrap().has_tls);
        assert!(!settings("LINERATE_TLS", "off").unwrap().has_tls);
        let pace = settings("LINERATE_TCP_PACE", "2.5gbit").unwrap();
        assert_eq!(pace.pace_bits_per_second, Some(2_500_000_000));
        let secret = TcpSettings {
            secret: Some(b"0123456789abcdef".to_vec()),
            ..TcpSettings::default()
        };
        assert!(!format!("{secret:?}").contains("012345"));
        assert_eq!(settings("OTHER", "").unwrap(), TcpSettings::default());
    }
}
