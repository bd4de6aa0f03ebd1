//! [`Reunion`]: where the survivors of a failed communicator meet the one who leads them. On one
//! host that is an abstract name made of the communicator's identity and the leader's rank; across
//! hosts a port of the leader's host, one of those that follow from the same two, behind the
//! handshake of every other connection, and sealed if those are.

use super::credentials::Credentials;
use super::dial::{Call, dial_once};
use super::env::ports_of;
use super::gate::{Gate, TO_LEADER};
use super::local::is_same_user;
use super::survivors::{Conversation, FRAME_BYTES_MAX};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::types::Rank;
use crate::wait::Clock;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

/// How long a visit may take: a leader that is there answers at once, and anyone who visits has to
/// look after its old connections in between.
const VISIT_TIME: Duration = Duration::from_secs(1);
const PLACE_BYTES: usize = 16;

/// The survivors of one communicator, seen by one of them.
pub struct Reunion {
    identity: u64,
    own: Rank,
    network: Option<Network>,
}

/// Beyond one host.
struct Network {
    credentials: Credentials,
    /// By rank.
    places: Vec<IpAddr>,
}

/// An open place.
#[derive(Debug)]
pub enum MeetingPlace {
    /// For processes of one user on this host.
    Host(UnixListener),
    /// For ranks that prove that they are some.
    Network(NetworkPlace),
}

/// Behind the handshake.
#[derive(Debug)]
pub struct NetworkPlace(Gate);

impl Reunion {
    /// Of the communicator of this identity, of which the caller is rank `own`. `places` are the
    /// addresses of all ranks; none where all are processes of one user on one host.
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
            let listener =
                UnixListener::bind_addr(&self.name(self.own)?).map_err(|e| Error::os(what(), e))?;
            listener
                .set_nonblocking(true)
                .map_err(|e| Error::os(what(), e))?;
            return Ok(MeetingPlace::Host(listener));
        };
        network
            .credentials
            .check_may_serve(network.places[self.own as usize])?;
        let mut last = None;
        for address in self.addresses(network, self.own) {
            match TcpListener::bind(address) {
                Ok(listener) => {
                    let gate = Gate::new(vec![listener], self.own, &network.credentials);
                    let gate = gate.map_err(|e| Error::os(what(), e))?;
                    return Ok(MeetingPlace::Network(NetworkPlace(gate)));
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

    /// Goes to the place of a leader; `None`: it is not there yet.
    pub fn visit(&self, leader: Rank, clock: &Clock) -> Result<Option<Conversation>> {
        let Some(network) = &self.network else {
            let stream = UnixStream::connect_addr(&self.name(leader)?).ok();
            let of_user = stream.filter(is_same_user);
            return Ok(of_user.and_then(|stream| Conversation::new(stream.into(), None)));
        };
        let call = Call {
            credentials: &network.credentials,
            own: self.own,
            whom: leader,
            detail: TO_LEADER,
            source: None,
            bytes_max: FRAME_BYTES_MAX,
        };
        let places = self.addresses(network, leader);
        let proven = dial_once(&call, &places, (clock.now().after(VISIT_TIME), clock));
        Ok(proven.and_then(|(stream, tls)| Conversation::new(stream.into(), tls)))
    }

    fn name(&self, leader: Rank) -> Result<UnixAddress> {
        let user = rustix::process::geteuid().as_raw();
        let name = format!("linerate-rebuild-{user}-{:016x}-{leader}", self.identity);
        UnixAddress::from_abstract_name(name).map_err(|e| Error::os("naming a meeting place", e))
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
    /// Those who have come since, at most `most`. Strangers are turned away.
    pub fn accept(&mut self, most: usize, clock: &Clock) -> Result<Vec<Conversation>> {
        let mut came = Vec::new();
        match self {
            MeetingPlace::Host(listener) => {
                while came.len() < most
                    && let Ok((stream, _)) = listener.accept()
                {
                    let of_user = Some(stream).filter(is_same_user);
                    came.extend(of_user.and_then(|stream| Conversation::new(stream.into(), None)));
                }
            }
            MeetingPlace::Network(NetworkPlace(gate)) => {
                let proven = gate.turn(clock.now())?.into_iter();
                let is_survivor = proven.filter(|proven| proven.detail == TO_LEADER);
                came.extend(
                    is_survivor
                        .filter_map(|proven| Conversation::new(proven.stream.into(), proven.tls)),
                );
            }
        }
        Ok(came)
    }
}

/// What a rank says of itself: the address of its host, then the rest.
pub fn emit_place(ip: IpAddr, rest: &[u8]) -> Vec<u8> {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    [&ip.octets()[..], rest].concat()
}

/// Checks, and takes both apart.
pub fn parse_place(bytes: &[u8]) -> Result<(IpAddr, &[u8])> {
    let parted = bytes.split_first_chunk::<PLACE_BYTES>();
    let (ip, rest) = parted.ok_or_else(|| {
        Error::Malformed(format!(
            "an address of {} bytes, {PLACE_BYTES} are needed",
            bytes.len()
        ))
    })?;
    Ok((Ipv6Addr::from(*ip).to_canonical(), rest))
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

    #[test]
    fn a_place_survives_and_a_stump_is_refused() {
        for text in ["10.1.2.3", "fd00::17"] {
            let ip: IpAddr = text.parse().unwrap();
            let bytes = emit_place(ip, b"rest");
            assert_eq!(parse_place(&bytes).unwrap(), (ip, &b"rest"[..]));
        }
        assert!(parse_place(&[0; 15]).is_err());
    }
}
