//! Ranks of parameter servers in virtual time.

use super::door::{Door, Known};
use super::opening::open_simulated;
use super::request::Request;
use super::shard::Shard;
use super::shared::Shared;
use super::sim_lobby::{Lobbies, Lobby};
use super::*;
use crate::comm::Simulation;
use crate::prng::Prng;
use crate::time::Time;
use std::time::Duration;

pub const PUSHES: u64 = 12;
/// Before this push a worker asks for something, or stays away.
const SPECIAL: u64 = 5;
pub const EVICT_AFTER: Duration = Duration::from_millis(200);
const AWAY: Duration = Duration::from_secs(10);
/// How often a server looks whether somebody is overdue, at most.
pub const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Both sides of a rank.
pub struct Rank {
    pub shared: Arc<Shared>,
    pub shard: Option<Shard>,
    pub door: Option<Door<Lobby>>,
    pub worker: Option<Worker>,
    pub weights: Option<Buffer<f32>>,
    gradient: Buffer<f32>,
    /// When it computes until, in a run.
    pub busy: Option<Time>,
    pub state: State,
    pub pushes: u64,
    /// How many processes have had its place before.
    pub process: u64,
    /// What it asks for before its sixth push, if anything.
    pub request: Option<Request>,
    /// It stays away then, for longer than others wait.
    pub is_away: bool,
    /// It detaches then, and comes back.
    pub leaves: bool,
    /// It does not finish yet.
    pub stays: bool,
    pub is_evicted: bool,
    pub is_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// A newcomer that does not know the servers yet.
    Coming,
    /// A newcomer that the servers let in.
    LetIn,
    Opening,
    Beginning,
    Computing,
    Asking,
    Leaving,
    Away,
    Returning,
    Attaching,
    Pushing,
    Pulling,
    Finishing,
    Done,
}

impl Rank {
    /// All ranks of a simulation but the spare ones, which come later.
    pub fn all(
        simulation: &Simulation,
        tensors: &[TensorSpec],
        options: &ServerOptions,
    ) -> Vec<Rank> {
        let all = simulation.communicators().iter();
        let there = all.filter(|comm| simulation.world().is_alive(comm.rank()));
        let made = open_simulated(there, tensors, options).unwrap().into_iter();
        made.map(|made| Rank::of(made.shared, made.shard, made.worker))
            .collect()
    }

    /// Opens the doors of all servers.
    pub fn open_doors(
        simulation: &Simulation,
        all: &mut [Rank],
        (tensors, options): (&[TensorSpec], &ServerOptions),
    ) -> Lobbies {
        let ranks = all.len() as u32;
        let contacts = (0..ranks).map(|rank| simulation.contact(rank).unwrap());
        let contacts: Vec<Vec<u8>> = contacts.collect();
        let parts: Vec<_> = all.iter().map(|rank| rank.shared.own_parts()).collect();
        let mut lobbies = Lobbies::default();
        for rank in all {
            let lobby = lobbies.open();
            if rank.shard.is_none() {
                continue;
            }
            let known = Known {
                arguments: options.describe(tensors),
                has_function: false,
                ranks,
                transport: "sim".into(),
                contacts: contacts.clone(),
                parts: parts.clone(),
            };
            let mut door = Door::new(rank.shared.clone(), known, lobby);
            door.look_every = Duration::ZERO;
            rank.door = Some(door);
        }
        lobbies
    }

    pub fn of(shared: Arc<Shared>, shard: Option<Shard>, worker: Option<Worker>) -> Rank {
        let count = shared.layout.total();
        Rank {
            weights: worker.is_some().then(|| shared.comm.alloc(count).unwrap()),
            gradient: shared.comm.alloc(count).unwrap(),
            shared,
            shard,
            door: None,
            worker,
            busy: None,
            state: State::Opening,
            pushes: 0,
            process: 0,
            request: None,
            is_away: false,
            leaves: false,
            stays: false,
            is_evicted: false,
            is_over: false,
        }
    }

    /// It has come later, and is not there yet.
    pub fn is_new(&self) -> bool {
        matches!(self.state, State::LetIn | State::Attaching)
    }

    /// Its server has seen that somebody is gone.
    pub fn has_lost(&self) -> bool {
        let shard = self.shard.as_ref();
        shard.is_some_and(|shard| !shard.report().lost.is_empty())
    }

