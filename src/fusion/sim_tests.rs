//! Machines of several ranks with random arrivals, over a simulated bitwise-and reduction, in
//! virtual time.

use super::{Action, FusionOptions, Machine, TensorSet, TensorSpec};
use crate::prng::Prng;
use crate::time::Time;
use crate::types::DataType;
use std::sync::Arc;
use std::time::Duration;

const SEEDS: u64 = 1000;
const STEPS: usize = 3;
/// Far above what any seed needs; a protocol that spins or hangs runs into it.
const EVENTS_MAX: usize = 100_000;

/// One rank: its machine, what it will announce when, and what it flushed.
struct Node {
    machine: Machine,
    arrivals: Vec<(Time, usize)>,
    end: Time,
    is_end_told: bool,
    entered: Option<Entered>,
    is_step_done: bool,
    /// Per flush: tensors, and when it was handed out.
    flushes: Vec<(Vec<u32>, Time)>,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Entered {
    Round,
    Order,
}

struct World {
    prng: Prng,
    set: Arc<TensorSet>,
    options: FusionOptions,
    nodes: Vec<Node>,
    now: Time,
    latency_ns: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let mut prng = Prng::new(seed);
        let dtypes = [DataType::F32, DataType::Bf16, DataType::F64];
        let dtypes = &dtypes[..1 + prng.below(3) as usize];
        let tensors = prng.below(80);
        // Sometimes one tensor is most of the step.
        let large = prng.below(160);
        let specs = (0..tensors)
            .map(|t| TensorSpec {
                name: format!("t{t}"),
                count: match prng.below(8) {
                    _ if t == large => 1_000_000,
                    0 => 0,
                    1 => 200 + prng.below(200),
                    _ => 1 + prng.below(60),
                },
                dtype: dtypes[prng.below(dtypes.len() as u64) as usize],
            })
            .collect();
        let set = Arc::new(TensorSet::new(specs).unwrap());
        let options = FusionOptions {
            bytes_max: 64 + 8 * prng.below(100),
            age_max: Duration::from_micros([0, 100, 5000][prng.below(3) as usize]),
            tensors_max: [1, 3, usize::MAX][prng.below(3) as usize],
            ..FusionOptions::default()
        };
        let node = |_| Node {
            machine: Machine::new(set.clone(), options.clone()).unwrap(),
            arrivals: Vec::new(),
            end: Time(0),
            is_end_told: false,
            entered: None,
            is_step_done: false,
            flushes: Vec::new(),
        };
        let nodes = (0..1 + prng.below(6)).map(node).collect();
        let latency_ns = prng.below(300_000);
        World {
            prng,
            set,
            options,
            nodes,
            now: Time(0),
            latency_ns,
        }
    }

