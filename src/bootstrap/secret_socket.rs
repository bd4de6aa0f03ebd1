//! The secret of a job that was given none. Processes of every user reach a listener on loopback,
//! so rank 0 makes a secret for the job and sends it to the processes of its own user over a Unix
//! socket ([`SecretSocket`]), where the kernel tells both sides whose process the other one is.
//!
//! The socket's name in the abstract namespace is made of the user, the port where rank 0 listens,
//! and the job. Another user may take the name first and keep the job from starting, but neither
//! gets the secret nor is taken for rank 0.

use super::credentials::Credentials;
use super::random::random_bytes;
use super::unix::{connect_to, is_same_user, listen_at};
use crate::error::{Error, Result};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// 256 bits.
const SECRET_BYTES: usize = 32;
/// Rank 0 answers sooner: it polls while it waits for the others.
const ASK_TIME: Duration = Duration::from_secs(2);

/// Rank 0's side.
#[derive(Debug)]
pub(super) struct SecretSocket {
    listener: UnixListener,
    secret: [u8; SECRET_BYTES],
}

impl SecretSocket {
    /// Makes a secret for the job of these credentials, which keep it. Rank 0 listens on this port.
    pub fn open(port: u16, credentials: &Credentials) -> Result<SecretSocket> {
        let what = || format!("opening a Unix socket for the ranks that come to port {port}");
        let secret = random_bytes().map_err(|e| Error::os(what(), e))?;
        let listener = listen_at(&name_of(port, credentials));
        let listener = listener.map_err(|e| Error::os(what(), e))?;
        credentials.take_secret(&secret);
        Ok(SecretSocket { listener, secret })
    }

    /// Sends the secret to the processes that have connected. Does not block. The error is one of
    /// this process: no descriptor is left.
    pub fn poll(&self) -> Result<()> {
        loop {
            match self.listener.accept() {
                Ok((mut stream, _)) if is_same_user(&stream) => {
                    // It fits into the socket. A rank that is gone asks again.
                    let _ = stream.write_all(&self.secret);
                }
                Ok(_) => {}
                Err(e) => match e.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                    _ => return Err(Error::os("handing a rank the secret of the job", e)),
                },
            }
        }
    }
}

impl AsFd for SecretSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Asks rank 0, which listens on this port of loopback, for the secret; whether these credentials
/// have it now.
pub(super) fn ask(port: u16, credentials: &Credentials) -> bool {
    let asked = || -> std::io::Result<Option<[u8; SECRET_BYTES]>> {
        let mut stream = connect_to(&name_of(port, credentials))?;
        if !is_same_user(&stream) {
            return Ok(None);
        }
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(ASK_TIME))?;
        let mut secret = [0; SECRET_BYTES];
        stream.read_exact(&mut secret)?;
        Ok(Some(secret))
    };
    match asked() {
        Ok(Some(secret)) => credentials.take_secret(&secret),
        Ok(None) | Err(_) => return false,
    }
    true
}

fn name_of(port: u16, credentials: &Credentials) -> String {
    let user = rustix::process::geteuid().as_raw();
    let mix = |hash: u64, byte: u8| crate::prng::mix(hash ^ u64::from(byte));
    let job = credentials.job.bytes().fold(credentials.epoch, mix);
    format!("linerate-secret-{user}-{port}-{job:016x}")
}
