//! [`Door`]: where a server lets processes in that take the places of workers, while it serves.

use super::shard::{NoPlace, Shard};
use super::shared::Shared;
use super::spoken::{Arrival, Place, Spoken};
use crate::bootstrap::{Conversation, MeetingPlace, Message, note};
use crate::comm::window::Part;
use crate::error::Result;
use crate::types::Rank;
use crate::wait::Clock;
use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// How often a server looks who has come: a look costs system calls, and a server turns for each
/// push.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Processes that are let in at the same time.
const GUESTS_MAX: usize = 64;

/// What a process needs to know of the ranks that were there at the beginning.
pub struct Known {
    /// What all have given: tensors and options.
    pub arguments: String,
    pub has_function: bool,
    pub ranks: u32,
    pub transport: String,
    /// By rank.
    pub contacts: Vec<Vec<u8>>,
    pub parts: Vec<[Part; 2]>,
}

/// A conversation with a process that comes.
pub trait Talk {
    /// The next message that has come.
    fn hear(&mut self) -> std::result::Result<Option<Message>, Over>;
    fn say(&mut self, message: &Message);
}

/// The other side has ended, or says what nobody says.
pub struct Over;

/// Where conversations begin.
pub trait Accepts {
    type Talk: Talk;
    fn accept(&mut self, most: usize, clock: &Clock) -> Result<Vec<Self::Talk>>;
}

impl Talk for Conversation {
    fn hear(&mut self) -> std::result::Result<Option<Message>, Over> {
        Conversation::hear(self).map_err(|_| Over)
    }

    fn say(&mut self, message: &Message) {
        Conversation::say(self, message);
    }
}

impl Accepts for MeetingPlace {
    type Talk = Conversation;

    fn accept(&mut self, most: usize, clock: &Clock) -> Result<Vec<Conversation>> {
        MeetingPlace::accept(self, most, clock)
    }
}

/// See the module. In virtual time, conversations are no sockets.
pub struct Door<E: Accepts = MeetingPlace> {
    shared: Arc<Shared>,
    known: Known,
    place: E,
    /// How often it looks who has come.
    pub look_every: Duration,
    looked: Duration,
    guests: Vec<Guest<E::Talk>>,
    has_complained: bool,
}

struct Guest<T> {
    conversation: T,
    since: Duration,
    /// The worker whose place it got.
    given: Option<usize>,
    arrival: Option<Arrival>,
    is_connected: bool,
    /// It has made its memory known here.
    is_here: bool,
}

/// Whether a conversation goes on.
#[derive(PartialEq)]
enum Goes {
    On,
    Over,
}

impl<E: Accepts> Door<E> {
    pub fn new(shared: Arc<Shared>, mut known: Known, place: E) -> Door<E> {
        let slots = shared.layout.slots(known.ranks) as usize;
        known.contacts.resize(slots, Vec::new());
        known.parts.resize(slots, [Part::NONE; 2]);
        Door {
            shared,
            known,
            place,
            look_every: LOOK_EVERY,
            looked: Duration::ZERO,
            guests: Vec::new(),
            has_complained: false,
        }
    }

    /// Does what can be done now.
    pub fn turn(&mut self, shard: &mut Shard) -> Result<()> {
        let now = self.shared.now();
        if now.saturating_sub(self.looked) < self.look_every {
            return Ok(());
        }
        self.looked = now;
        let room = GUESTS_MAX.saturating_sub(self.guests.len());
        let clock = &self.shared.comm.inner.clock;
        let came = self.place.accept(room, clock).unwrap_or_else(|error| {
            // Those that are served go on without a newcomer.
            if !std::mem::replace(&mut self.has_complained, true) {
                let rank = self.shared.comm.rank();
                note(&format!("rank {rank}: a process cannot join: {error}"));
            }
            Vec::new()
        });
        let came = came.into_iter().take(room);
        self.guests.extend(came.map(|conversation| Guest {
            conversation,
            since: now,
            given: None,
            arrival: None,
            is_connected: false,
            is_here: false,
        }));
        // Nobody keeps a place for longer than a process waits to be let in.
        let patience = self.shared.comm.inner.config.timeout;
        self.guests
            .retain(|guest| now.saturating_sub(guest.since) <= patience);
        let mut at = 0;
        while at < self.guests.len() {
            match self.attend(at, shard)? {
                Goes::On => at += 1,
                Goes::Over => {
                    self.guests.swap_remove(at);
                }
            }
        }
        Ok(())
    }

    /// Whether somebody is being let in: then the server does not sleep for long.
    pub fn is_busy(&self) -> bool {
        !self.guests.is_empty()
    }