    /// Draws when each rank announces what: own order, own speed, sometimes everything at once.
    fn draw_step(&mut self) {
        for node in &mut self.nodes {
            let pace_ns = [0, 10_000, 1_000_000][self.prng.below(3) as usize];
            let mut order: Vec<usize> = (0..self.set.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, self.prng.below(i as u64 + 1) as usize);
            }
            let mut at = self
                .now
                .after(Duration::from_nanos(self.prng.below(2_000_000)));
            node.arrivals.clear();
            for tensor in order {
                at = at.after(Duration::from_nanos(self.prng.below(pace_ns + 1)));
                node.arrivals.push((at, tensor));
            }
            node.arrivals.reverse();
            node.end = at.after(Duration::from_nanos(self.prng.below(2 * pace_ns + 1)));
            (node.is_end_told, node.is_step_done) = (false, false);
            node.flushes.clear();
        }
    }

    fn deliver_arrivals(&mut self) {
        for node in &mut self.nodes {
            while let Some(&(at, tensor)) = node.arrivals.last().filter(|(at, _)| *at <= self.now) {
                node.machine.handle_ready(tensor, at).unwrap();
                node.arrivals.pop();
            }
            if node.arrivals.is_empty() && node.end <= self.now && !node.is_end_told {
                node.machine.handle_end().unwrap();
                node.is_end_told = true;
            }
        }
    }

    fn poll_all(&mut self) {
        for node in &mut self.nodes {
            while let Some(action) = node.machine.poll_action(self.now) {
                match action {
                    Action::StartRound => node.entered = Some(Entered::Round),
                    Action::ShareOrder => node.entered = Some(Entered::Order),
                    Action::EndStep => node.is_step_done = true,
                    Action::GatherReady => panic!("no tensor is missing"),
                    Action::StartFlush(flush) => {
                        let tensors = node.machine.tensors_of(flush).to_vec();
                        node.flushes.push((tensors, self.now));
                    }
                }
            }
        }
    }

    /// Ends the collective that all have entered; true if there was one.
    fn end_collective(&mut self) -> bool {
        let Some(kind) = self.nodes[0].entered else {
            return false;
        };
        if !self.nodes.iter().all(|node| node.entered.is_some()) {
            return false;
        }
        let mut all = vec![u64::MAX; self.nodes[0].machine.round_words().len()];
        let order = self.nodes[0].machine.arrivals().to_vec();
        for node in &self.nodes {
            assert_eq!(node.entered, Some(kind), "ranks run different operations");
            for (word, own) in all.iter_mut().zip(node.machine.round_words()) {
                *word &= own;
            }
        }
        self.now.0 += self.latency_ns;
        self.deliver_arrivals();
        for node in &mut self.nodes {
            node.entered = None;
            match kind {
                Entered::Round => node.machine.handle_round(&all, self.now).unwrap(),
                Entered::Order => node.machine.handle_order(&order).unwrap(),
            }
        }
        true
    }

    /// Moves the time to the next thing that happens by itself.
    fn advance(&mut self) {
        let next = |node: &Node| {
            let arrival = node.arrivals.last().map(|(at, _)| *at);
            let end = (!node.is_end_told).then_some(node.end.max(arrival.unwrap_or(node.end)));
            let deadline = node.machine.next_deadline();
            [arrival, end, deadline].into_iter().flatten().min()
        };
        let next = self.nodes.iter().filter_map(next).min();
        self.now = next.expect("nothing will ever happen again").max(self.now);
    }

    fn run_step(&mut self) {
        for _ in 0..EVENTS_MAX {
            self.deliver_arrivals();
            self.poll_all();
            if self.nodes.iter().all(|node| node.is_step_done) {
                return;
            }
            if !self.end_collective() {
                self.advance();
            }
        }
        panic!("the step does not end");
    }

    fn check_step(&self) {
        let tensors = |node: &Node| -> Vec<Vec<u32>> {
            node.flushes
                .iter()
                .map(|(tensors, _)| tensors.clone())
                .collect()
        };
        let first = tensors(&self.nodes[0]);
        for node in &self.nodes {
            assert_eq!(tensors(node), first, "ranks flush differently");
        }
        let mut times = vec![0; self.set.len()];
        for flush in &first {
            let bytes: u64 = flush.iter().map(|&t| self.set.bytes(t as usize)).sum();
            assert!(bytes <= self.options.bytes_max || flush.len() == 1);
            assert!(flush.len() <= self.options.tensors_max);
            for &tensor in flush {
                times[tensor as usize] += 1;
                let dtype = self.set.spec(tensor as usize).dtype;
                assert_eq!(dtype, self.set.spec(flush[0] as usize).dtype);
            }
        }
        for (tensor, times) in times.into_iter().enumerate() {
            let expected = usize::from(self.set.bytes(tensor) > 0);
            assert_eq!(times, expected, "{} per step", self.set.label(tensor));
        }
    }
}

#[test]
fn all_ranks_flush_every_tensor_once_and_alike_whatever_the_order_of_arrivals() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        for step in 0..STEPS {
            println!("seed {seed} step {step}");
            world.draw_step();
            world.run_step();
            world.check_step();
            for node in &mut world.nodes {
                node.machine.begin_step();
            }
        }
    }
}

#[test]
fn no_tensor_waits_much_longer_than_the_age_after_the_slowest_rank_has_it() {
    for seed in 0..SEEDS {
        let mut world = World::new(seed);
        if seed % 2 == 1 {
            // With an order that is kept.
            world.draw_step();
            world.run_step();
            world
                .nodes
                .iter_mut()
                .for_each(|node| node.machine.begin_step());
        }
        world.draw_step();
        let mut ready = vec![Time(0); world.set.len()];
        for node in &world.nodes {
            for &(at, tensor) in &node.arrivals {
                ready[tensor] = ready[tensor].max(at);
            }
        }
        world.run_step();
        // At worst a useless round waits for a rank that pauses, then all pause after it, then
        // comes the round that flushes.
        let age = world.options.age_max;
        let limit = age
            + 2 * (age / 4).max(super::machine::RETRY_MIN)
            + Duration::from_nanos(3 * world.latency_ns);
        for (tensors, at) in &world.nodes[0].flushes {
            for &tensor in tensors {
                let waited = at.since(ready[tensor as usize]);
                assert!(waited <= limit, "seed {seed}: {waited:?} > {limit:?}");
            }
        }
    }
}
