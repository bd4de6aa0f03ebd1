//! How a process that comes later gets the place of a worker, and where it finds the servers.

use super::layout::Layout;
use super::options::ServerOptions;
use super::shared::Shared;
use super::spoken::{Arrival, Place, Spoken};
use crate::bootstrap::{self, Conversation, Message, Reunion};
use crate::comm::connect::{LOOK_AGAIN, Origin};
use crate::comm::fetching;
use crate::comm::server::checkpoint::text_of;
use crate::comm::slots::Opened;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::fusion::TensorSpec;
use crate::limits::RANKS_MAX;
use crate::time::Time;
use crate::types::Rank;
use crate::wait::Clock;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::OnceLock;
use std::time::Duration;

/// Pause before a process asks again for a place.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// How long nobody answers before a process gives up.
const SILENCE: Duration = Duration::from_secs(3);

/// Where a process finds the servers: the identity of their communicator, and the ranks that lead
/// or may lead, each with the address of its host unless all ranks are on one.
#[derive(Debug, PartialEq)]
pub struct DoorAddress {
    pub identity: u64,
    pub leaders: Vec<(Rank, Option<IpAddr>)>,
}

impl DoorAddress {
    pub fn parse(text: &str) -> Result<DoorAddress> {
        let malformed = || {
            Error::invalid(format!(
                "'{text}' is no address of a parameter server: take what ParameterServer::address gives, such as 0123456789abcdef/0 or 0123456789abcdef/0@10.0.0.1,1@10.0.0.2"
            ))
        };
        let (identity, leaders) = text.trim().split_once('/').ok_or_else(malformed)?;
        let parse = |leader: &str| -> Option<(Rank, Option<IpAddr>)> {
            let (rank, place) = match leader.split_once('@') {
                Some((rank, place)) => (rank, Some(place.parse().ok()?)),
                None => (leader, None),
            };
            let rank = rank.parse().ok().filter(|&rank: &Rank| rank < RANKS_MAX)?;
            Some((rank, place))
        };
        let leaders = leaders.split(',').map(parse).collect::<Option<Vec<_>>>();
        let identity = u64::from_str_radix(identity, 16).ok();
        let (Some(identity), Some(leaders)) = (identity, leaders) else {
            return Err(malformed());
        };
        Ok(DoorAddress { identity, leaders })
    }

    /// The servers, for a process that visits them.
    fn reunion(&self, places: &[(Rank, IpAddr)], config: &Config) -> Result<Reunion> {
        let most = places.iter().map(|(rank, _)| *rank as usize + 1).max();
        let mut all = vec![Ipv4Addr::UNSPECIFIED.into(); most.unwrap_or(0)];
        for &(rank, place) in places {
            all[rank as usize] = place;
        }
        // It has no rank yet.
        Reunion::new(self.identity, RANKS_MAX - 1, config, &all)
    }

    fn places(&self) -> Vec<(Rank, IpAddr)> {
        let places = self.leaders.iter();
        places
            .filter_map(|&(rank, place)| Some((rank, place?)))
            .collect()
    }
}

impl std::fmt::Display for DoorAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}/", self.identity)?;
        for (at, (rank, place)) in self.leaders.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{rank}")?;
            if let Some(place) = place {
                write!(f, "@{place}")?;
            }
        }
        Ok(())
    }
}

/// What a process hears from a server.
enum Heard {
    Nothing,
    Said(Spoken),
    /// The server has ended, or says nothing more.
    Lost,
}

/// A process that comes.
struct Comer<'a> {
    address: DoorAddress,
    text: &'a str,
    clock: Clock,
    begun: Time,
    timeout: Duration,
}

