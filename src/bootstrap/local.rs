//! Rendezvous of the ranks of one host: rank 0 serves a Unix socket in the abstract namespace, everyone
//! introduces itself, and everyone gets the blobs of all.
//!
//! Only processes of the same user are heard. Nothing stays on any file system.

use crate::engine::Clock;
use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::time::Time;
use crate::types::Rank;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::time::Duration;

/// What a rank says of itself.
#[derive(Clone, Debug)]
pub struct Introduction {
    /// Its rank.
    pub rank: Rank,
    /// How many ranks it believes there are.
    pub ranks: u32,
    /// Settings that must be equal everywhere (see [`crate::Config::shared_fingerprint`]).
    pub fingerprint: u64,
    /// What the others need to reach it.
    pub blob: Vec<u8>,
}

const MAGIC: &[u8; 8] = b"lnrtbs01";
const HEADER_BYTES: usize = 32;
/// Largest blob: an address and some keys.
pub(super) const BLOB_BYTES_MAX: usize = 4096;
/// A peer that connects says its whole introduction at once; one that does not is no peer.
const INTRODUCTION_TIME: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(2);

/// Carries every rank's blob to every rank of the job; returns them by rank.
pub fn exchange(
    own: &Introduction,
    job: &str,
    timeout: Duration,
    clock: &Clock,
) -> Result<Vec<Vec<u8>>> {
    if own.ranks == 1 {
        return Ok(vec![own.blob.clone()]);
    }
    let name = format!("linerate-job-{}-{job}", rustix::process::geteuid().as_raw());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).map_err(|e| {
        Error::Bootstrap(format!("job name '{job}': {e}; use at most 60 characters"))
    })?;
    let deadline = clock.now().after(timeout);
    if own.rank == 0 {
        serve(own, job, &address, deadline, clock)
    } else {
        ask(own, job, &address, deadline, clock)
    }
}

fn serve(
    own: &Introduction,
    job: &str,
    address: &SocketAddr,
    deadline: Time,
    clock: &Clock,
) -> Result<Vec<Vec<u8>>> {
    let listener = UnixListener::bind_addr(address).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => Error::Bootstrap(format!(
            "job '{job}' is already running on this host; give this one another name (LINERATE_JOB) or another MASTER_PORT"
        )),
        _ => Error::os(format!("listening for the ranks of job '{job}'"), e),
    })?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::os("preparing the rendezvous socket", e))?;
    let mut streams: Vec<Option<UnixStream>> = (0..own.ranks).map(|_| None).collect();
    let mut blobs: Vec<Vec<u8>> = vec![Vec::new(); own.ranks as usize];
    blobs[0].clone_from(&own.blob);
    let mut missing = own.ranks - 1;
    while missing > 0 {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some((stream, peer)) = hear(stream) else {
                    continue;
                };
                let known = streams.get(peer.rank as usize).is_some_and(Option::is_some);
                if let Err(error) = check(own, &peer, known) {
                    let text = error.to_string();
                    let everyone = streams.iter().flatten().chain([&stream]);
                    everyone.for_each(|s| refuse(s, &text));
                    return Err(error);
                }
                streams[peer.rank as usize] = Some(stream);
                blobs[peer.rank as usize] = peer.blob;
                missing -= 1;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if clock.now() >= deadline {
                    let absent: Vec<usize> = (1..streams.len())
                        .filter(|&r| streams[r].is_none())
                        .collect();
                    let error = Error::Bootstrap(format!(
                        "ranks {absent:?} of job '{job}' did not come in time; are all {} ranks started?",
                        own.ranks
                    ));
                    streams
                        .iter()
                        .flatten()
                        .for_each(|s| refuse(s, &error.to_string()));
                    return Err(error);
                }
                std::thread::sleep(RETRY);
            }
            Err(e) => return Err(Error::os("accepting a rank", e)),
        }
    }
    let table = emit_table(&blobs);
    for (rank, stream) in streams.iter_mut().enumerate() {
        if let Some(stream) = stream {
            stream
                .write_all(&table)
                .map_err(|e| Error::Bootstrap(format!("rank {rank} left during bootstrap: {e}")))?;
        }
    }
    Ok(blobs)
}

