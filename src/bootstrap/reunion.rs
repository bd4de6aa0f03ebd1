//! [`Reunion`]: where the survivors of a failed communicator meet the one that leads them. On one
//! host that is an abstract name, made of the communicator's identity and the leader's rank. Across
//! hosts it is a port of the leader's host, one of several that follow from the same two numbers;
//! connections begin with the handshake there, and are encrypted if the settings say so.

use super::busy::BusyClock;
use super::connector::Connector;
use super::credentials::Credentials;
use super::env::ports_of;
use super::listener::{Listener, TO_LEADER};
use super::survivors::{Conversation, FRAME_BYTES_MAX};
use super::unix::{connect_to, is_same_user, listen_at};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::types::Rank;
use crate::wait::Clock;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::time::Duration;

/// How long a visit may take: a leader that listens answers at once, and a visitor has to look
/// after its old connections in between.
const VISIT_TIME: Duration = Duration::from_secs(1);

/// The survivors of one communicator, seen by one of them.
pub struct Reunion {
    identity: u64,
    own: Rank,
    network: Option<Network>,
}

/// What is needed beyond one host.
struct Network {
    credentials: Credentials,
    /// Addresses by rank.
    places: Vec<IpAddr>,
}

/// Where a leader listens.
#[derive(Debug)]
pub enum MeetingPlace {
    /// For processes of one user on this host.
    Host(UnixListener),
    /// For ranks that prove who they are.
    Network(NetworkPlace),
}

/// A listener for ranks of other hosts.
#[derive(Debug)]
pub struct NetworkPlace(Box<Listener>);

impl Reunion {
    /// The survivors of the communicator of this identity; the caller is rank `own`. `places` are
    /// the addresses of all ranks; none where all are processes of one user on one host.
    pub fn new(identity: u64, own: Rank, config: &Config, places: &[IpAddr]) -> Result<Reunion> {
        let job = format!("rebuild {identity:016x}");
        let network = || -> Result<Network> {
            Ok(Network {
                credentials: Credentials::new(&config.job, config.tcp.has_tls, &job, 0)?,
                places: places.to_vec(),
            })
        };
        let network = (!places.is_empty()).then(network).transpose()?;
        Ok(Reunion {
            identity,
            own,
            network,
        })
    }

    /// Opens the place of this rank, which leads.
    pub fn open(&self) -> Result<MeetingPlace> {
        let what = || {
            format!(
                "listening for the survivors of communicator {:016x}",
                self.identity
            )
        };
        let Some(network) = &self.network else {
            let listener = listen_at(&self.name(self.own)).map_err(|e| Error::os(what(), e))?;
            return Ok(MeetingPlace::Host(listener));
        };
        network
            .credentials
            .check_may_serve(network.places[self.own as usize])?;
        let mut last = None;
        for address in self.addresses(network, self.own) {
            match TcpListener::bind(address) {
                Ok(socket) => {
                    let listener = Listener::new(vec![socket], self.own, &network.credentials)?;
                    return Ok(MeetingPlace::Network(NetworkPlace(Box::new(listener))));
                }
                Err(e) => last = Some((address, e)),
            }
        }
        let (address, cause) = last.expect("there are several ports");
        let hint = match cause.kind() {
            ErrorKind::AddrInUse => " and seven other ports, all taken",
            _ => "",
        };
        Err(Error::os(format!("{} on {address}{hint}", what()), cause))
    }

    /// Connects to a leader; `None`: it does not listen yet.
    pub fn visit(&self, leader: Rank, clock: &Clock) -> Result<Option<Conversation>> {
        let Some(network) = &self.network else {
            let stream = connect_to(&self.name(leader)).ok();
            let of_user = stream.filter(is_same_user);
            return Ok(of_user.and_then(|stream| Conversation::new(stream.into(), None, clock)));
        };
        let connector = Connector {
            credentials: &network.credentials,
            own: self.own,
            peer: leader,
            detail: TO_LEADER,
            source: None,
            bytes_max: FRAME_BYTES_MAX,
        };
        let places = self.addresses(network, leader);
        let until = clock.now().after(VISIT_TIME);
        let proven = connector.connect_once(&places, (until, BusyClock::idle(clock)));
        Ok(proven.and_then(|(stream, tls)| Conversation::new(stream.into(), tls, clock)))
    }

    fn name(&self, leader: Rank) -> String {
        let user = rustix::process::geteuid().as_raw();
        format!("linerate-rebuild-{user}-{:016x}-{leader}", self.identity)
    }

    fn addresses(&self, network: &Network, leader: Rank) -> Vec<SocketAddr> {
        let ip = network.places[leader as usize];
        let ports = ports_of(&format!("rebuild {:016x} {leader}", self.identity), 0);
        ports
            .into_iter()
            .map(|port| SocketAddr::new(ip, port))
            .collect()
    }
}

impl MeetingPlace {
    /// The survivors that have come since the last call, on one host at most `most`. Other
    /// processes are refused.
    pub fn accept(&mut self, most: usize, clock: &Clock) -> Result<Vec<Conversation>> {
        let mut came = Vec::new();
        match self {
            MeetingPlace::Host(listener) => {
                while came.len() < most
                    && let Ok((stream, _)) = listener.accept()
                {
                    let of_user = Some(stream).filter(is_same_user);
                    came.extend(
                        of_user.and_then(|stream| Conversation::new(stream.into(), None, clock)),
                    );
                }
            }
            MeetingPlace::Network(NetworkPlace(listener)) => {
                let mut new = Vec::new();
                listener.poll(clock.now(), &mut new)?;
                let survivors = new.into_iter().filter(|new| new.detail == TO_LEADER);
                let conversations = survivors
                    .filter_map(|new| Conversation::new(new.stream.into(), new.tls, clock));
                came.extend(conversations);
            }
        }
        Ok(came)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Message;
    use crate::config::Secret;
    use std::net::Ipv4Addr;

    fn config(secret: &[u8]) -> Config {
        let mut config = Config::default();
        config.job.secret = Secret::Text(secret.to_vec());
        config
    }

    #[test]
    fn survivors_meet_over_the_network_and_others_do_not() {
        let identity = u64::from(std::process::id()) << 24;
        let places = vec![IpAddr::from(Ipv4Addr::LOCALHOST); 6];
        let reunion =
            |own, secret: &[u8]| Reunion::new(identity, own, &config(secret), &places).unwrap();
        let clock = Clock::monotonic();
        let (secret, other) = (b"0123456789abcdef", b"another secret...");
        assert!(reunion(5, secret).visit(0, &clock).unwrap().is_none());
        let mut place = reunion(0, secret).open().unwrap();
        std::thread::scope(|scope| {
            let visits = scope.spawn(|| {
                let refused = reunion(4, other).visit(0, &clock).unwrap();
                assert!(refused.is_none(), "with another secret");
                let mut visitor = reunion(5, secret).visit(0, &clock).unwrap().unwrap();
                visitor.say(&Message::Come(5));
                visitor
            });
            let mut came = Vec::new();
            while came.is_empty() {
                came.extend(place.accept(10, &clock).unwrap());
            }
            let visitor = visits.join().unwrap();
            assert_eq!(came.len(), 1);
            let mut heard = None;
            while heard.is_none() {
                heard = came[0].hear().unwrap();
            }
            assert_eq!(heard, Some(Message::Come(5)));
            drop(visitor);
            while came[0].hear().is_ok() {}
        });
    }
}
