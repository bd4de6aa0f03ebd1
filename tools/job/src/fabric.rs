//! The sparse allreduce of all ranks in one process: [`run`] drives the library's machines, in
//! memory or on a modelled [`Network`].
//!
//! Machines exchange their messages inside this process. On a network every request is also an
//! operation of real communicators without bytes, and its answer comes when that operation has
//! ended in virtual time. So schedules, chunks, ports and messages are those of the library, and
//! local work takes no time. 256 ranks at the size of BERT need no memory that way.

use linerate::reports::Phase;
use linerate::sim::{Link, SimOptions};
use linerate::transport::Time;
use linerate::unstable::sparse::{
    Action, Arrived, Entries, Finished, Machine, Message, Prices, Request,
};
use linerate::{
    Buffer, Collective, Communicator, Config, DataType, Group, Operation, Rank, ReduceOp,
    Simulation,
};
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Bytes of each rank's buffers, which have no memory.
const BUFFER_BYTES: usize = 1 << 38;
/// Messages of an exchange lie at multiples of this.
const ALIGNMENT: usize = 64;
/// The share of alpha during which a message holds its port: 0.2 us of the paper's 1.5 us, because
/// a port takes 5 million messages a second.
const PORT_SHARE: (u64, u64) = (2, 15);

/// What links cost: a message alpha, a word of 4 bytes beta.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fabric {
    /// Time of a message without bytes.
    pub alpha_ns: u64,
    /// Rate of each rank's port.
    pub bytes_per_second: u64,
    /// Longer messages are cut, so that what forwards them can begin early.
    pub chunk_bytes: usize,
}

impl Fabric {
    /// 1.5 us and 10 GB/s, the fabric of Li and Hoefler, "Near-Optimal Sparse Allreduce for
    /// Distributed Deep Learning", PPoPP 2022.
    pub const PAPER: Fabric = Fabric {
        alpha_ns: 1_500,
        bytes_per_second: 10_000_000_000,
        chunk_bytes: 4 << 20,
    };

    /// Seconds of a word of 4 bytes.
    pub fn beta(&self) -> f64 {
        4.0 / self.bytes_per_second as f64
    }

    /// What the cost model is told of this fabric.
    pub fn prices(&self) -> Prices {
        Prices {
            message: self.alpha_ns as f64 * 1e-9,
            word: self.beta(),
        }
    }

    fn options(&self, ranks: u32) -> SimOptions {
        let port_ns = self.alpha_ns * PORT_SHARE.0 / PORT_SHARE.1;
        SimOptions {
            network: Link {
                latency_ns: self.alpha_ns - port_ns,
                bytes_per_second: self.bytes_per_second,
                per_message_ns: port_ns,
                jitter_ns: 0,
            },
            size_only: true,
            ..SimOptions::new(ranks, 1)
        }
    }
}

/// Communicators of all ranks on a fabric, without bytes.
pub struct Network {
    simulation: Simulation,
    /// Each rank's memory to send from and to receive into.
    buffers: Vec<(Buffer<u8>, Buffer<u8>)>,
}

impl Network {
    /// A network of `ranks` ranks.
    ///
    /// # Errors
    /// The library's text.
    pub fn new(fabric: Fabric, ranks: u32) -> Result<Network, String> {
        let config = Config {
            chunk_bytes: fabric.chunk_bytes,
            timeout: Duration::from_secs(3600),
            ..Config::default()
        };
        let simulation = Simulation::new(fabric.options(ranks), config).map_err(say)?;
        let pair = |comm: &Communicator| Ok((comm.alloc(BUFFER_BYTES)?, comm.alloc(BUFFER_BYTES)?));
        let buffers: linerate::Result<_> = simulation.communicators().iter().map(pair).collect();
        Ok(Network {
            buffers: buffers.map_err(say)?,
            simulation,
        })
    }

    /// How many ranks it has.
    pub fn ranks(&self) -> u32 {
        self.buffers.len() as u32
    }

    fn now(&self) -> Time {
        self.simulation.now()
    }