    fn attend(&mut self, at: usize, shard: &mut Shard) -> Result<Goes> {
        let guest = &mut self.guests[at];
        loop {
            let said = match guest.conversation.hear() {
                Ok(None) => break,
                Ok(Some(message)) => Spoken::parse(&message),
                Err(_) => return Ok(Goes::Over),
            };
            match said {
                Some(Spoken::Ask(arguments)) if guest.given.is_none() => {
                    let given: Vec<usize> = self.guests.iter().filter_map(|g| g.given).collect();
                    let answer = self.known.answer(&self.shared, (shard, &given), &arguments);
                    let guest = &mut self.guests[at];
                    match answer {
                        Ok(place) => {
                            guest.given = Some(place.worker as usize);
                            guest.conversation.say(&Spoken::Place(place).emit());
                            return Ok(Goes::On);
                        }
                        Err(message) => {
                            guest.conversation.say(&message);
                            return Ok(Goes::Over);
                        }
                    }
                }
                Some(Spoken::Come(arrival)) if guest.arrival.is_none() => {
                    guest.arrival = Some(arrival);
                }
                Some(Spoken::Here) if guest.arrival.is_some() => guest.is_here = true,
                _ => return Ok(Goes::Over),
            }
        }
        self.let_in(at, shard)
    }

    /// Goes on with a process that has a place.
    fn let_in(&mut self, at: usize, shard: &mut Shard) -> Result<Goes> {
        let shared = &self.shared;
        let guest = &mut self.guests[at];
        let Some(arrival) = &guest.arrival else {
            return Ok(Goes::On);
        };
        let worker = arrival.worker as usize;
        if arrival.parts[1].len() != shared.layout.words() {
            let text = "it has another version of linerate than the servers: install the same";
            guest.conversation.say(&Message::Refused(text.into()));
            return Ok(Goes::Over);
        }
        let Some(&rank) = shared.layout.workers.get(worker) else {
            return Ok(Goes::Over);
        };
        match shard.replaced(worker).cmp(&arrival.count) {
            #[cfg(test)]
            Ordering::Less if shard.mutant == super::leading::Mutant::LetsInEarly => {}
            Ordering::Less => return Ok(Goes::On),
            Ordering::Equal => {}
            Ordering::Greater => {
                let text = format!("worker {worker}: another process has its place now");
                guest.conversation.say(&Message::Refused(text));
                return Ok(Goes::Over);
            }
        }
        if !guest.is_connected {
            let driving = shared.comm.driving()?;
            let mut engine = driving.engine();
            // A server that is busy may never wait long enough for that.
            engine.drive_slow_if_due(driving.clock.now());
            let (is_connected, is_connecting) =
                (engine.is_connected(rank), engine.is_connecting(rank));
            drop(engine);
            // Who is connected before this one has called is the process before.
            let is_new = self.known.contacts[rank as usize] == arrival.contact;
            if !is_new || !(is_connected || is_connecting) {
                self.known.contacts[rank as usize].clone_from(&arrival.contact);
                if let Err(error) = shared.comm.connect_one(rank, &arrival.contact) {
                    guest.conversation.say(&Message::Refused(error.to_string()));
                    return Ok(Goes::Over);
                }
                return Ok(Goes::On);
            }
            if !is_connected {
                return Ok(Goes::On);
            }
            guest.is_connected = true;
            shard.clear(worker);
            if shared.set_parts(rank, arrival.parts).is_err() {
                // It has ended. If the communicator has failed, the service says so.
                return Ok(Goes::Over);
            }
        }
        if !guest.is_here || !shard.is_cleared(worker) {
            return Ok(Goes::On);
        }
        shard.let_in(worker)?;
        Ok(Goes::Over)
    }
}

impl Known {
    /// The place for a process that asks for one, or what it is told. `given`: the workers whose
    /// places others have got who have not come yet.
    fn answer(
        &self,
        shared: &Shared,
        (shard, given): (&mut Shard, &[usize]),
        arguments: &str,
    ) -> std::result::Result<Place, Message> {
        if arguments != self.arguments {
            return Err(Message::Refused(format!(
                "it makes the parameter server with other tensors or options than those that it was made with: {arguments}; there {}: give the same",
                self.arguments
            )));
        }
        let (worker, count) = match shard.give_place(|worker| given.contains(&worker)) {
            Ok(given) => given,
            Err(NoPlace::NotNow(text)) => return Err(Spoken::Later(text).emit()),
            Err(NoPlace::Never(text)) => return Err(Message::Refused(text)),
        };
        let layout = &shared.layout;
        let mut contacts = self.contacts.clone();
        let ended = layout.servers.iter().filter(|&&rank: &&Rank| {
            let driving = shared.comm.driving();
            driving.is_ok_and(|driving| driving.engine().has_ended(rank))
        });
        for &rank in ended {
            contacts[rank as usize].clear();
        }
        Ok(Place {
            worker: worker as u32,
            count,
            ranks: self.ranks,
            has_function: self.has_function,
            transport: self.transport.clone(),
            contacts,
            parts: self.parts.clone(),
        })
    }
}
