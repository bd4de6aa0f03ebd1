//! Rendezvous of the ranks of one host: rank 0 serves a Unix socket in the abstract namespace, each
//! rank introduces itself, and each gets the blobs of all.
//!
//! Processes of other users are refused. Nothing stays on any file system.

use super::contact::CONTACT_BYTES_MAX;
use crate::config::differing_settings;
use crate::error::{Error, Result};
use crate::limits::RANKS_MAX;
use crate::time::Time;
use crate::types::Rank;
use crate::wait::Clock;
use crate::wire::cut_text;
use rustix::net::RecvFlags;
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
/// A peer that connects says its whole introduction at once; one that does not is no peer.
const INTRODUCTION_TIME: Duration = Duration::from_secs(2);
const RETRY: Duration = Duration::from_millis(2);
/// Ranks that have come are looked at this often, in case one ends while others are waited for.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long ranks that have not come yet are told of a failure: a launcher starts hundreds of
/// processes in that time.
const TELL_TIME: Duration = Duration::from_secs(5);
/// What a header says of its sender: it goes on, or it cannot and the blob is the reason.
const JOINS: u32 = 0;
const DECLINES: u32 = 1;

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
    let address = address_of(job)?;
    let deadline = clock.now().after(timeout);
    if own.rank == 0 {
        serve(own, job, &address, deadline, clock)
    } else {
        ask(own, job, &address, deadline, clock)
    }
}

/// This rank cannot take part: tells the others, as far as they can be reached soon, and gives the
/// error back.
pub fn decline(rank: Rank, ranks: u32, job: &str, error: Error, clock: &Clock) -> Error {
    let deadline = clock.now().after(TELL_TIME);
    let text = format!("rank {rank} cannot take part: {error}");
    let Ok(address) = address_of(job) else {
        return error;
    };
    if rank == 0 && ranks > 1 {
        if let Ok(listener) = listen(job, &address) {
            tell_everyone(&listener, Vec::new(), ranks - 1, &text, deadline, clock);
        }
    } else if ranks > 1 {
        let own = Introduction {
            rank,
            ranks,
            fingerprint: 0,
            blob: cut_text(&text, CONTACT_BYTES_MAX).into(),
        };
        // Rank 0 may be gone or never come; then it needs no reason.
        if let Ok(mut stream) = reach(rank, job, &address, deadline, clock) {
            let _ = stream.write_all(&emit_introduction(&own, DECLINES));
        }
    }
    error
}

fn address_of(job: &str) -> Result<SocketAddr> {
    let name = format!("linerate-job-{}-{job}", rustix::process::geteuid().as_raw());
    SocketAddr::from_abstract_name(name.as_bytes())
        .map_err(|e| Error::Bootstrap(format!("job name '{job}': {e}; use at most 60 characters")))
}

/// Ranks that have come.
type Streams = Vec<Option<UnixStream>>;

fn serve(
    own: &Introduction,
    job: &str,
    address: &SocketAddr,
    deadline: Time,
    clock: &Clock,
) -> Result<Vec<Vec<u8>>> {
    let listener = listen(job, address)?;
    let mut streams: Streams = (0..own.ranks).map(|_| None).collect();
    let mut blobs: Vec<Vec<u8>> = vec![Vec::new(); own.ranks as usize];
    blobs[0].clone_from(&own.blob);
    let gathered = gather(
        own,
        job,
        &listener,
        (&mut streams, &mut blobs),
        deadline,
        clock,
    );
    if let Err((error, culprit)) = gathered {
        let told: Vec<UnixStream> = streams.into_iter().flatten().chain(culprit).collect();
        // Those that have not come in time do not come now.
        let wait = if clock.now() >= deadline {
            clock.now()
        } else {
            clock.now().after(TELL_TIME)
        };
        tell_everyone(
            &listener,
            told,
            own.ranks - 1,
            &error.to_string(),
            wait,
            clock,
        );
        return Err(error);
    }
    let table = emit_table(&blobs);
    let mut gone = None;
    for (rank, stream) in streams.iter().enumerate() {
        let Some(mut stream) = stream.as_ref() else {
            continue;
        };
        match &gone {
            None => {
                let written = stream.write_all(&table);
                gone = written
                    .err()
                    .map(|e| Error::Bootstrap(format!("rank {rank} left during bootstrap: {e}")));
            }
            Some(error) => refuse(stream, &error.to_string()),
        }
    }
    if let Some(error) = gone {
        return Err(error);
    }
    Ok(blobs)
}

