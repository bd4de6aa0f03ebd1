//! [`Connector`]: connects to one rank at one of several addresses; both sides prove who they are.
//!
//! Another program may have the port, the rank may not listen yet, or a route may be missing. So
//! every address is tried in turn until the deadline, and the error says what was found at each.

use super::busy::BusyClock;
use super::credentials::Credentials;
use super::link::{Link, is_loopback, secure, wait_for, write_all};
use super::listener::TLS_RECORDS;
use super::secret_socket;
use crate::error::{Error, Result};
use crate::time::Time;
use crate::types::Rank;
use crate::wire::{
    Claim, HANDSHAKE_BYTES, HandshakeError, HandshakeMessage, Initiator, Purpose, Tls,
};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with};
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

/// A host that is up accepts sooner; one that is down may give no sign.
const CONNECT_TIME: Duration = Duration::from_secs(2);
/// A rank answers a hello sooner, unless its host is very busy; then this rank connects again.
const CHALLENGE_TIME: Duration = Duration::from_secs(5);
/// Pause between two rounds over all addresses: the first and the longest.
const RETRY: Duration = Duration::from_millis(5);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// How long an answer with the wrong key may be that of an earlier job which is about to end.
const WRONG_KEY_TIME: Duration = Duration::from_secs(2);
/// Pause between two tries meanwhile.
const WRONG_KEY_PAUSE: Duration = Duration::from_millis(250);

/// What one rank needs to connect to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connector<'a> {
    pub credentials: &'a Credentials,
    pub own: Rank,
    pub peer: Rank,
    /// What the connection is for: see [`super::listener`].
    pub detail: u64,
    /// The address of this host to connect from; `None`: the one that the route has.
    pub source: Option<IpAddr>,
    /// Longest frame that the other side may send.
    pub bytes_max: usize,
}

