//! The connection that a client makes first. Over it, as lines of JSON over TCP, both sides agree
//! on options and exchange addresses and results.
//!
//! It begins with a proof of the secret (`proof.rs`). Without a secret that proves nothing, so a
//! server is reached from its own host only, unless it was told otherwise.

use super::arena::Keys;
use super::link::Link;
use super::proof;
use super::statistics::{Flow, Latency};
use linerate::unstable::wait::Spent;
use linerate::unstable::wire::JobKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Longest line: an address is the longest thing in one.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// How long a new connection may take, all in all, to prove itself and to send its greeting: other
/// clients wait meanwhile.
pub const GREETING: Duration = Duration::from_secs(5);
/// Characters of an unexpected line that are shown.
const SHOWN_MAX: usize = 200;
/// Between two attempts to reach a server that is about to start.
const ATTEMPT_PAUSE: Duration = Duration::from_millis(20);

/// What is said.
#[derive(Debug, Serialize, Deserialize)]
pub enum Line {
    /// The client begins.
    Hello {
        /// Version of the command, which is that of the protocol.
        version: String,
        /// The client's host, as far as shared memory is concerned.
        host: String,
        /// What it wants, as `Options`. They are parsed when the version is known, because another
        /// version has others.
        options: Value,
    },
    /// The server refuses, with the reason; the connection ends.
    Refused(String),
    /// The server agrees, with this transport.
    Accepted {
        /// Its name: `auto` is decided by the server, which knows both hosts.
        transport: String,
    },
    /// Where the transport of a side is reached.
    Address(Vec<u8>),
    /// The keys of its memory.
    Keys(Keys),
    /// What a side has measured of one size.
    Report {
        /// Bytes that were not as sent.
        wrong: u64,
        /// What it has posted.
        flow: Option<Flow>,
        /// Its times.
        latency: Option<Latency>,
        /// What its time went to, if that was to be measured.
        spent: Option<Spent>,
    },
    /// Nothing more will come.
    Done,
}

impl Line {
    /// The complaint about a line that may not come here.
    pub fn unexpected(&self) -> String {
        let text: String = format!("{self:?}").chars().take(SHOWN_MAX).collect();
        format!("the other side said {text} where it may not")
    }
}

/// The connection, from either side.
pub struct Control {
    reader: BufReader<Timed>,
    peer: SocketAddr,
    /// What one line may take, either way.
    timeout: Duration,
}

/// A stream whose reads and writes must all end by a given time, so that a peer that sends a byte
/// now and then cannot hold the server for longer.
struct Timed {
    stream: TcpStream,
    until: Instant,
}

impl Timed {
    fn left(&self) -> std::io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for Timed {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(room)
    }
}

impl Write for Timed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.stream.flush()
    }
}

/// Waits for clients. `port` 0 is any.
pub fn listen(port: u16, is_open: bool) -> Result<TcpListener, String> {
    let places: Vec<SocketAddr> = match is_open {
        // Both families at once, where the host has both.
        true => vec![
            (Ipv6Addr::UNSPECIFIED, port).into(),
            (Ipv4Addr::UNSPECIFIED, port).into(),
        ],
        false => vec![(Ipv4Addr::LOCALHOST, port).into()],
    };
    TcpListener::bind(&places[..]).map_err(|cause| {
        format!(
            "cannot listen on {} port {port}: {cause}; another port with --port, on both sides",
            places[0].ip()
        )
    })
}

impl Control {
    /// The next client that says something sensible within `greeting`, and what it says. Others are
    /// complained about.
    pub fn accept(
        listener: &TcpListener,
        key: &JobKey,
        (greeting, timeout): (Duration, Duration),
        mut complain: impl FnMut(String),
    ) -> Result<(Control, Line), String> {
        loop {
            let (stream, peer) = match listener.accept() {
                Ok(client) => client,
                // The client has gone already.
                Err(cause) if cause.kind() == ErrorKind::ConnectionAborted => continue,
                Err(cause) => return Err(format!("waiting for a client: {cause}")),
            };
            let greeted = Control::new(stream, peer, greeting).and_then(|mut control| {
                proof::demand(control.reader.get_mut(), key)
                    .map_err(|text| format!("{peer}: {text}"))?;
                let line = control.read_line()?;
                control.timeout = timeout;
                Ok((control, line))
            });
            match greeted {
                Ok((control, line @ Line::Hello { .. })) => return Ok((control, line)),
                Ok(_) => complain(format!("{peer} did not begin with a greeting: ignored")),
                Err(text) => complain(format!("{text}: ignored")),
            }
        }
    }