    pub fn go_on(
        &mut self,
        now: Time,
        speed: u64,
        prng: &mut Prng,
    ) -> std::result::Result<(), String> {
        let text = |error: Error| error.to_string();
        if self.state == State::Coming {
            return Ok(());
        }
        let mut is_served = true;
        if let Some(shard) = &mut self.shard {
            is_served = shard.turn().map_err(text)?;
            self.door.take_if(|_| is_served);
            if let Some(door) = &mut self.door {
                door.turn(shard).map_err(text)?;
            }
        }
        let (Some(worker), Some(weights)) = (&mut self.worker, &self.weights) else {
            self.is_over = is_served;
            return Ok(());
        };
        loop {
            match worker.turn() {
                Err(Error::Timeout { .. }) if self.is_away && self.state != State::Done => {
                    (self.is_evicted, self.state) = (true, State::Done);
                }
                Err(_) if self.is_evicted => {}
                turned => turned.map_err(text)?,
            }
            let next = match self.state {
                State::Opening => {
                    if worker.number == 0 {
                        worker.start_init(&weights.cast().unwrap()).unwrap();
                    }
                    State::Beginning
                }
                State::LetIn if worker.is_ready() => {
                    self.pushes = worker.begin().1;
                    worker.start_request(&Request::Attach).unwrap();
                    State::Attaching
                }
                State::Beginning if worker.is_ready() && worker.is_pushed() => State::Computing,
                State::Computing if self.pushes == PUSHES => {
                    if !worker.is_applied() || self.stays {
                        return Ok(());
                    }
                    worker.start_finish().unwrap();
                    State::Finishing
                }
                State::Computing if self.pushes == SPECIAL && self.leaves => {
                    if !worker.is_applied() {
                        return Ok(());
                    }
                    worker.start_finish().unwrap();
                    State::Leaving
                }
                State::Leaving if worker.is_idle() => {
                    self.busy = Some(Time(now.0 + prng.below(40 * speed)));
                    State::Away
                }
                State::Away if self.busy.is_some_and(|busy| now < busy) => return Ok(()),
                State::Away => {
                    self.busy = None;
                    worker.start_return().unwrap();
                    State::Returning
                }
                State::Returning if worker.is_idle() => {
                    worker.start_request(&Request::Attach).unwrap();
                    State::Attaching
                }
                State::Attaching if worker.is_answered() => {
                    worker.end_return(worker.answer_of_all().unwrap());
                    self.leaves = false;
                    worker.start_pull(weights.cast().unwrap());
                    State::Pulling
                }
                State::Computing if self.pushes == SPECIAL && self.request.is_some() => {
                    let request = self.request.take().unwrap();
                    worker.start_request(&request).unwrap();
                    State::Asking
                }
                State::Asking if worker.is_answered() => {
                    worker.answer_of_all().unwrap();
                    State::Computing
                }
                State::Computing => match self.busy {
                    None => {
                        let away = match self.is_away && self.pushes == SPECIAL {
                            true => AWAY,
                            false => Duration::ZERO,
                        };
                        self.busy = Some(Time(now.0 + speed + prng.below(speed)).after(away));
                        return Ok(());
                    }
                    Some(busy) if now < busy => return Ok(()),
                    Some(_) if !worker.is_ok() => {
                        self.busy = Some(Time(now.0 + speed));
                        return Ok(());
                    }
                    Some(_) => {
                        self.busy = None;
                        self.pushes += 1;
                        // Whole numbers, so that sums are exact: which worker, and which push.
                        let value = gradient((worker.number, self.process), self.pushes);
                        self.gradient
                            .write(0, &vec![value; self.gradient.len()])
                            .unwrap();
                        worker.start_push(self.gradient.cast().unwrap()).unwrap();
                        State::Pushing
                    }
                },
                // It may go without the OK of its last push.
                State::Pushing
                    if worker.is_pushed()
                        && (worker.is_ok() || (self.leaves && self.pushes == SPECIAL)) =>
                {
                    worker.start_pull(weights.cast().unwrap());
                    State::Pulling
                }
                State::Pulling if worker.is_pulled() => {
                    let versions = worker.take_pulled();
                    let all = weights.to_vec().unwrap();
                    for (shard, _) in versions.iter().enumerate() {
                        let range = self.shared.layout.range(shard);
                        let part = &all[range];
                        if part.iter().any(|&one| one != part[0]) {
                            return Err(format!("torn: {part:?}"));
                        }
                    }
                    State::Computing
                }
                State::Finishing if worker.is_idle() => State::Done,
                State::Done => {
                    self.is_over = is_served;
                    return Ok(());
                }
                _ => return Ok(()),
            };
            self.state = next;
        }
    }
}

/// What a worker pushes; its place may have been that of other processes before.
pub fn gradient((worker, process): (usize, u64), push: u64) -> f32 {
    -((worker as f32 + 1.0) * 64.0 + push as f32 + process as f32 * 1024.0)
}
