//! What launchers of MPI programs offer a process, as far as ranks need it to find each other:
//! [`Pmix`], the client library of PMIx (Open MPI, PRRTE, Slurm) found at run time, and
//! [`inherited_stream`], the descriptor of PMI-1 (MPICH's hydra).
//!
//! Nothing is linked: a machine without PMIx gets an error that says where it was looked for.
#![allow(unsafe_code)]

mod pmix;

pub use pmix::Pmix;

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// A descriptor that this process was started with, as a stream of bytes of its own: the original
/// stays open and unused. `None`: there is no such descriptor.
pub fn inherited_stream(number: RawFd) -> Option<UnixStream> {
    if number < 0 {
        return None;
    }
    // SAFETY: fcntl takes any number; one that is no descriptor gives EBADF. The copy belongs to
    // nobody else.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: `copy` was made above, is open, and this is its only owner.
    (copy >= 0).then(|| UnixStream::from(unsafe { OwnedFd::from_raw_fd(copy) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    #[test]
    fn a_descriptor_is_copied_and_no_descriptor_is_none() {
        let (here, mut there) = UnixStream::pair().unwrap();
        let mut copy = inherited_stream(here.as_raw_fd()).unwrap();
        copy.write_all(b"pmi").unwrap();
        drop((copy, here));
        let mut text = String::new();
        there.read_to_string(&mut text).unwrap();
        assert_eq!(text, "pmi");
        assert!(inherited_stream(-1).is_none());
        assert!(inherited_stream(1 << 29).is_none());
    }
}