/// Reads the introduction of whoever has connected; `None`: a stranger.
fn hear(stream: UnixStream) -> Option<(UnixStream, Introduction)> {
    if !is_same_user(&stream) {
        return None;
    }
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(INTRODUCTION_TIME)).ok()?;
    let mut header = [0u8; HEADER_BYTES];
    (&stream).read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let bytes = word(16) as usize;
    if &header[..8] != MAGIC || bytes > BLOB_BYTES_MAX {
        return None;
    }
    let mut blob = vec![0; bytes];
    (&stream).read_exact(&mut blob).ok()?;
    let fingerprint = u64::from_le_bytes(std::array::from_fn(|i| header[24 + i]));
    Some((
        stream,
        Introduction {
            rank: word(8),
            ranks: word(12),
            fingerprint,
            blob,
        },
    ))
}

/// Whether the process at the other end is this user's.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    rustix::net::sockopt::socket_peercred(stream.as_fd())
        .is_ok_and(|credentials| credentials.uid == rustix::process::geteuid())
}

fn check(own: &Introduction, peer: &Introduction, is_known: bool) -> Result<()> {
    if peer.ranks != own.ranks || peer.rank >= own.ranks {
        return Err(Error::Bootstrap(format!(
            "rank 0 expects {} ranks, and somebody came as rank {} of {}",
            own.ranks, peer.rank, peer.ranks
        )));
    }
    if is_known || peer.rank == 0 {
        return Err(Error::Bootstrap(format!(
            "two processes say that they are rank {}",
            peer.rank
        )));
    }
    if peer.fingerprint != own.fingerprint {
        return Err(Error::Bootstrap(format!(
            "rank {} has other settings than rank 0: LINERATE_CHUNK_BYTES, LINERATE_WINDOW_BYTES and LINERATE_ALGO must be equal on all ranks",
            peer.rank
        )));
    }
    Ok(())
}