    /// Bytes that each rank has sent so far.
    fn bytes_sent(&self) -> Vec<u64> {
        let of = |rank| self.simulation.world().statistics(rank).bytes_sent;
        (0..self.ranks()).map(of).collect()
    }

    /// Starts something for a rank, on its communicator and its memory to send from and to receive
    /// into.
    fn start<T>(
        &self,
        rank: Rank,
        start: impl FnOnce(&Communicator, &Buffer<u8>, &Buffer<u8>) -> linerate::Result<T>,
    ) -> Result<T, String> {
        let world = self.simulation.world();
        let (sent, received) = &self.buffers[rank as usize];
        let communicator = &self.simulation.communicators()[rank as usize];
        let started = start(communicator, sent, received);
        world.wake_at(rank, world.now());
        started.map_err(say)
    }

    /// Seconds until all ranks have done what they start together, and the most words that one has
    /// sent.
    ///
    /// # Errors
    /// The library's text.
    pub fn time(
        &mut self,
        start: impl Fn(&Communicator, &Buffer<u8>, &Buffer<u8>) -> linerate::Result<Operation>,
    ) -> Result<(f64, f64), String> {
        let (begin, before) = (self.now(), self.bytes_sent());
        let mut pending = Vec::new();
        for rank in 0..self.ranks() {
            pending.push(Some(self.start(rank, &start)?));
        }
        let mut left = pending.len();
        while left > 0 {
            let moved = self.simulation.advance().map_err(say)?;
            for &rank in moved {
                let slot = &mut pending[rank as usize];
                if let Some(operation) = slot
                    && operation.test().map_err(say)?
                {
                    *slot = None;
                    left -= 1;
                }
            }
        }
        Ok((
            self.now().since(begin).as_secs_f64(),
            self.words_since(&before),
        ))
    }

    fn words_since(&self, before: &[u64]) -> f64 {
        let sent = self.bytes_sent().into_iter().zip(before);
        sent.map(|(now, before)| now - before).max().unwrap_or(0) as f64 / 4.0
    }

    /// A dense allreduce of this many f32, by the faster of a ring and halving: seconds and words.
    ///
    /// # Errors
    /// The library's text.
    pub fn dense(&mut self, count: u64) -> Result<(f64, f64), String> {
        let mut best: Option<(f64, f64)> = None;
        for algorithm in ["ring", "rabenseifner"] {
            let found = self.time(|comm, sent, received| {
                comm.collective(Collective::AllReduce, DataType::F32, count)
                    .op(ReduceOp::Sum)
                    .algorithm(algorithm)
                    .input(sent)
                    .output(received)
                    .start()
            })?;
            if best.is_none_or(|best| found.0 < best.0) {
                best = Some(found);
            }
        }
        best.ok_or_else(|| "no algorithm was timed".into())
    }

    /// Starts a machine's request as an operation; `None` where nothing has to move.
    fn start_request(&self, rank: Rank, request: &Request) -> Result<Option<Operation>, String> {
        let words = |collective, words: &[u64], is_wide: bool| {
            let dtype = if is_wide {
                DataType::U64
            } else {
                DataType::U32
            };
            let each = match collective {
                Collective::AllToAll => 1,
                _ => words.len() as u64,
            };
            (collective, dtype, each, &[][..])
        };
        let (collective, dtype, count, receive_counts) = match request {
            Request::Sum { words: w, is_wide } => words(Collective::AllReduce, w, *is_wide),
            Request::AllToAll { words: w, is_wide } => words(Collective::AllToAll, w, *is_wide),
            Request::GatherWords { words: w, is_wide } => words(Collective::AllGather, w, *is_wide),
            Request::Gather { own, bytes } => {
                (Collective::AllGatherV, DataType::U8, own.bytes, &bytes[..])
            }
            Request::Exchange { sends, receives } => {
                if sends.is_empty() && receives.is_empty() {
                    return Ok(None);
                }
                let started = self.start(rank, |comm, sent, received| {
                    let outgoing = sends.iter().map(|(to, message)| (*to, message.bytes));
                    let group = transfers(comm.group(), sent, true, outgoing);
                    transfers(group, received, false, receives.iter().copied()).start()
                });
                return started.map(Some);
            }
        };
        let started = self.start(rank, |comm, sent, received| {
            comm.collective(collective, dtype, count)
                .receive_counts(receive_counts)
                .input(sent)
                .output(received)
                .start()
        });
        started.map(Some)
    }
}

