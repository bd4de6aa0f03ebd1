//! Deaths at a place of the program, not of the clock: a process ends itself as soon as it finds
//! that something has happened.
#![allow(unsafe_code)]

use rustix::process::Signal;
use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Where `tcpi_bytes_sent` lies in the kernel's `tcp_info`.
const BYTES_SENT_AT: usize = 200;

/// When a rank dies, and how, as `LINERATE_TEST_LAST` says it: a step, and nothing or a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fate {
    /// After its submit.
    AtOnce,
    /// When this many more bytes have left it through connections.
    Sent(u64),
    /// When it has begun to recover from an earlier death: that opens descriptors.
    Recovering,
}

/// The step and the fate of this rank.
pub fn from_text(text: &str) -> Option<(usize, Fate)> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let (step, word) = text.split_at(digits.unwrap_or(text.len()));
    let fate = match word.strip_prefix("sent") {
        Some(bytes) => Fate::Sent(bytes.parse().unwrap()),
        None if word == "recovering" => Fate::Recovering,
        None => Fate::AtOnce,
    };
    Some((step.parse().ok()?, fate))
}

/// Meets this fate from now on, if it is not at once.
pub fn meet(fate: Fate) {
    match fate {
        Fate::AtOnce => {}
        Fate::Sent(bytes) => {
            let before = bytes_sent();
            die_when(move || bytes_sent() >= before + bytes);
        }
        Fate::Recovering => {
            let before = targets();
            die_when(move || !targets().is_subset(&before));
        }
    }
}

/// Ends this process without a word.
pub fn die() -> ! {
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
    unreachable!("it is dead")
}

fn die_when(has_happened: impl Fn() -> bool + Send + 'static) {
    let begun = Instant::now();
    std::thread::spawn(move || {
        while !has_happened() {
            if begun.elapsed() > Duration::from_secs(30) {
                println!("what this rank should have died of has not happened");
                std::process::exit(9);
            }
            std::thread::yield_now();
        }
        die()
    });
}

fn descriptors() -> Vec<RawFd> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let number =
        |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    all.filter_map(number).collect()
}

/// What the descriptors of this process lead to: a number is used again, what it leads to is not.
fn targets() -> BTreeSet<PathBuf> {
    let all = descriptors().into_iter();
    all.filter_map(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).ok())
        .collect()
}

/// Bytes that all connections of this process have sent.
fn bytes_sent() -> u64 {
    descriptors().into_iter().map(bytes_sent_through).sum()
}

fn bytes_sent_through(descriptor: RawFd) -> u64 {
    let mut info = [0u8; 256];
    let mut bytes = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to the array; a descriptor that is none, or
    // not of a connection, is an error, which leaves it alone.
    let result = unsafe {
        libc::getsockopt(
            descriptor,
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut bytes,
        )
    };
    let sent = &info[BYTES_SENT_AT..BYTES_SENT_AT + 8];
    match result {
        0 => u64::from_ne_bytes(sent.try_into().unwrap()),
        _ => 0,
    }
}
