//! Processes that take places of workers of a parameter server in virtual time: what `coming.rs`
//! does, step by step, over conversations that are no sockets.

use super::door::{Over, Talk};
use super::layout::Layout;
use super::shared::Shared;
use super::sim_lobby::{End, Lobbies};
use super::sim_ranks::{Rank, State};
use super::spoken::{Arrival, Place, Spoken};
use super::*;
use crate::comm::Simulation;
use crate::comm::server::checkpoint::text_of;
use crate::prng::Prng;
use crate::time::Time;
use crate::transport::sim::World;
use crate::types::Rank as RankNumber;
use std::sync::OnceLock;

/// How often a newcomer asks for a place.
const ASKS: u32 = 12;

/// See the module.
pub struct Newcomer {
    /// It goes on then.
    next: Time,
    /// Its process is killed then, and another one comes.
    dies: Option<Time>,
    speed: u64,
    asks: u32,
    pub step: Step,
    talks: Vec<(RankNumber, End)>,
    place: Option<Place>,
    /// Its rank, since it has entered.
    rank: Option<RankNumber>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Asks,
    /// It has a place, and needs [`Newcomer::enter`].
    Enters,
    Comes,
    /// The servers know it and let it in.
    Waits,
    Works,
    /// It got no place.
    Gone,
}

impl Newcomer {
    pub fn new(begins: Time, dies: Option<Time>, speed: u64) -> Newcomer {
        Newcomer {
            next: begins,
            dies,
            speed,
            asks: 0,
            step: Step::Asks,
            talks: Vec::new(),
            place: None,
            rank: None,
        }
    }

    /// Nobody waits for it any more.
    pub fn is_settled(&self) -> bool {
        matches!(self.step, Step::Works | Step::Gone)
    }

    /// Does the next thing if it is time. `leaders`: the servers that may lead.
    pub fn go_on(
        &mut self,
        all: &mut [Rank],
        (world, lobbies): (&World, &Lobbies),
        (tensors, options): (&[TensorSpec], &ServerOptions),
        prng: &mut Prng,
    ) {
        let now = world.now();
        if self.dies.is_some_and(|dies| now >= dies) && self.step != Step::Gone {
            self.dies = None;
            self.begin_again(world);
        }
        if self.is_settled() {
            return;
        }
        if now >= self.next {
            self.next = Time(now.0 + 1 + prng.below(self.speed));
            match self.step {
                Step::Asks => self.ask(all, lobbies, options.describe(tensors)),
                Step::Comes => self.come(all, world),
                Step::Waits => {
                    let rank = self.rank.expect("it has entered");
                    // Servers leave as soon as all workers have finished.
                    let is_over = all.iter().any(|one| one.shard.is_some() && one.is_over);
                    let own = of_rank(all, rank);
                    if own.state != State::LetIn {
                        self.talks.clear();
                    }
                    if !own.is_new() {
                        self.step = Step::Works;
                    } else if !world.is_alive(rank) || is_over {
                        world.kill(rank);
                        self.step = Step::Gone;
                    }
                }
                Step::Enters | Step::Works | Step::Gone => {}
            }
        }
        world.wake_at(0, self.next);
        if let Some(dies) = self.dies {
            world.wake_at(0, dies);
        }
    }

    /// Another process comes in place of this one.
    fn begin_again(&mut self, world: &World) {
        self.talks.clear();
        self.place = None;
        if let Some(rank) = self.rank.take() {
            world.kill(rank);
        }
        self.step = Step::Asks;
    }

    fn ask(&mut self, all: &[Rank], lobbies: &Lobbies, arguments: String) {
        let Some((_, talk)) = self.talks.first_mut() else {
            if self.asks == ASKS {
                self.step = Step::Gone;
                return;
            }
            let layout = &all[0].shared.layout;
            let server = layout.servers[self.asks as usize % layout.leaders()];
            self.asks += 1;
            if let Some(mut talk) = lobbies.visit(server) {
                talk.say(&Spoken::Ask(arguments).emit());
                self.talks.push((server, talk));
            }
            return;
        };
        match talk.hear() {
            Ok(None) => {}
            Ok(Some(message)) => match Spoken::parse(&message) {
                Some(Spoken::Place(place)) => {
                    self.place = Some(place);
                    self.step = Step::Enters;
                }
                Some(Spoken::Later(_)) => self.talks.clear(),
                _ => self.step = Step::Gone,
            },
            Err(Over) => self.talks.clear(),
        }
    }