    /// Connects to a server; tries again for `patience` while no server listens there.
    pub fn connect(
        (host, port): (&str, u16),
        key: &JobKey,
        patience: Duration,
        timeout: Duration,
    ) -> Result<Control, String> {
        let places: Vec<SocketAddr> = (host, port)
            .to_socket_addrs()
            .map_err(|cause| format!("'{host}' is no host: {cause}"))?
            .collect();
        let start = Instant::now();
        loop {
            let mut last = None;
            for place in &places {
                match TcpStream::connect_timeout(place, timeout) {
                    Ok(stream) => {
                        let mut control = Control::new(stream, *place, timeout)?;
                        proof::prove(control.reader.get_mut(), key)
                            .map_err(|text| format!("the server at {place}: {text}"))?;
                        return Ok(control);
                    }
                    Err(cause) => last = Some((*place, cause)),
                }
            }
            let Some((place, cause)) = last else {
                return Err(format!("'{host}' has no address"));
            };
            if cause.kind() != ErrorKind::ConnectionRefused || start.elapsed() > patience {
                return Err(format!(
                    "no server at {place}: {cause}; start one there with the same command without HOST (and with LINERATE_SECRET on both sides, or --insecure, if that is another host)"
                ));
            }
            std::thread::sleep(ATTEMPT_PAUSE);
        }
    }

    fn new(stream: TcpStream, peer: SocketAddr, timeout: Duration) -> Result<Control, String> {
        let set = stream.set_nodelay(true);
        set.map_err(|cause| format!("{peer}: {cause}"))?;
        let until = Instant::now() + timeout;
        Ok(Control {
            reader: BufReader::new(Timed { stream, until }),
            peer,
            timeout,
        })
    }

    /// Starts the time that a line may take.
    fn begin(&mut self) {
        self.reader.get_mut().until = Instant::now() + self.timeout;
    }

    /// This side's address, as the other one reaches it.
    pub fn local_ip(&self) -> Result<IpAddr, String> {
        let place = self.reader.get_ref().stream.local_addr();
        let place = place.map_err(|cause| format!("reading an own address: {cause}"))?;
        Ok(place.ip().to_canonical())
    }

    /// Says something.
    pub fn write(&mut self, line: &Line) -> Result<(), String> {
        let mut text = serde_json::to_string(line).map_err(|cause| cause.to_string())?;
        text.push('\n');
        self.begin();
        let written = self.reader.get_mut().write_all(text.as_bytes());
        written.map_err(|cause| format!("{}: {cause}", self.peer))
    }

    /// What the other side says next.
    pub fn read(&mut self) -> Result<Line, String> {
        self.begin();
        self.read_line()
    }

    fn read_line(&mut self) -> Result<Line, String> {
        let peer = self.peer;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.reader).take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut bytes);
        match read {
            Ok(0) => Err(format!("{peer} has ended the connection")),
            Ok(_) if bytes.last() != Some(&b'\n') => {
                Err(format!("{peer} has sent half a line, or no line at all"))
            }
            Ok(_) => serde_json::from_slice(&bytes)
                .map_err(|cause| format!("{peer} speaks another language or version: {cause}")),
            Err(cause) if matches!(cause.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                Err(format!("{peer} has said nothing until the timeout"))
            }
            Err(cause) => Err(format!("{peer}: {cause}")),
        }
    }

    /// Whether something has come that was not read yet: a line, or the end of the connection.
    pub fn has_news(&self) -> Result<bool, String> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let stream = &self.reader.get_ref().stream;
        let blocking = |is_on: bool| {
            let set = stream.set_nonblocking(!is_on);
            set.map_err(|cause| format!("{}: {cause}", self.peer))
        };
        blocking(false)?;
        let peeked = stream.peek(&mut [0]);
        blocking(true)?;
        // An error shows when it is read.
        Ok(!matches!(peeked, Err(cause) if cause.kind() == ErrorKind::WouldBlock))
    }

    /// Like [`Control::exchange`], and polls `link` meanwhile, because what was posted may leave
    /// only then.
    pub fn exchange_over(&mut self, line: &Line, link: &mut Link) -> Result<Line, String> {
        self.write(line)?;
        link.wait("waiting for the other side's word", |_| self.has_news())?;
        self.read()
    }

    /// Both say something and hear the other.
    pub fn exchange(&mut self, line: &Line) -> Result<Line, String> {
        self.write(line)?;
        self.read()
    }
}