fn listen(job: &str, address: &SocketAddr) -> Result<UnixListener> {
    let listener = UnixListener::bind_addr(address).map_err(|e| match e.kind() {
        ErrorKind::AddrInUse => Error::Bootstrap(format!(
            "job '{job}' is already running on this host; give this one another name (LINERATE_JOB) or another MASTER_PORT"
        )),
        _ => Error::os(format!("listening for the ranks of job '{job}'"), e),
    })?;
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::os("preparing the rendezvous socket", e))?;
    Ok(listener)
}

/// Waits until every rank has introduced itself. With an error comes the connection that caused it,
/// to be told.
fn gather(
    own: &Introduction,
    job: &str,
    listener: &UnixListener,
    (streams, blobs): (&mut Streams, &mut [Vec<u8>]),
    deadline: Time,
    clock: &Clock,
) -> std::result::Result<(), (Error, Option<UnixStream>)> {
    let mut missing = own.ranks - 1;
    let mut look_at = clock.now();
    while missing > 0 {
        match listener.accept() {
            Ok((stream, _)) => {
                let Some((stream, peer, kind)) = hear(stream) else {
                    continue;
                };
                if kind == DECLINES {
                    let text = String::from_utf8_lossy(&peer.blob).into_owned();
                    return Err((Error::Bootstrap(text), Some(stream)));
                }
                let known = streams.get(peer.rank as usize).is_some_and(Option::is_some);
                if let Err(error) = check(own, &peer, known) {
                    return Err((error, Some(stream)));
                }
                streams[peer.rank as usize] = Some(stream);
                blobs[peer.rank as usize] = peer.blob;
                missing -= 1;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                let now = clock.now();
                if now >= deadline {
                    return Err((absent(own, job, streams), None));
                }
                if now >= look_at {
                    look_at = now.after(LOOK_EVERY);
                    check_alive(streams).map_err(|error| (error, None))?;
                }
                std::thread::sleep(RETRY);
            }
            Err(e) => return Err((Error::os("rank 0 cannot let a rank in", e), None)),
        }
    }
    check_alive(streams).map_err(|error| (error, None))
}

/// Who has not come, and who has.
fn absent(own: &Introduction, job: &str, streams: &Streams) -> Error {
    let (mut absent, mut waiting) = (Vec::new(), vec![0]);
    for (rank, stream) in streams.iter().enumerate().skip(1) {
        match stream {
            Some(_) => waiting.push(rank),
            None => absent.push(rank),
        }
    }
    Error::Bootstrap(format!(
        "ranks {absent:?} of job '{job}' did not come in time; ranks {waiting:?} came and waited for them; are all {} ranks started?",
        own.ranks
    ))
}

/// An error if a rank that has introduced itself has ended since.
fn check_alive(streams: &Streams) -> Result<()> {
    for (rank, stream) in streams.iter().enumerate() {
        let Some(stream) = stream else {
            continue;
        };
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        // A rank says nothing after its introduction, so all there can be is the end.
        if !matches!(
            rustix::net::recv(stream, &mut [0u8; 1], flags),
            Err(rustix::io::Errno::AGAIN)
        ) {
            return Err(Error::Bootstrap(format!(
                "rank {rank} failed while others were waited for: its process ended; see what it printed"
            )));
        }
    }
    Ok(())
}