fn ask(
    own: &Introduction,
    job: &str,
    address: &SocketAddr,
    deadline: Time,
    clock: &Clock,
) -> Result<Vec<Vec<u8>>> {
    let mut stream = loop {
        match UnixStream::connect_addr(address) {
            Ok(stream) => break stream,
            Err(e) if clock.now() >= deadline => {
                return Err(Error::Bootstrap(format!(
                    "rank {} did not find rank 0 of job '{job}' in time ({e}); is rank 0 started on this host, with the same job name?",
                    own.rank
                )));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    };
    let mut hello = Vec::with_capacity(HEADER_BYTES + own.blob.len());
    hello.extend(MAGIC);
    for word in [own.rank, own.ranks, own.blob.len() as u32, 0] {
        hello.extend(word.to_le_bytes());
    }
    hello.extend(own.fingerprint.to_le_bytes());
    hello.extend(&own.blob);
    let lost = |e: std::io::Error| {
        Error::Bootstrap(format!(
            "rank {} lost rank 0 of job '{job}' during bootstrap: {e}; see what rank 0 printed",
            own.rank
        ))
    };
    stream.write_all(&hello).map_err(lost)?;
    // Rank 0 gives up at the deadline and says who is missing; its answer is waited for a little longer.
    let patience = deadline.since(clock.now()) + INTRODUCTION_TIME;
    stream.set_read_timeout(Some(patience)).map_err(lost)?;
    parse_table(&mut stream, own.ranks).map_err(|e| match e {
        TableError::Lost(e) => lost(e),
        TableError::Refused(text) => Error::Bootstrap(text),
    })
}

/// Answers instead of a table: a count of zero and the reason.
fn refuse(mut stream: &UnixStream, text: &str) {
    let mut answer = 0u32.to_le_bytes().to_vec();
    answer.extend((text.len() as u32).to_le_bytes());
    answer.extend(text.as_bytes());
    // A rank that is gone does not need the reason.
    let _ = stream.write_all(&answer);
}

fn emit_table(blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut table = (blobs.len() as u32).to_le_bytes().to_vec();
    for blob in blobs {
        table.extend((blob.len() as u32).to_le_bytes());
        table.extend(blob);
    }
    table
}

enum TableError {
    Lost(std::io::Error),
    Refused(String),
}

fn parse_table(
    stream: &mut impl Read,
    ranks: u32,
) -> std::result::Result<Vec<Vec<u8>>, TableError> {
    let count = read_word(stream).map_err(TableError::Lost)?;
    if count == 0 {
        let text = read_blob(stream).map_err(TableError::Lost)?;
        return Err(TableError::Refused(
            String::from_utf8_lossy(&text)
                .trim_start_matches("bootstrap: ")
                .to_string(),
        ));
    }
    if count != ranks || count > RANKS_MAX {
        return Err(TableError::Refused(format!(
            "rank 0 serves {count} ranks, this one expects {ranks}"
        )));
    }
    (0..count)
        .map(|_| read_blob(stream))
        .collect::<std::io::Result<_>>()
        .map_err(TableError::Lost)
}

fn read_word(stream: &mut impl Read) -> std::io::Result<u32> {
    let mut word = [0; 4];
    stream.read_exact(&mut word)?;
    Ok(u32::from_le_bytes(word))
}

fn read_blob(stream: &mut impl Read) -> std::io::Result<Vec<u8>> {
    let bytes = read_word(stream)? as usize;
    if bytes > BLOB_BYTES_MAX {
        return Err(std::io::Error::new(
            ErrorKind::InvalidData,
            format!("a blob of {bytes} bytes"),
        ));
    }
    let mut blob = vec![0; bytes];
    stream.read_exact(&mut blob)?;
    Ok(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(job: &str, places: &[(Rank, u32, u64)], timeout: Duration) -> Vec<Result<Vec<Vec<u8>>>> {
        let job = format!("{job}-{}", std::process::id());
        std::thread::scope(|scope| {
            let threads: Vec<_> = places
                .iter()
                .map(|&(rank, ranks, fingerprint)| {
                    let own = Introduction {
                        rank,
                        ranks,
                        fingerprint,
                        blob: vec![rank as u8; rank as usize + 1],
                    };
                    let job = &job;
                    scope.spawn(move || exchange(&own, job, timeout, &Clock::monotonic()))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        })
    }

    #[test]
    fn everyone_gets_the_blobs_of_all() {
        let results = run(
            "all",
            &[(0, 3, 1), (1, 3, 1), (2, 3, 1)],
            Duration::from_secs(10),
        );
        for result in results {
            assert_eq!(result.unwrap(), [vec![0], vec![1, 1], vec![2, 2, 2]]);
        }
    }

    #[test]
    fn a_missing_rank_is_named_to_everyone() {
        let results = run(
            "missing",
            &[(0, 3, 1), (2, 3, 1)],
            Duration::from_millis(200),
        );
        for result in results {
            let text = result.unwrap_err().to_string();
            assert!(text.contains("ranks [1]"), "{text}");
        }
    }

    #[test]
    fn different_settings_and_double_ranks_are_refused() {
        let texts = |places: &[(Rank, u32, u64)], job| -> Vec<String> {
            let results = run(job, places, Duration::from_secs(10));
            results
                .into_iter()
                .map(|r| r.unwrap_err().to_string())
                .collect()
        };
        for text in texts(&[(0, 2, 1), (1, 2, 9)], "settings") {
            assert!(text.contains("LINERATE_CHUNK_BYTES"), "{text}");
        }
        for text in texts(&[(0, 2, 1), (1, 3, 1)], "sizes") {
            assert!(text.contains("rank 1 of 3"), "{text}");
        }
    }

    #[test]
    fn a_job_name_in_use_says_so() {
        let name = format!("taken-{}", std::process::id());
        let own = Introduction {
            rank: 0,
            ranks: 2,
            fingerprint: 0,
            blob: vec![],
        };
        std::thread::scope(|scope| {
            let first = scope
                .spawn(|| exchange(&own, &name, Duration::from_millis(600), &Clock::monotonic()));
            std::thread::sleep(Duration::from_millis(200));
            let text = exchange(&own, &name, Duration::from_secs(1), &Clock::monotonic())
                .unwrap_err()
                .to_string();
            assert!(text.contains("LINERATE_JOB"), "{text}");
            assert!(first.join().unwrap().is_err());
        });
    }
}
