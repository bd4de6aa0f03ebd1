//! Settings of how ranks find and trust each other.

use super::field::parse_choice;
use crate::error::{Error, Result};
use std::path::PathBuf;

/// The shortest secret: 128 bits, if it is random.
const SECRET_BYTES_MIN: usize = 16;
/// The longest secret. A longer file is the wrong file.
pub(crate) const SECRET_BYTES_MAX: usize = 4096;

/// What proves that a process belongs to the job: it never travels, and is not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Secret {
    /// No secret: only processes of one user are served, over loopback, unless
    /// [`JobSettings::is_insecure`].
    #[default]
    None,
    /// This text.
    Text(Vec<u8>),
    /// What this file holds, without white space around it.
    File(PathBuf),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Secret::None => f.write_str("None"),
            Secret::Text(_) => f.write_str("Text(..)"),
            Secret::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// Settings of how ranks find and trust each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSettings {
    /// What proves that a rank belongs to the job (*shared*). Default none. `LINERATE_SECRET`, at
    /// least 16 characters, or `LINERATE_SECRET_FILE`, a file that only its owner may read.
    /// `linerate launch` makes one.
    pub secret: Secret,
    /// Serve other hosts without a secret: any process that reaches a port may speak to it. Default
    /// off. `LINERATE_INSECURE=1`.
    pub is_insecure: bool,
    /// Interfaces whose addresses this rank uses, by the beginnings of their names. `=eth0` means
    /// exactly that name; a list that begins with `^` means all other interfaces. Default: the
    /// interface of the route to rank 0. `LINERATE_IFNAME`, such as `eth,ib0`.
    pub interfaces: Option<String>,
    /// Refuse to start unless every rank has an RDMA device that all can use between hosts. Default
    /// off. `LINERATE_REQUIRE=rdma`.
    pub needs_rdma: bool,
}

impl JobSettings {
    /// Settings from named values, such as the process's environment.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<JobSettings> {
        let lookup = |name: &str| lookup(name).filter(|text| !text.is_empty());
        let secret = match (lookup("LINERATE_SECRET"), lookup("LINERATE_SECRET_FILE")) {
            (Some(text), _) => {
                check_secret("LINERATE_SECRET", text.as_bytes())?;
                Secret::Text(text.into_bytes())
            }
            (None, Some(path)) => Secret::File(path.into()),
            (None, None) => Secret::None,
        };
        let zero_or_one = [("0", false), ("1", true)];
        let is_insecure = parse_choice(&lookup, "LINERATE_INSECURE", &zero_or_one)?;
        let needs_rdma = parse_choice(&lookup, "LINERATE_REQUIRE", &[("rdma", true)])?;
        Ok(JobSettings {
            secret,
            is_insecure: is_insecure.unwrap_or(false),
            interfaces: lookup("LINERATE_IFNAME"),
            needs_rdma: needs_rdma.unwrap_or(false),
        })
    }

    /// Checks every field, wherever it was set. What a file holds is checked when it is read.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the field and what is allowed.
    pub fn check(&self) -> Result<()> {
        if self.interfaces.as_deref() == Some("") {
            return Err(Error::invalid(
                "job.interfaces (LINERATE_IFNAME) is empty: the beginnings of names, such as eth,ib0, or None",
            ));
        }
        match &self.secret {
            Secret::Text(text) => check_secret("job.secret (LINERATE_SECRET)", text),
            Secret::None | Secret::File(_) => Ok(()),
        }
    }
}

/// Refuses a secret that is too short, or far too long.
pub(crate) fn check_secret(source: &str, secret: &[u8]) -> Result<()> {
    if (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the secret in {source} has {} characters: {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}, such as the output of `openssl rand -hex 32`",
        secret.len()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<JobSettings> {
        JobSettings::from_lookup(|name| {
            let found = pairs.iter().find(|pair| pair.0 == name);
            found.map(|pair| pair.1.to_string())
        })
    }

    #[test]
    fn a_bad_value_names_its_knob_and_what_is_allowed() {
        for (name, value, allowed) in [
            ("LINERATE_SECRET", "short", "16 to"),
            ("LINERATE_INSECURE", "yes", "0 or 1"),
            ("LINERATE_REQUIRE", "verbs", "rdma"),
        ] {
            let text = settings(&[(name, value)]).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains(allowed), "{text}");
        }
    }

    #[test]
    fn a_secret_comes_from_a_text_or_a_file_and_is_not_printed() {
        let text = "0123456789abcdef";
        let of_text = settings(&[("LINERATE_SECRET", text), ("LINERATE_SECRET_FILE", "f")]);
        let of_text = of_text.unwrap();
        assert_eq!(of_text.secret, Secret::Text(text.into()));
        assert!(!format!("{of_text:?}").contains("0123"));
        let of_file = settings(&[("LINERATE_SECRET", ""), ("LINERATE_SECRET_FILE", "f")]).unwrap();
        assert_eq!(of_file.secret, Secret::File("f".into()));
        assert_eq!(settings(&[]).unwrap(), JobSettings::default());
    }
}
