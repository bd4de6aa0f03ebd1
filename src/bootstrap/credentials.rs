//! [`Credentials`]: what ranks prove to each other, and where the secret comes from.

use super::random::random_bytes;
use crate::config::{JobSettings, SECRET_BYTES_MAX, Secret, check_secret, tls_without_secret};
use crate::error::{Error, Result};
use crate::wire::{JobKey, NONCE_BYTES};
use std::io::Read;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

/// A bit of the detail that ranks with TLS set.
pub(super) const DETAIL_TLS: u64 = 1 << 62;

/// What proves that this process belongs to the job.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    secret: OnceLock<Vec<u8>>,
    /// The job's name.
    pub job: String,
    pub epoch: u64,
    /// Whether other hosts may be served: there is a secret, or none is wanted.
    pub is_open: bool,
    /// Whether connections are encrypted.
    pub has_tls: bool,
}

impl Credentials {
    /// The credentials of this job, by the settings.
    pub fn new(
        settings: &JobSettings,
        has_tls: bool,
        job: &str,
        epoch: u64,
    ) -> Result<Credentials> {
        let secret = read_secret(&settings.secret)?;
        if has_tls && secret.is_none() {
            return Err(tls_without_secret());
        }
        Ok(Credentials {
            is_open: secret.is_some() || settings.is_insecure,
            secret: secret.unwrap_or_default().into(),
            job: job.into(),
            epoch,
            has_tls,
        })
    }

    /// These credentials, for ranks that meet over TCP. Without a secret the job's name is not
    /// enough there: rank 0 makes a secret and sends it to the others ([`super::secret_socket`]).
    pub fn for_meeting(mut self) -> Credentials {
        if !self.is_open {
            self.secret = OnceLock::new();
        }
        self
    }

    /// Takes the secret that rank 0 has made.
    pub fn take_secret(&self, secret: &[u8]) {
        // The first one stays: connections may have been made with it.
        let _ = self.secret.set(secret.into());
    }

    /// The secret that rank 0 has made, if these were given none.
    pub fn made_secret(&self) -> Option<Vec<u8>> {
        self.secret.get().filter(|_| !self.is_open).cloned()
    }

    /// What both sides prove to have; `None` until rank 0 has sent it.
    pub fn key(&self) -> Option<JobKey> {
        let secret = self.secret.get()?;
        Some(JobKey::derive(secret, self.job.as_bytes()))
    }

    /// [`Claim::detail`](crate::wire::Claim::detail) of a connection for this.
    pub fn detail(&self, purpose: u64) -> u64 {
        purpose | if self.has_tls { DETAIL_TLS } else { 0 }
    }

    /// A number that is used once.
    pub fn nonce(&self) -> std::io::Result<[u8; NONCE_BYTES]> {
        random_bytes()
    }

    /// An error if listening there would admit anybody.
    pub fn check_may_serve(&self, ip: IpAddr) -> Result<()> {
        if self.is_open || super::link::is_loopback(ip) {
            return Ok(());
        }
        Err(Error::Bootstrap(format!(
            "listening on {ip} without a secret would let anybody in: set LINERATE_SECRET (or LINERATE_SECRET_FILE) to the same secret on all ranks, such as the output of `openssl rand -hex 32`, or say LINERATE_INSECURE=1"
        )))
    }
}

/// The secret's bytes. A file that others may read is refused: they know the secret.
pub fn read_secret(secret: &Secret) -> Result<Option<Vec<u8>>> {
    match secret {
        Secret::None => Ok(None),
        Secret::Text(text) => Ok(Some(text.clone())),
        Secret::File(path) => read_secret_file(path).map(Some),
    }
}

fn read_secret_file(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let what = || format!("reading LINERATE_SECRET_FILE {shown}");
    let file = std::fs::File::open(path).map_err(|e| Error::os(what(), e))?;
    let mode = file.metadata().map_err(|e| Error::os(what(), e))?.mode();
    if mode & 0o077 != 0 {
        return Err(Error::invalid(format!(
            "LINERATE_SECRET_FILE {shown} may be read or written by other users (mode {:03o}): `chmod 600 {shown}`",
            mode & 0o777
        )));
    }
    let mut text = Vec::new();
    let limit = SECRET_BYTES_MAX as u64 + 2;
    file.take(limit)
        .read_to_end(&mut text)
        .map_err(|e| Error::os(what(), e))?;
    let secret = text.trim_ascii().to_vec();
    check_secret(&shown.to_string(), &secret)?;
    Ok(secret)
}