/// A group with messages that lie one after another in a buffer.
pub fn transfers<'a>(
    group: Group<'a>,
    buffer: &Buffer<u8>,
    is_send: bool,
    messages: impl Iterator<Item = (Rank, u64)>,
) -> Group<'a> {
    let mut end = 0;
    messages.fold(group, |group, (peer, bytes)| {
        let message = buffer.range(end..end + bytes as usize);
        end += (bytes as usize).next_multiple_of(ALIGNMENT);
        match is_send {
            true => group.send(&message, peer),
            false => group.recv(&message, peer),
        }
    })
}

/// What came of all ranks' machines.
pub struct Outcome<E> {
    /// By rank.
    pub finished: Vec<Finished<E>>,
    /// Until the last rank has its result.
    pub seconds: f64,
    /// The most words of all kinds that a rank has sent over the network; 0 in memory.
    pub wire_words: f64,
    /// By rank: phase and end, in seconds, of each of its requests.
    marks: Vec<Vec<(Phase, f64)>>,
}

impl<E: Entries> Outcome<E> {
    /// Seconds from when the last rank is ready for a phase until the last has ended it.
    pub fn span(&self, phase: Phase) -> f64 {
        let (mut begin, mut end) = (0f64, 0f64);
        for marks in &self.marks {
            let Some(first) = marks.iter().position(|mark| mark.0 == phase) else {
                continue;
            };
            let last = marks.iter().rfind(|mark| mark.0 == phase);
            begin = begin.max(first.checked_sub(1).map_or(0.0, |before| marks[before].1));
            end = end.max(last.map_or(0.0, |mark| mark.1));
        }
        end - begin.min(end)
    }

    /// Words of data: most sent, most received, mean received; and most messages sent.
    pub fn words(&self) -> Words {
        let totals: Vec<_> = self.finished.iter().map(|f| f.counters.total()).collect();
        let all: u64 = totals.iter().map(|t| t.data_words_received).sum();
        let most =
            |of: fn(&linerate::reports::Traffic) -> u64| totals.iter().map(of).max().unwrap_or(0);
        Words {
            sent: most(|t| t.data_words_sent),
            received: most(|t| t.data_words_received),
            received_mean: all as f64 / totals.len().max(1) as f64,
            messages: most(|t| t.messages),
            control: most(|t| t.control_words),
        }
    }
}

/// Words of 4 bytes and messages of a step: the most of any rank, or the mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Words {
    /// Words of data that a rank sent, at most.
    pub sent: u64,
    /// Words of data that a rank received, at most.
    pub received: u64,
    /// Words of data that a rank received, in the mean.
    pub received_mean: f64,
    /// Messages that a rank sent, at most.
    pub messages: u64,
    /// Words of sizes and thresholds that a rank sent, at most.
    pub control: u64,
}

/// What a rank does next.
enum Place {
    Ready(Arrived),
    Waiting {
        request: Request,
        number: usize,
        operation: Option<Operation>,
    },
    Done,
}

/// A collective that all ranks take part in.
struct Joint {
    requests: Vec<Option<Request>>,
    count: usize,
    /// The answer, where all ranks get one.
    words: Option<Vec<u64>>,
}

struct Job<'a, E> {
    network: Option<&'a mut Network>,
    began: Time,
    machines: Vec<Machine<E>>,
    places: Vec<Place>,
    /// By sender and receiver.
    queues: HashMap<(Rank, Rank), VecDeque<Message>>,
    collectives: Vec<Joint>,
    /// Collectives that each rank has begun.
    begun: Vec<usize>,
    marks: Vec<Vec<(Phase, f64)>>,
    /// Whether a rank has gathered what every rank reduced, so that the phases after it begin.
    has_states: Vec<bool>,
    /// Ranks whose operation ended before the answer was there: messages without bytes do not wait
    /// for their senders.
    early: Vec<Rank>,
}