impl Comer<'_> {
    fn is_late(&self) -> bool {
        self.clock.now().since(self.begun) > self.timeout
    }

    fn refused(&self, text: &str) -> Error {
        Error::Bootstrap(format!(
            "the parameter server at {} lets this process not in: {text}",
            self.text
        ))
    }

    /// Asks the servers that may lead until one gives a place: which one, and the conversation, for
    /// as long as which the place is kept.
    fn ask(&self, reunion: &Reunion, arguments: &str) -> Result<(Rank, Conversation, Place)> {
        let mut heard = self.begun;
        let mut last = "nobody listens there: it has ended, or is of another host or user, or its processes have another LINERATE_SECRET".to_string();
        loop {
            for &(leader, _) in &self.address.leaders {
                let Some(mut conversation) = reunion.visit(leader, &self.clock)? else {
                    continue;
                };
                conversation.say(&Spoken::Ask(arguments.into()).emit());
                while !self.is_late() {
                    match self.hear(&mut conversation)? {
                        Heard::Nothing => std::thread::sleep(LOOK_AGAIN),
                        Heard::Lost => break,
                        Heard::Said(Spoken::Place(place)) => {
                            return Ok((leader, conversation, place));
                        }
                        Heard::Said(Spoken::Later(text)) => {
                            heard = self.clock.now();
                            last = text;
                            break;
                        }
                        Heard::Said(other) => {
                            let text = format!("a server that was asked for a place: {other:?}");
                            return Err(Error::Malformed(text));
                        }
                    }
                }
            }
            if self.is_late() || self.clock.now().since(heard) > SILENCE {
                return Err(self.refused(&last));
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    /// Visits a server, which may be busy. `None`: it does not answer.
    fn visit(&self, reunion: &Reunion, rank: Rank) -> Result<Option<Conversation>> {
        let begun = self.clock.now();
        loop {
            let visited = reunion.visit(rank, &self.clock)?;
            if visited.is_some() || self.clock.now().since(begun) > SILENCE {
                return Ok(visited);
            }
            std::thread::sleep(ASK_AGAIN);
        }
    }

    /// What a server says. An error if it refuses this process.
    fn hear(&self, conversation: &mut Conversation) -> Result<Heard> {
        match conversation.hear() {
            Err(_) => Ok(Heard::Lost),
            Ok(None) => Ok(Heard::Nothing),
            Ok(Some(Message::Refused(text))) => Err(self.refused(&text)),
            Ok(Some(message)) => match Spoken::parse(&message) {
                Some(spoken) => Ok(Heard::Said(spoken)),
                None => Err(Error::Malformed(format!("a server said {message:?}"))),
            },
        }
    }

    /// Comes to all servers, and makes the memory of both known to the other. `None`: a server has
    /// ended meanwhile, and the place may be unknown to the others.
    fn come(
        &self,
        shared: &Shared,
        place: &Place,
        servers: &[(Rank, Vec<u8>)],
        (reunion, leader): (&Reunion, (Rank, Conversation)),
        contact: &[u8],
    ) -> Result<Option<Vec<Conversation>>> {
        let come = Spoken::Come(Arrival {
            worker: place.worker,
            count: place.count,
            contact: contact.to_vec(),
            parts: shared.own_parts(),
        });
        let mut talks = Vec::new();
        let (leader, mut conversation) = (leader.0, Some(leader.1));
        for (rank, _) in servers {
            let known = (*rank == leader).then(|| conversation.take()).flatten();
            let mut conversation = match known {
                Some(conversation) => conversation,
                None => match self.visit(reunion, *rank)? {
                    Some(conversation) => conversation,
                    None if self.is_late() => {
                        let text = format!("rank {rank}, a server, does not answer");
                        return Err(self.refused(&text));
                    }
                    None => return Ok(None),
                },
            };
            conversation.say(&come.emit());
            talks.push(conversation);
        }
        let mut has_lost = false;
        let connected = shared.comm.connect_all(servers, || {
            for conversation in &mut talks {
                has_lost |= matches!(self.hear(conversation)?, Heard::Lost);
            }
            match has_lost {
                true => Err(self.refused("a server has ended")),
                false => Ok(()),
            }
        });
        if has_lost && !self.is_late() {
            return Ok(None);
        }
        connected?;
        for ((rank, _), conversation) in servers.iter().zip(&mut talks) {
            shared.set_parts(*rank, place.parts[*rank as usize])?;
            conversation.say(&Spoken::Here.emit());
        }
        Ok(Some(talks))
    }
}

/// A process that has a place: what it shares, the number of its worker, and the conversations in
/// which the servers let it in, which go on until they have.
pub struct Come {
    pub shared: Shared,
    pub worker: usize,
    pub talks: Vec<Conversation>,
    pub has_function: bool,
}

/// Takes a place of a worker of the parameter server at this address.
pub fn come(
    text: &str,
    tensors: &[TensorSpec],
    options: &ServerOptions,
    config: Config,
) -> Result<Come> {
    config.check()?;
    let address = DoorAddress::parse(text)?;
    let clock = Clock::monotonic();
    let comer = Comer {
        begun: clock.now(),
        timeout: config.timeout,
        text,
        clock,
        address,
    };
    let places = comer.address.places();
    let config = bootstrap::settle_towards(config, places.first().map(|(_, ip)| *ip))?;
    loop {
        if let Some(come) = comer.try_once(&places, tensors, options, &config)? {
            return Ok(come);
        }
    }
}

impl Comer<'_> {
    /// Asks for a place and takes it. `None`: that is to be tried again.
    fn try_once(
        &self,
        places: &[(Rank, IpAddr)],
        tensors: &[TensorSpec],
        options: &ServerOptions,
        config: &Config,
    ) -> Result<Option<Come>> {
        let reunion = self.address.reunion(places, config)?;
        let (leader, conversation, place) = self.ask(&reunion, &options.describe(tensors))?;
        let layout = Layout::new(tensors, options, place.ranks)?;
        let slots = layout.slots(place.ranks);
        let rank = layout.workers.get(place.worker as usize).copied();
        let (Some(rank), true) = (rank, place.contacts.len() == slots as usize) else {
            let text = format!("place {} of {} ranks", place.worker, place.contacts.len());
            return Err(Error::Malformed(text));
        };
        let mut config = config.clone();
        config.transport.clone_from(&place.transport);
        config.verbs.local_rank.get_or_insert(rank);
        let (config, _) = fetching::settle(config, slots, &self.clock);
        let opened = Opened::new(rank, slots, &config)?;
        let contact = opened.contact.clone();
        let mut known: Vec<(Rank, Vec<u8>)> = (0..).zip(place.contacts.iter().cloned()).collect();
        known[rank as usize].1.clone_from(&contact);
        known.retain(|(_, contact)| !contact.is_empty());
        let comm = opened.finish(&known, Origin::new(self.clock.clone())?)?;
        let data = comm.window_of_slots(&comm.alloc::<u8>(0)?)?;
        let words = comm.window_of_slots(&comm.alloc::<u64>(layout.words())?)?;
        let is_server = |(rank, _): &&(Rank, Vec<u8>)| layout.servers.contains(rank);
        let servers: Vec<(Rank, Vec<u8>)> = known.iter().filter(is_server).cloned().collect();
        let of_known = known.iter().map(|(rank, contact)| {
            let contact = bootstrap::RankContact::parse(contact)?;
            Ok((*rank, contact.place))
        });
        // Of the other servers, the place tells where they are.
        let all_places = match places.is_empty() {
            true => Vec::new(),
            false => of_known.collect::<Result<Vec<(Rank, IpAddr)>>>()?,
        };
        let shared = Shared {
            comm,
            layout,
            tensors: text_of(tensors),
            data,
            words,
            gradients: OnceLock::new(),
        };
        let reunion = self.address.reunion(&all_places, &config)?;
        let way = (&reunion, (leader, conversation));
        let talks = self.come(&shared, &place, &servers, way, &contact)?;
        Ok(talks.map(|talks| Come {
            shared,
            worker: place.worker as usize,
            has_function: place.has_function,
            talks,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_its_text_and_others_are_refused() {
        let ip = |text: &str| Some(text.parse().unwrap());
        for (identity, leaders) in [
            (1, vec![(0, None)]),
            (u64::MAX, vec![(3, None), (7, None)]),
            (9, vec![(0, ip("10.0.0.1")), (1, ip("fd00::2"))]),
        ] {
            let address = DoorAddress { identity, leaders };
            assert_eq!(DoorAddress::parse(&address.to_string()).unwrap(), address);
        }
        for text in ["", "1", "1/", "x/0", "1/-1", "1/0@here", "1/0,", "1/16384"] {
            let error = DoorAddress::parse(text).unwrap_err().to_string();
            assert!(
                error.contains("ParameterServer::address"),
                "{text}: {error}"
            );
        }
    }
}