    /// Takes the place that it has, and comes to all servers.
    pub fn enter(
        &mut self,
        simulation: &mut Simulation,
        all: &mut Vec<Rank>,
        lobbies: &Lobbies,
        (tensors, options): (&[TensorSpec], &ServerOptions),
    ) {
        let place = self.place.as_ref().expect("it has a place");
        let layout = Layout::new(tensors, options, place.ranks).unwrap();
        let rank = layout.workers[place.worker as usize];
        if !simulation.world().is_vacant(rank) {
            // It was evicted, and two processes cannot have one rank here.
            simulation.world().kill(rank);
        }
        simulation.enter(rank).unwrap();
        self.rank = Some(rank);
        let comm = simulation.communicators()[rank as usize].clone();
        let data = comm.window_of_slots(&comm.alloc::<u8>(0).unwrap());
        let words = comm.window_of_slots(&comm.alloc(layout.words()).unwrap());
        let shared = Arc::new(Shared {
            comm,
            layout,
            tensors: text_of(tensors),
            data: data.unwrap(),
            words: words.unwrap(),
            gradients: OnceLock::new(),
        });
        let number = place.worker as usize;
        let worker = Worker::new(shared.clone(), number, options.evict_after).unwrap();
        let arrival = Spoken::Come(Arrival {
            worker: place.worker,
            count: place.count,
            contact: simulation.contact(rank).unwrap(),
            parts: shared.own_parts(),
        });
        let (leader, talk) = self.talks.pop().expect("the leader keeps the place");
        let mut talk = Some(talk);
        let mut is_whole = true;
        for &server in &shared.layout.servers {
            let contact = &place.contacts[server as usize];
            if contact.is_empty() {
                continue;
            }
            let known = talk.take_if(|_| server == leader);
            let Some(mut talk) = known.or_else(|| lobbies.visit(server)) else {
                is_whole = false;
                continue;
            };
            talk.say(&arrival.emit());
            self.talks.push((server, talk));
            shared.comm.connect_one(server, contact).unwrap();
        }
        let mut own = Rank::of(shared, None, Some(worker));
        (own.state, own.process) = (State::Coming, place.count);
        match all.iter_mut().find(|old| old.shared.comm.rank() == rank) {
            Some(old) => *old = own,
            None => all.push(own),
        }
        self.step = Step::Comes;
        if !is_whole {
            self.begin_again(simulation.world());
        }
    }

    fn come(&mut self, all: &mut [Rank], world: &World) {
        let rank = self.rank.expect("it has entered");
        let own = of_rank(all, rank);
        for (_, talk) in &mut self.talks {
            match talk.hear() {
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.begin_again(world);
                    self.step = Step::Gone;
                    return;
                }
                Err(Over) => return self.begin_again(world),
            }
        }
        let place = self.place.as_ref().expect("it has a place");
        let comm = &own.shared.comm;
        let mut is_connected = true;
        for &(server, _) in &self.talks {
            let driving = comm.driving().unwrap();
            let mut engine = driving.engine();
            engine.drive(world.now());
            engine.drive_slow(world.now());
            let is_lost = !engine.is_connected(server) && !engine.is_connecting(server);
            is_connected &= engine.is_connected(server);
            drop(engine);
            if is_lost {
                let contact = &place.contacts[server as usize];
                comm.connect_one(server, contact).unwrap();
            }
        }
        if !is_connected {
            return;
        }
        for (server, talk) in &mut self.talks {
            let parts = place.parts[*server as usize];
            if own.shared.set_parts(*server, parts).is_err() {
                return self.begin_again(world);
            }
            talk.say(&Spoken::Here.emit());
        }
        own.state = State::LetIn;
        self.step = Step::Waits;
    }
}

fn of_rank(all: &mut [Rank], rank: RankNumber) -> &mut Rank {
    let mut all = all.iter_mut();
    all.find(|one| one.shared.comm.rank() == rank)
        .expect("it has entered")
}
