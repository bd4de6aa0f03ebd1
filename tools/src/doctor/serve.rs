//! `linerate doctor --serve`: answers the doctors of other hosts.
//!
//! It answers each line with its version, the time, and a free port on which it listens as well. It
//! tells nothing else, and does nothing with what it reads.

use linerate_job::output;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest question.
const LINE_BYTES_MAX: u64 = 256;
/// Questions of one visitor, and the time that it has for each. Others wait meanwhile.
const QUESTIONS_MAX: usize = 16;
const PATIENCE: Duration = Duration::from_secs(1);

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Version of the command.
    pub version: String,
    /// Time, ns since 1970.
    pub unix_ns: u64,
    /// A port that the kernel has chosen.
    pub free_port: u16,
}

/// Now, ns since 1970.
pub fn unix_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_nanos() as u64)
}

/// Answers until the process ends.
pub fn run(port: u16) -> Result<(), String> {
    let listen = |port: u16| {
        let places: [SocketAddr; 2] = [
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ];
        TcpListener::bind(&places[..]).map_err(|cause| {
            format!("cannot listen on port {port}: {cause}; another one with --port, here and where --peers is given")
        })
    };
    let (listener, free) = (listen(port)?, listen(0)?);
    let port_of = |listener: &TcpListener| listener.local_addr().map_or(0, |place| place.port());
    let (port, free_port) = (port_of(&listener), port_of(&free));
    output::print_text(&format!(
        "# telling version and time to anybody, on ports {port} and {free_port}; on the other hosts: linerate doctor --peers THIS-HOST:{port}\n"
    ))?;
    std::thread::spawn(move || answer_all(&free, free_port));
    answer_all(&listener, free_port);
    Ok(())
}

fn answer_all(listener: &TcpListener, free_port: u16) {
    for visitor in listener.incoming().flatten() {
        // A visitor that goes away or says nothing is no failure of ours.
        let _ = answer(visitor, free_port);
    }
}

fn answer(stream: TcpStream, free_port: u16) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    for _ in 0..QUESTIONS_MAX {
        let mut line = Vec::new();
        (&mut reader)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(());
        }
        let answer = Answer {
            version: env!("CARGO_PKG_VERSION").into(),
            unix_ns: unix_ns(),
            free_port,
        };
        let text = serde_json::to_string(&answer)? + "\n";
        reader.get_ref().write_all(text.as_bytes())?;
    }
    Ok(())
}