impl Connector<'_> {
    /// Tries until the deadline. `addresses` is asked again before each round, because the other
    /// rank's addresses may change meanwhile.
    pub fn connect(
        &self,
        mut addresses: impl FnMut() -> Result<Vec<SocketAddr>>,
        (deadline, clock): (Time, BusyClock<'_>),
    ) -> Result<Link> {
        let mut pause = RETRY;
        let mut wrong_since: Option<Time> = None;
        loop {
            let tried = addresses()?;
            let mut found = Vec::new();
            for &address in &tried {
                match self.try_one(address, (deadline, clock)) {
                    Ok(link) => return Ok(link),
                    Err(cause) => found.push((address, cause)),
                }
            }
            let now = clock.now();
            let wrong = HandshakeError::WrongProof;
            let is_wrong = |cause: &Cause| match cause {
                Cause::Handshake(error) => *error == wrong,
                Cause::NoSecret => true,
                _ => false,
            };
            match &found[..] {
                [(_, cause)] if is_wrong(cause) => {
                    wrong_since.get_or_insert(now);
                    pause = WRONG_KEY_PAUSE;
                }
                // The time ran out while the side with the wrong key was asked again.
                [(_, cause)] if wrong_since.is_some() && now >= deadline => {
                    if matches!(cause, Cause::Silent) {
                        found[0].1 = Cause::Handshake(HandshakeError::WrongProof);
                    }
                }
                _ => wrong_since = None,
            }
            let is_hopeless = wrong_since.is_some_and(|since| now.since(since) >= WRONG_KEY_TIME)
                || found.iter().any(|(_, cause)| cause.is_final());
            if now >= deadline || is_hopeless {
                return Err(self.unreached(&found));
            }
            clock.sleep(pause.min(deadline.since(now)));
            pause = (pause * 2).min(RETRY_MAX.max(pause));
        }
    }

    /// Tries each of these addresses once.
    pub fn connect_once(
        &self,
        addresses: &[SocketAddr],
        by: (Time, BusyClock<'_>),
    ) -> Option<(TcpStream, Option<Box<Tls>>)> {
        let mut addresses = addresses.iter();
        addresses.find_map(|&address| self.prove(address, by).ok())
    }

    fn try_one(
        &self,
        address: SocketAddr,
        by: (Time, BusyClock<'_>),
    ) -> std::result::Result<Link, Cause> {
        let (stream, tls) = self.prove(address, by)?;
        Ok(Link::new(stream, tls, self.bytes_max)?)
    }

    /// A connection on which both sides have proven who they are, and what encrypts it.
    fn prove(
        &self,
        address: SocketAddr,
        (deadline, clock): (Time, BusyClock<'_>),
    ) -> std::result::Result<(TcpStream, Option<Box<Tls>>), Cause> {
        let by = |time| (clock.now().after(time).min(deadline), clock);
        let ask = || {
            let credentials = self.credentials;
            let is_asked = credentials.key().is_none() && is_loopback(address.ip());
            let _ = is_asked && secret_socket::ask(address.port(), credentials);
            credentials.key()
        };
        let key = ask();
        let stream = open(address, self.source, by(CONNECT_TIME))?;
        let key = key.or_else(ask).ok_or(Cause::NoSecret)?;
        stream.set_nodelay(true)?;
        let claim = Claim {
            purpose: Purpose::Control,
            initiator: self.own,
            responder: self.peer,
            epoch: self.credentials.epoch,
            detail: self.credentials.detail(self.detail),
        };
        let nonce = self.credentials.nonce()?;
        let (mut initiator, hello) = Initiator::new(&key, &claim, &nonce);
        write_all(stream.as_fd(), &hello, by(CHALLENGE_TIME))?;
        let challenge = read_message(&stream, by(CHALLENGE_TIME))?;
        let proof = initiator.handle_challenge(&challenge)?;
        // The other side uses this connection from here on, so it is not given up for another one.
        write_all(stream.as_fd(), &proof, (deadline, clock))?;
        initiator.handle_verdict(&read_message(&stream, (deadline, clock))?)?;
        let mut tls = None;
        if self.credentials.has_tls {
            let begun = Tls::initiator(&initiator.channel(), TLS_RECORDS);
            let begun = tls.insert(Box::new(begun.map_err(std::io::Error::other)?));
            secure(&stream, begun, (deadline, clock)).map_err(|e| match e.kind() {
                ErrorKind::WouldBlock => Cause::Silent,
                _ => Cause::System(e),
            })?;
        }
        Ok((stream, tls))
    }

    fn unreached(&self, found_list: &[(SocketAddr, Cause)]) -> Error {
        let found: Vec<String> = found_list
            .iter()
            .map(|(address, cause)| format!("{address}: {cause}"))
            .collect();
        let found = match found.is_empty() {
            true => "it has not said where it is".into(),
            false => found.join("; "),
        };
        let is_near = |(address, cause): &(SocketAddr, Cause)| {
            address.ip().is_loopback() && matches!(cause, Cause::System(_))
        };
        let hint = match !found_list.is_empty() && found_list.iter().all(is_near) {
            true => {
                "; only processes of its own host are served, because there is no LINERATE_SECRET or all its ranks are there"
            }
            false => "",
        };
        Error::Bootstrap(format!(
            "rank {} could not reach rank {} ({found}{hint}); is that rank started, with the same job, LINERATE_SECRET and LINERATE_RENDEZVOUS, and is the port open?",
            self.own, self.peer
        ))
    }
}

#[derive(Debug)]
enum Cause {
    System(std::io::Error),
    Silent,
    /// This process has no secret, and got none from rank 0.
    NoSecret,
    Handshake(HandshakeError),
}

impl Cause {
    /// Trying again cannot help.
    fn is_final(&self) -> bool {
        match self {
            Cause::System(e) => {
                matches!(Errno::from_io_error(e), Some(Errno::MFILE | Errno::NFILE))
            }
            Cause::Handshake(e) => matches!(e, HandshakeError::Refused(_)),
            Cause::Silent | Cause::NoSecret => false,
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Cause::System(e) if e.kind() == ErrorKind::UnexpectedEof => f.write_str(
                "it closed the connection (another program, or an earlier job that ends)",
            ),
            Cause::System(e) => e.fmt(f),
            Cause::Silent => f.write_str("it accepts connections and says nothing"),
            Cause::NoSecret => f.write_str(
                "it accepts connections and hands this process no secret: it has a LINERATE_SECRET, or is another user's or job's",
            ),
            Cause::Handshake(e) => e.fmt(f),
        }
    }
}

impl From<Errno> for Cause {
    fn from(error: Errno) -> Cause {
        Cause::System(error.into())
    }
}

impl From<std::io::Error> for Cause {
    fn from(error: std::io::Error) -> Cause {
        Cause::System(error)
    }
}

impl From<HandshakeError> for Cause {
    fn from(error: HandshakeError) -> Cause {
        Cause::Handshake(error)
    }
}

fn open(
    address: SocketAddr,
    source: Option<IpAddr>,
    by: (Time, BusyClock<'_>),
) -> std::result::Result<TcpStream, Cause> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    if let Some(source) = source.filter(|source| source.is_ipv4() == address.is_ipv4()) {
        bind(&socket, &SocketAddr::new(source, 0))?;
    }
    match connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            wait_writable(&socket, by)?;
        }
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    // The kernel may give the caller the very port that it connects to: then it reaches itself.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(Errno::CONNREFUSED.into());
    }
    Ok(stream)
}

fn wait_writable(
    socket: &std::os::fd::OwnedFd,
    (deadline, clock): (Time, BusyClock<'_>),
) -> std::result::Result<(), Cause> {
    loop {
        wait_for(&[socket.as_fd()], PollFlags::OUT, (deadline, clock));
        rustix::net::sockopt::socket_error(socket)??;
        match rustix::net::getpeername(socket) {
            Ok(_) => return Ok(()),
            Err(_) if clock.now() >= deadline => return Err(Errno::TIMEDOUT.into()),
            Err(_) => {}
        }
    }
}

fn read_message(
    mut stream: &TcpStream,
    (deadline, clock): (Time, BusyClock<'_>),
) -> std::result::Result<HandshakeMessage, Cause> {
    let mut message = [0; HANDSHAKE_BYTES];
    let mut got = 0;
    while got < message.len() {
        match stream.read(&mut message[got..]) {
            Ok(0) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
            Ok(count) => got += count,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => match clock.now() >= deadline {
                true => return Err(Cause::Silent),
                false => wait_for(&[stream.as_fd()], PollFlags::IN, (deadline, clock)),
            },
            Err(e) => return Err(e.into()),
        }
    }
    Ok(message)
}