/// Runs the machines of all ranks to their ends, on a network or (`None`) in memory, where nothing
/// takes time.
///
/// # Errors
/// The library's text, or that the ranks wait for each other.
pub fn run<E: Entries + Sync>(
    machines: Vec<Machine<E>>,
    network: Option<&mut Network>,
) -> Result<Outcome<E>, String> {
    let ranks = machines.len();
    let before = network.as_ref().map(|network| network.bytes_sent());
    let mut job = Job {
        began: network.as_ref().map_or(Time(0), |network| network.now()),
        network,
        machines,
        places: (0..ranks).map(|_| Place::Ready(Arrived::Nothing)).collect(),
        queues: HashMap::new(),
        collectives: Vec::new(),
        begun: vec![0; ranks],
        marks: vec![Vec::new(); ranks],
        has_states: vec![false; ranks],
        early: Vec::new(),
    };
    let mut awake: Vec<Rank> = (0..ranks as Rank).collect();
    loop {
        let mut has_moved = false;
        awake.append(&mut job.early);
        for rank in awake.drain(..) {
            while job.step(rank as usize)? {
                has_moved = true;
            }
        }
        if job.places.iter().all(|place| matches!(place, Place::Done)) {
            break;
        }
        match &mut job.network {
            Some(network) => awake.extend_from_slice(network.simulation.advance().map_err(say)?),
            None if has_moved => awake.extend(0..ranks as Rank),
            None => return Err("the ranks wait for each other: no one can go on".into()),
        }
    }
    let seconds = job.seconds();
    let wire_words = (job.network.as_ref().zip(before))
        .map_or(0.0, |(network, before)| network.words_since(&before));
    let finished = job.machines.into_iter().map(Machine::finish);
    let finished: Option<Vec<_>> = finished.collect();
    Ok(Outcome {
        finished: finished.ok_or("a machine has no result")?,
        seconds,
        wire_words,
        marks: job.marks,
    })
}