#[cfg(test)]
mod tests {
    use super::super::options::tests::options;
    use super::*;
    use std::thread;

    const TIMEOUT: Duration = Duration::from_secs(20);

    fn hello() -> Line {
        Line::Hello {
            version: "1".into(),
            host: "here".into(),
            options: serde_json::to_value(options("write_bw").unwrap()).unwrap(),
        }
    }

    #[test]
    fn strangers_are_ignored_and_the_client_is_served() {
        let listener = listen(0, false).unwrap();
        let place = listener.local_addr().unwrap();
        let clients = thread::spawn(move || {
            for garbage in [
                &b"GET / HTTP/1.1\r\n\r\n"[..],
                b"",
                b"\"Done\"\n",
                &[b'x'; 70_000],
            ] {
                let mut unknown = TcpStream::connect(place).unwrap();
                // The server may have closed it already.
                let _ = unknown.write_all(garbage);
            }
            let place = ("127.0.0.1", place.port());
            let other = Control::connect(place, &proof::key(Some(b"other")), TIMEOUT, TIMEOUT);
            let text = other.err().unwrap();
            assert!(text.contains("LINERATE_SECRET"), "{text}");
            let key = proof::key(None);
            let mut client = Control::connect(place, &key, TIMEOUT, TIMEOUT).unwrap();
            client.exchange(&hello()).unwrap()
        });
        let mut complaints = Vec::new();
        let times = (TIMEOUT, TIMEOUT);
        let (mut control, line) = Control::accept(&listener, &proof::key(None), times, |text| {
            complaints.push(text)
        })
        .unwrap();
        assert!(matches!(line, Line::Hello { .. }));
        control.write(&Line::Refused("no".into())).unwrap();
        let answer = clients.join().unwrap();
        assert!(matches!(answer, Line::Refused(reason) if reason == "no"));
        assert_eq!(complaints.len(), 5, "{complaints:?}");
        for complaint in &complaints[..3] {
            assert!(complaint.contains("has not proven"), "{complaint}");
        }
        assert!(
            complaints[3].contains("no hello of linerate"),
            "{complaints:?}"
        );
    }

    #[test]
    fn whoever_sends_a_byte_now_and_then_is_not_waited_for() {
        let listener = listen(0, false).unwrap();
        let place = listener.local_addr().unwrap();
        let mut unknown = TcpStream::connect(place).unwrap();
        let slow = thread::spawn(move || {
            // Until the server has closed it.
            while unknown.write_all(b"L").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        });
        let client = thread::spawn(move || {
            let place = ("127.0.0.1", place.port());
            let mut client = Control::connect(place, &proof::key(None), TIMEOUT, TIMEOUT).unwrap();
            client.write(&hello()).unwrap();
        });
        let mut complaints = Vec::new();
        let times = (Duration::from_secs(2), TIMEOUT);
        let served = Control::accept(&listener, &proof::key(None), times, |text| {
            complaints.push(text)
        });
        assert!(served.is_ok());
        slow.join().unwrap();
        client.join().unwrap();
        assert!(complaints[0].contains("has not proven"), "{complaints:?}");
    }

    #[test]
    fn a_server_that_is_not_there_is_said_with_what_to_do() {
        let port = listen(0, false).unwrap().local_addr().unwrap().port();
        let tried = Control::connect(
            ("127.0.0.1", port),
            &proof::key(None),
            Duration::ZERO,
            TIMEOUT,
        );
        let text = tried.err().unwrap();
        assert!(text.contains("without HOST"), "{text}");
    }
}
