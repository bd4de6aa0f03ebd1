//! What one seed stands for: ranks, fabric, settings, a list of operations, and one fault.

use crate::prng::Prng;
use crate::values::Planned;
use linerate::sim::{Flaw, Hosts, Link, SimOptions};
use linerate::{Collective, Config, DataType, Rank, ReduceOp};
use std::time::Duration;

/// What goes wrong besides jitter, loss, duplicates and reordering. Times are nanoseconds after the
/// first start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    None,
    /// The ranks below `below` are cut off from the others and reached again before anybody gives
    /// up.
    Partition {
        below: Rank,
        at_ns: u64,
        for_ns: u64,
    },
    /// The ranks below `below` are cut off for longer than the job lasts.
    LastingPartition {
        below: Rank,
        at_ns: u64,
    },
    Death {
        rank: Rank,
        at_ns: u64,
    },
    /// The rank cancels its oldest operation under way.
    Cancel {
        rank: Rank,
        at_ns: u64,
    },
    /// The rank calls this operation with one element more than the others.
    Mismatch {
        rank: Rank,
        operation: usize,
    },
    /// The rank never calls this operation, nor any after it.
    Absent {
        rank: Rank,
        operation: usize,
    },
}

/// A job, and everything that happens to it.
#[derive(Clone, Debug)]
pub struct Job {
    pub options: SimOptions,
    pub config: Config,
    pub operations: Vec<Planned>,
    /// Operations that a rank has under way at most.
    pub at_once: usize,
    /// When each rank calls each operation, nanoseconds after the first start; a rank calls them in
    /// order.
    pub starts_ns: Vec<Vec<u64>>,
    pub fault: Fault,
}

impl Job {
    /// The job of a seed on a fabric with this flaw.
    pub fn new(seed: u64, flaw: Option<Flaw>) -> Job {
        let mut prng = Prng::new(seed ^ 0x5eed);
        let ranks = 2 + prng.below(7) as u32;
        let options = SimOptions {
            flaw,
            ..draw_options(ranks, seed, &mut prng)
        };
        let config = Config {
            timeout: Duration::from_millis(20),
            chunk_bytes: 4096 << prng.below(3),
            window_bytes: (16 << 10) << prng.below(3),
            ..Config::default()
        };
        let count = 3 + prng.below(6) as usize;
        let operations: Vec<Planned> = (0..count)
            .map(|index| draw_operation(seed, index, &options, &mut prng))
            .collect();
        let spread_ns = [0, 2_000, 50_000][prng.below(3) as usize];
        let starts_ns = (0..ranks)
            .map(|_| (0..count).map(|_| prng.below(spread_ns + 1)).collect())
            .collect();
        let at_once = 1 + prng.below(6) as usize;
        let fault = draw_fault(&options, &operations, &mut prng);
        Job {
            options,
            config,
            operations,
            at_once,
            starts_ns,
            fault,
        }
    }

    /// The operation as this rank calls it; `None`: it never does.
    pub fn operation_of(&self, rank: Rank, index: usize) -> Option<Planned> {
        let mut operation = self.operations[index].clone();
        match self.fault {
            Fault::Mismatch {
                rank: r,
                operation: i,
            } if (r, i) == (rank, index) => {
                operation.count += 1;
            }
            Fault::Absent {
                rank: r,
                operation: i,
            } if r == rank && index >= i => return None,
            _ => {}
        }
        Some(operation)
    }
}

fn draw_options(ranks: u32, seed: u64, prng: &mut Prng) -> SimOptions {
    let quiet = SimOptions::new(ranks, seed);
    let place = prng.below(6);
    let hosts = (place == 0 && ranks > 2).then_some(Hosts {
        ranks_per_host: 2,
        nics: 2,
        link: Link::HOST,
    });
    SimOptions {
        network: Link {
            jitter_ns: [0, 2_000, 20_000][prng.below(3) as usize],
            ..quiet.network
        },
        hosts,
        mapped: place >= 4,
        reorder: prng.chance(0.7),
        drop: [0.0, 0.02, 0.1][prng.below(3) as usize],
        duplicate: [0.0, 0.02, 0.2][prng.below(3) as usize],
        retransmit_ns: 10_000 + prng.below(50_000),
        detection_ns: 200_000 + prng.below(500_000),
        ..quiet
    }
}

fn draw_operation(seed: u64, index: usize, options: &SimOptions, prng: &mut Prng) -> Planned {
    let ranks = options.ranks;
    let collective = Collective::ALL[prng.below(Collective::ALL.len() as u64) as usize];
    let dtype = DataType::ALL[prng.below(DataType::ALL.len() as u64) as usize];
    let p = u64::from(ranks);
    let counts = [0, 1, p - 1, p, p + 1, 97, prng.below(700), prng.below(5000)];
    let ops = [
        ReduceOp::Sum,
        ReduceOp::BitXor,
        ReduceOp::Max,
        ReduceOp::Min,
    ];
    let op = Some(ops[prng.below(4) as usize]).filter(|op| op.is_defined_for(dtype));
    let mut operation = Planned {
        salt: crate::prng::mix(seed ^ (index as u64) << 40),
        collective,
        dtype,
        op: op.unwrap_or(ReduceOp::Sum),
        count: counts[prng.below(8) as usize],
        root: prng.below(p) as Rank,
        ranks,
        algorithm: None,
        in_place: prng.chance(0.5),
        registered: prng.chance(0.6),
    };
    let named: Vec<&str> = linerate::collective::algorithms(collective)
        .iter()
        .filter(|algorithm| operation.can_run(algorithm, options.mapped))
        .map(|a| a.name)
        .collect();
    let choice = prng.below(2 * named.len() as u64 + 1) as usize;
    operation.algorithm = named.get(choice).copied();
    operation
}

fn draw_fault(options: &SimOptions, operations: &[Planned], prng: &mut Prng) -> Fault {
    let rank = prng.below(u64::from(options.ranks)) as Rank;
    let below = 1 + prng.below(u64::from(options.ranks) - 1) as Rank;
    let operation = prng.below(operations.len() as u64) as usize;
    // As many at the beginning as later: most jobs take some hundred microseconds.
    let scale = prng.below(9);
    let at_ns = prng.below(2_000 << scale);
    match prng.below(12) {
        0 | 1 => Fault::None,
        2..=4 => {
            let for_ns = 1 + prng.below(options.detection_ns - 1);
            Fault::Partition {
                below,
                at_ns,
                for_ns,
            }
        }
        5 => Fault::LastingPartition { below, at_ns },
        6..=8 => Fault::Death { rank, at_ns },
        9 => Fault::Cancel { rank, at_ns },
        10 if operations[operation].has_count() => Fault::Mismatch { rank, operation },
        _ => Fault::Absent { rank, operation },
    }
}

impl Planned {
    /// Whether another `count` is another operation.
    pub fn has_count(&self) -> bool {
        let has_none = matches!(
            self.collective,
            Collective::AllToAllV | Collective::SendRecv | Collective::Barrier
        );
        !has_none && !self.collective.has_part_lengths()
    }

    /// Whether no rank can end it before every rank has called it.
    pub fn needs_everyone(&self) -> bool {
        match self.collective {
            Collective::Barrier => true,
            Collective::AllReduce | Collective::AllGather | Collective::AllToAll => self.count > 0,
            _ => false,
        }
    }
}