impl<E: Entries + Sync> Job<'_, E> {
    fn seconds(&self) -> f64 {
        let network = self.network.as_ref();
        network.map_or(0.0, |network| network.now().since(self.began).as_secs_f64())
    }

    /// Lets a rank go on if it can.
    fn step(&mut self, rank: usize) -> Result<bool, String> {
        match std::mem::replace(&mut self.places[rank], Place::Done) {
            Place::Done => Ok(false),
            Place::Ready(arrived) => {
                self.places[rank] = self.resume(rank, arrived)?;
                Ok(true)
            }
            Place::Waiting {
                request,
                number,
                mut operation,
            } => {
                let has_ended = match &mut operation {
                    Some(operation) => operation.test().map_err(say)?,
                    None => true,
                };
                let arrived = match has_ended {
                    true => self.answer(rank, &request, number),
                    false => None,
                };
                let Some(arrived) = arrived else {
                    if has_ended && self.network.is_some() {
                        self.early.push(rank as Rank);
                        operation = None;
                    }
                    self.places[rank] = Place::Waiting {
                        request,
                        number,
                        operation,
                    };
                    return Ok(false);
                };
                let (phase, end) = (self.phase_of(rank, &request), self.seconds());
                self.marks[rank].push((phase, end));
                self.places[rank] = Place::Ready(arrived);
                Ok(true)
            }
        }
    }

    /// Requests do not say which phase they are of, but their order does.
    fn phase_of(&mut self, rank: usize, request: &Request) -> Phase {
        let has_states = self.has_states[rank];
        match request {
            Request::Exchange { .. } if has_states => Phase::Balance,
            Request::Exchange { .. } => Phase::Reduce,
            Request::Sum { .. } if has_states => Phase::Select,
            Request::Sum { .. } => Phase::Partition,
            Request::AllToAll { .. } => Phase::Sizes,
            Request::GatherWords { .. } => {
                self.has_states[rank] = true;
                Phase::Sizes
            }
            Request::Gather { .. } => Phase::Gather,
        }
    }

    fn resume(&mut self, rank: usize, arrived: Arrived) -> Result<Place, String> {
        let request = match self.machines[rank].next(arrived) {
            Action::Done => return Ok(Place::Done),
            Action::Wait => return Err("a machine waits for what it has not started".into()),
            Action::Start(request) => request,
        };
        let operation = match &self.network {
            Some(network) => network.start_request(rank as Rank, &request)?,
            None => None,
        };
        let number = self.post(rank, &request);
        let next = self.machines[rank].next(Arrived::Nothing);
        assert_eq!(next, Action::Wait, "a machine waits for what it starts");
        Ok(Place::Waiting {
            request,
            number,
            operation,
        })
    }

    /// Hands messages over. Returns the number of the collective.
    fn post(&mut self, rank: usize, request: &Request) -> usize {
        if let Request::Exchange { sends, .. } = request {
            for (to, message) in sends {
                let queue = self.queues.entry((rank as Rank, *to)).or_default();
                queue.push_back(message.clone());
            }
            return 0;
        }
        let number = self.begun[rank];
        self.begun[rank] += 1;
        if self.collectives.len() == number {
            self.collectives.push(Joint {
                requests: vec![None; self.machines.len()],
                count: 0,
                words: None,
            });
        }
        let joint = &mut self.collectives[number];
        joint.requests[rank] = Some(request.clone());
        joint.count += 1;
        number
    }

    /// What a rank gets, once every rank that has a part in it has given its own.
    fn answer(&mut self, rank: usize, request: &Request, number: usize) -> Option<Arrived> {
        let Request::Exchange { receives, .. } = request else {
            let joint = &mut self.collectives[number];
            return (joint.count == self.machines.len()).then(|| joint.answer(rank));
        };
        let queues = &mut self.queues;
        let is_there = |(from, _): &(Rank, u64)| {
            let queue = queues.get(&(*from, rank as Rank));
            queue.is_some_and(|queue| !queue.is_empty())
        };
        if !receives.iter().all(is_there) {
            return None;
        }
        let messages = receives.iter().map(|(from, bytes)| {
            let queue = queues.get_mut(&(*from, rank as Rank));
            let message = queue.and_then(VecDeque::pop_front).expect("it is there");
            assert_eq!(message.bytes, *bytes, "rank {from} to {rank}");
            message
        });
        Some(Arrived::Messages(messages.collect()))
    }
}

impl Joint {
    fn answer(&mut self, rank: usize) -> Arrived {
        let own = |request: &Option<Request>| match request {
            Some(Request::Sum { words, .. })
            | Some(Request::AllToAll { words, .. })
            | Some(Request::GatherWords { words, .. }) => words.clone(),
            other => panic!("ranks disagree: {other:?} among words"),
        };
        match &self.requests[rank] {
            Some(Request::AllToAll { .. }) => {
                Arrived::Words(self.requests.iter().map(|r| own(r)[rank]).collect())
            }
            Some(Request::Gather { .. }) => {
                let own = |request: &Option<Request>| match request {
                    Some(Request::Gather { own, .. }) => own.clone(),
                    other => panic!("ranks disagree: {other:?} among messages"),
                };
                Arrived::Messages(self.requests.iter().map(own).collect())
            }
            Some(Request::Sum { words, .. }) => {
                let count = words.len();
                let sum = || {
                    let mut sums = vec![0; count];
                    for words in self.requests.iter().map(own) {
                        sums.iter_mut()
                            .zip(words)
                            .for_each(|(sum, word)| *sum += word);
                    }
                    sums
                };
                Arrived::Words(self.words.get_or_insert_with(sum).clone())
            }
            _ => {
                let all = || self.requests.iter().flat_map(own).collect();
                Arrived::Words(self.words.get_or_insert_with(all).clone())
            }
        }
    }
}

fn say(error: linerate::Error) -> String {
    error.to_string()
}
