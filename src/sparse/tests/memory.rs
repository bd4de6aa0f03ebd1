//! All ranks' machines in one thread: whichever can go on is drawn by a seed.

use crate::prng::Prng;
use crate::sparse::{Action, Arrived, Entries, Finished, Machine, Message, Request};
use std::collections::{HashMap, VecDeque};

/// What a rank is at.
enum Place {
    /// To be resumed with this.
    Ready(Arrived),
    /// Waiting for a request; collectives have a number.
    Waiting(Request, usize),
    Done,
}

struct World<E> {
    machines: Vec<Machine<E>>,
    places: Vec<Place>,
    /// By sender and receiver.
    queues: HashMap<(u32, u32), VecDeque<Message>>,
    /// By number and rank.
    collectives: Vec<Vec<Option<Request>>>,
    /// Collectives that each rank has begun.
    begun: Vec<usize>,
    told: Vec<Vec<Arrived>>,
}

/// Runs all ranks to their ends.
pub fn run<E: Entries + Sync>(machines: Vec<Machine<E>>, seed: u64) -> Vec<Finished<E>> {
    run_with_record(machines, seed).0
}

/// As [`run`], and returns what each rank was told, request by request.
pub fn run_with_record<E: Entries + Sync>(
    machines: Vec<Machine<E>>,
    seed: u64,
) -> (Vec<Finished<E>>, Vec<Vec<Arrived>>) {
    let ranks = machines.len();
    let mut world = World {
        machines,
        places: (0..ranks).map(|_| Place::Ready(Arrived::Nothing)).collect(),
        queues: HashMap::new(),
        collectives: Vec::new(),
        begun: vec![0; ranks],
        told: vec![Vec::new(); ranks],
    };
    let mut prng = Prng::new(seed);
    let mut idle = 0;
    while world
        .places
        .iter()
        .any(|place| !matches!(place, Place::Done))
    {
        let rank = prng.below(ranks as u64) as usize;
        idle = if world.step(rank) { 0 } else { idle + 1 };
        assert!(idle < 10_000 + 1000 * ranks, "no rank can go on");
    }
    assert!(
        world.queues.values().all(VecDeque::is_empty),
        "messages that nobody received"
    );
    let end = |m: Machine<E>| {
        assert_eq!(m.failure(), None);
        m.finish().expect("a machine that is done")
    };
    (world.machines.into_iter().map(end).collect(), world.told)
}

impl<E: Entries + Sync> World<E> {
    /// Lets a rank go on if it can.
    fn step(&mut self, rank: usize) -> bool {
        match std::mem::replace(&mut self.places[rank], Place::Done) {
            Place::Done => false,
            Place::Ready(arrived) => {
                self.places[rank] = self.resume(rank, arrived);
                true
            }
            Place::Waiting(request, number) => match self.complete(rank, &request, number) {
                Some(arrived) => {
                    self.told[rank].push(arrived.clone());
                    self.places[rank] = Place::Ready(arrived);
                    true
                }
                None => {
                    self.places[rank] = Place::Waiting(request, number);
                    false
                }
            },
        }
    }

    fn resume(&mut self, rank: usize, arrived: Arrived) -> Place {
        match self.machines[rank].next(arrived) {
            Action::Done => Place::Done,
            Action::Wait => panic!("a wait without a start"),
            Action::Start(request) => {
                let number = self.post(rank, &request);
                assert_eq!(self.machines[rank].next(Arrived::Nothing), Action::Wait);
                Place::Waiting(request, number)
            }
        }
    }

    fn post(&mut self, rank: usize, request: &Request) -> usize {
        if let Request::Exchange { sends, .. } = request {
            for (to, message) in sends {
                assert_ne!(*to as usize, rank);
                let queue = self.queues.entry((rank as u32, *to)).or_default();
                queue.push_back(message.clone());
            }
            return 0;
        }
        let number = self.begun[rank];
        self.begun[rank] += 1;
        if self.collectives.len() == number {
            self.collectives.push(vec![None; self.machines.len()]);
        }
        self.collectives[number][rank] = Some(request.clone());
        number
    }

    fn complete(&mut self, rank: usize, request: &Request, number: usize) -> Option<Arrived> {
        if let Request::Exchange { receives, .. } = request {
            let is_there = |(from, _): &(u32, u64)| {
                let queue = self.queues.get(&(*from, rank as u32));
                queue.is_some_and(|q| !q.is_empty())
            };
            if !receives.iter().all(is_there) {
                return None;
            }
            let messages = receives.iter().map(|(from, bytes)| {
                let queue = self.queues.get_mut(&(*from, rank as u32));
                let message = queue
                    .and_then(VecDeque::pop_front)
                    .expect("one that is there");
                assert_eq!(message.bytes, *bytes, "rank {from} to {rank}");
                message
            });
            return Some(Arrived::Messages(messages.collect()));
        }
        let all: Option<Vec<&Request>> = self.collectives[number]
            .iter()
            .map(Option::as_ref)
            .collect();
        all.map(|all| combine(rank, &all))
    }
}

fn words_of(request: &Request) -> &[u64] {
    match request {
        Request::Sum { words, .. }
        | Request::AllToAll { words, .. }
        | Request::GatherWords { words, .. } => words,
        other => panic!("ranks disagree: {other:?} among words"),
    }
}

fn combine(rank: usize, all: &[&Request]) -> Arrived {
    let same = all
        .iter()
        .all(|r| std::mem::discriminant(*r) == std::mem::discriminant(all[0]));
    assert!(same, "ranks ask for different collectives");
    match all[rank] {
        Request::Sum { words, is_wide } => {
            let sum = |i| all.iter().map(|r| words_of(r)[i]).sum::<u64>();
            let sums: Vec<u64> = (0..words.len()).map(sum).collect();
            assert!(
                *is_wide || sums.iter().all(|s| *s <= u32::MAX.into()),
                "a sum beyond its words"
            );
            Arrived::Words(sums)
        }
        Request::AllToAll { .. } => Arrived::Words(all.iter().map(|r| words_of(r)[rank]).collect()),
        Request::GatherWords { .. } => {
            Arrived::Words(all.iter().flat_map(|r| words_of(r).to_vec()).collect())
        }
        Request::Gather { bytes, .. } => {
            let own = |r: &&Request| match r {
                Request::Gather { own, bytes: theirs } => {
                    assert_eq!(bytes, theirs, "ranks disagree about lengths");
                    own.clone()
                }
                other => panic!("ranks disagree: {other:?}"),
            };
            let messages: Vec<Message> = all.iter().map(own).collect();
            assert!(messages.iter().zip(bytes).all(|(m, b)| m.bytes == *b));
            Arrived::Messages(messages)
        }
        Request::Exchange { .. } => unreachable!("exchanges are no collectives"),
    }
}
