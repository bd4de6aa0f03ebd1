//! Settings of the `tcp` transport.

use crate::error::{Error, Result};
use std::net::IpAddr;
use std::time::Duration;

/// Connections to one peer, at most: more cost memory and gain nothing.
pub const RAILS_MAX: u32 = 16;

/// Settings of the `tcp` transport.
#[derive(Clone, PartialEq, Eq)]
pub struct TcpSettings {
    /// Connections to each peer, over which long messages and puts are spread. Default 1, at most 16; more where one
    /// connection does not fill the network, or where there are several interfaces. `LINERATE_TCP_RAILS`.
    pub rails: u32,
    /// What proves that a rank belongs to the job (*shared*). None: only loopback is served. A communicator takes it from
    /// [`super::JobSettings`].
    pub secret: Option<Vec<u8>>,
    /// Serve other hosts without a secret: whoever reaches a port may speak to it. Default off. A communicator takes it from
    /// [`super::JobSettings`].
    pub is_insecure: bool,
    /// A CRC32C for every frame (*shared*), against what changes bytes behind the checksums of TCP. Default off.
    /// `LINERATE_INTEGRITY=crc|off`.
    pub has_crc: bool,
    /// Encrypt every connection with TLS 1.3, with keys that only holders of the job's secret have (*shared*). Needs a
    /// secret. Default off: it takes the time of encrypting every byte on both sides. On where others can reach the wires.
    /// `LINERATE_TLS=on|off`.
    pub has_tls: bool,
    /// A connection whose other side's kernel has been silent for so long is given up, and a peer that cannot be reached
    /// for so long has failed. Default 20 s; `LINERATE_TCP_TIMEOUT`, seconds.
    pub timeout: Duration,
    /// Say what usually does not matter, such as options that the kernel refuses. A communicator takes it from
    /// [`super::Config::debug`].
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
            is_debugging: false,
            addresses: Vec::new(),
        }
    }
}

impl TcpSettings {
    /// Settings from named values, such as the process's environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<TcpSettings> {
        let lookup = |name| lookup(name).filter(|text| !text.is_empty());
        let mut settings = TcpSettings::default();
        if let Some(text) = lookup("LINERATE_TCP_RAILS") {
            let rails = text.parse().ok().filter(|n| (1..=RAILS_MAX).contains(n));
            settings.rails = rails.ok_or_else(|| {
                Error::invalid(format!("LINERATE_TCP_RAILS is '{text}': 1 to {RAILS_MAX}"))
            })?;
        }
        if let Some(text) = lookup("LINERATE_INTEGRITY") {
            settings.has_crc = match text.as_str() {
                "crc" => true,
                "off" => false,
                _ => {
                    let text = format!("LINERATE_INTEGRITY is '{text}': crc or off");
                    return Err(Error::invalid(text));
                }
            };
        }
        if let Some(text) = lookup("LINERATE_TLS") {
            settings.has_tls = match text.as_str() {
                "on" => true,
                "off" => false,
                _ => {
                    let text = format!("LINERATE_TLS is '{text}': on or off");
                    return Err(Error::invalid(text));
                }
            };
        }
        if let Some(text) = lookup("LINERATE_TCP_TIMEOUT") {
            settings.timeout = super::parse_timeout("LINERATE_TCP_TIMEOUT", &text)?;
        }
        Ok(settings)
    }
}

/// Keys come from the secret.
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
        let secret = TcpSettings {
            secret: Some(b"0123456789abcdef".to_vec()),
            ..TcpSettings::default()
        };
        assert!(!format!("{secret:?}").contains("012345"));
        assert_eq!(settings("OTHER", "").unwrap(), TcpSettings::default());
    }
}