/// Tells the reason of a failure to the ranks that have come, and until `deadline` to those that
/// come: `wanted` ranks in all.
fn tell_everyone(
    listener: &UnixListener,
    come: Vec<UnixStream>,
    wanted: u32,
    text: &str,
    deadline: Time,
    clock: &Clock,
) {
    let mut told = come.len();
    // One after another and closed at once: descriptors may be what is missing.
    come.into_iter().for_each(|stream| refuse(&stream, text));
    while told < wanted as usize {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some((stream, _, kind)) = hear(stream) {
                    told += 1;
                    if kind == JOINS {
                        refuse(&stream, text);
                    }
                }
            }
            Err(_) if clock.now() >= deadline => return,
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

/// Reads the introduction of a process that has connected; `None`: it is no rank of this user.
fn hear(stream: UnixStream) -> Option<(UnixStream, Introduction, u32)> {
    if !is_same_user(&stream) {
        return None;
    }
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(INTRODUCTION_TIME)).ok()?;
    let mut header = [0u8; HEADER_BYTES];
    (&stream).read_exact(&mut header).ok()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    let bytes = word(16) as usize;
    if &header[..8] != MAGIC || bytes > CONTACT_BYTES_MAX {
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
        word(20),
    ))
}

/// Whether the process at the other end is this user's.
pub(super) fn is_same_user(stream: &UnixStream) -> bool {
    crate::transport::shm::is_same_user(stream.as_fd()).unwrap_or(false)
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
        let (theirs, own) = (peer.fingerprint, own.fingerprint);
        return Err(differing_settings(peer.rank, theirs, own));
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
    let mut stream = reach(own.rank, job, address, deadline, clock)?;
    let lost = |e: std::io::Error| {
        let cause = match e.kind() {
            ErrorKind::UnexpectedEof => "it closed the connection".to_string(),
            _ => e.to_string(),
        };
        Error::Bootstrap(format!(
            "rank {} lost rank 0 of job '{job}' during bootstrap: {cause}; see what rank 0 printed",
            own.rank
        ))
    };
    let introduced = stream.write_all(&emit_introduction(own, JOINS));
    // Rank 0 gives up at the deadline and says who is missing; its answer is waited for a little
    // longer.
    let patience = deadline.since(clock.now()) + INTRODUCTION_TIME;
    stream.set_read_timeout(Some(patience)).map_err(lost)?;
    // Where rank 0 was quicker to refuse, its reason is there to be read.
    parse_table(&mut stream, own.ranks).map_err(|e| match e {
        TableError::Lost(e) => lost(introduced.err().unwrap_or(e)),
        TableError::Refused(text) => Error::Bootstrap(text),
    })
}

/// Connects to rank 0, which may come later.
fn reach(
    rank: Rank,
    job: &str,
    address: &SocketAddr,
    deadline: Time,
    clock: &Clock,
) -> Result<UnixStream> {
    loop {
        match UnixStream::connect_addr(address) {
            Ok(stream) => return Ok(stream),
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error()) => {
                return Err(Error::os("connecting to rank 0", e));
            }
            Err(e) if clock.now() >= deadline => {
                return Err(Error::Bootstrap(format!(
                    "rank {rank} did not find rank 0 of job '{job}' in time ({e}); is rank 0 started on this host, with the same job name?"
                )));
            }
            Err(_) => std::thread::sleep(RETRY),
        }
    }
}

fn emit_introduction(own: &Introduction, kind: u32) -> Vec<u8> {
    let mut hello = Vec::with_capacity(HEADER_BYTES + own.blob.len());
    hello.extend(MAGIC);
    for word in [own.rank, own.ranks, own.blob.len() as u32, kind] {
        hello.extend(word.to_le_bytes());
    }
    hello.extend(own.fingerprint.to_le_bytes());
    hello.extend(&own.blob);
    hello
}

/// Answers instead of a table: a count of zero and the reason.
fn refuse(mut stream: &UnixStream, text: &str) {
    let text = cut_text(text, CONTACT_BYTES_MAX);
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
    if bytes > CONTACT_BYTES_MAX {
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
#[path = "local_tests.rs"]
mod tests;
