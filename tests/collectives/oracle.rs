//! What collectives must give, computed by one thread from everyone's inputs, and how to ask for
//! it.

use linerate::{
    Buffer, Collective, CollectiveBuilder, Communicator, DataType, Group, Operation, Rank,
    ReduceOp, Result,
};

/// One collective on one shape.
#[derive(Clone, Debug)]
pub struct Case {
    pub collective: Collective,
    pub algorithm: Option<&'static str>,
    pub ranks: u32,
    pub root: Rank,
    pub count: u64,
    pub op: ReduceOp,
    pub in_place: bool,
    pub registered: bool,
}

/// The buffers of one rank, filled, for a case.
pub struct Prepared {
    case: Case,
    input: Buffer<f32>,
    output: Buffer<f32>,
    /// Of `SendRecv`: to each rank, and from each.
    sends: Vec<Buffer<f32>>,
    receives: Vec<Buffer<f32>>,
}

impl Prepared {
    #[allow(dead_code, reason = "simulated ranks cannot wait")]
    pub fn run(&self, comm: &Communicator) -> Result<()> {
        match self.case.collective {
            Collective::SendRecv => self.group(comm).run(),
            _ => self.builder(comm).run(),
        }
    }

    pub fn start(&self, comm: &Communicator) -> Result<Operation> {
        match self.case.collective {
            Collective::SendRecv => self.group(comm).start(),
            _ => self.builder(comm).start(),
        }
    }

    fn builder<'a>(&self, comm: &'a Communicator) -> CollectiveBuilder<'a> {
        let (case, rank) = (&self.case, comm.rank());
        let counts = |of: &dyn Fn(Rank) -> u64| (0..case.ranks).map(of).collect::<Vec<u64>>();
        let builder = comm
            .collective(case.collective, DataType::F32, case.count)
            .op(case.op)
            .root(case.root)
            .input(&self.input)
            .output(&self.output);
        let builder = match case.collective {
            of if of.has_part_lengths() => builder.receive_counts(&counts(&|r| case.v_count(r, 0))),
            Collective::AllToAllV => builder
                .send_counts(&counts(&|r| case.v_count(rank, r)))
                .receive_counts(&counts(&|r| case.v_count(r, rank))),
            _ => builder,
        };
        match case.algorithm {
            Some(name) => builder.algorithm(name),
            None => builder,
        }
    }

    fn group<'a>(&self, comm: &'a Communicator) -> Group<'a> {
        let pairs = (0u32..).zip(self.sends.iter().zip(&self.receives));
        pairs.fold(comm.group(), |group, (peer, (send, receive))| {
            group.send(send, peer).recv(receive, peer)
        })
    }
}

impl Case {
    /// Element `index` of the input of `rank`: f32 of mixed magnitude, so that a sum depends on its
    /// order.
    pub fn value(&self, rank: Rank, index: u64) -> f32 {
        let mixed = crate::prng::mix(u64::from(rank) << 32 | index);
        let magnitude = [1.0e-3f32, 1.0, 1.0e4, 1.0e8][(mixed % 4) as usize];
        let sign = if mixed & 64 == 0 { 1.0 } else { -1.0 };
        sign * magnitude * (1 + (mixed >> 8) % 1000) as f32
    }

    /// Elements of rank `rank` in a v-collective, from `from`.
    pub fn v_count(&self, from: Rank, to: Rank) -> u64 {
        (self.count + u64::from(3 * from + to)) % 5 * self.count / 4
    }

    fn lens(&self, rank: Rank) -> (u64, u64) {
        let (n, p) = (self.count, u64::from(self.ranks));
        let at_root = |x| if rank == self.root { x } else { 0 };
        let (own, all) = (self.v_count(rank, 0), self.before(self.ranks));
        match self.collective {
            Collective::AllReduce => (n, n),
            Collective::Broadcast => (at_root(n), n),
            Collective::Reduce => (n, at_root(n)),
            Collective::ReduceScatter => (n * p, n),
            Collective::AllGather => (n, n * p),
            Collective::Gather => (n, at_root(n * p)),
            Collective::Scatter => (at_root(n * p), n),
            Collective::AllToAll => (n * p, n * p),
            Collective::AllGatherV => (own, all),
            Collective::GatherV => (own, at_root(all)),
            Collective::ScatterV => (at_root(all), own),
            Collective::ReduceScatterV => (all, own),
            Collective::AllToAllV => (
                (0..self.ranks).map(|r| self.v_count(rank, r)).sum(),
                (0..self.ranks).map(|r| self.v_count(r, rank)).sum(),
            ),
            Collective::Barrier | Collective::SendRecv => (0, 0),
        }
    }

    /// Elements of the parts of the ranks before this one.
    fn before(&self, rank: Rank) -> u64 {
        (0..rank).map(|r| self.v_count(r, 0)).sum()
    }

    /// Whether its algorithm can run where all ranks map each other's memory.
    pub fn can_run_on_one_host(&self) -> bool {
        let Some(name) = self.algorithm else {
            return true;
        };
        let needs = linerate::collective::find(self.collective, name)
            .unwrap()
            .needs;
        let is_premultiplied =
            self.collective.is_reducing() && matches!(self.op, ReduceOp::PremulSum(_));
        (self.registered || !needs.registered)
            && (self.count * 4 <= linerate::collective::LINE_PAYLOAD_BYTES as u64
                || !needs.payload_max)
            && !(needs.plain && is_premultiplied)
    }

    /// Allocates elements with `alloc` and fills them.
    pub fn prepare(&self, rank: Rank, alloc: impl Fn(usize) -> Buffer<f32>) -> Prepared {
        let (input_len, output_len) = self.lens(rank);
        let fill = |buffer: &Buffer<f32>, len: u64| {
            let values: Vec<f32> = (0..len).map(|i| self.value(rank, i)).collect();
            buffer.write(0, &values).unwrap();
        };
        if self.collective == Collective::SendRecv {
            return self.prepare_transfers(rank, alloc);
        }
        let in_place = self.in_place
            && self.collective != Collective::AllToAllV
            && (!self.collective.is_rooted() || rank == self.root);
        let (input, output) = if in_place && self.collective != Collective::Barrier {
            let whole = alloc(input_len.max(output_len) as usize);
            let own: u64 = match self.collective {
                of if of.has_part_lengths() => self.before(rank),
                _ => u64::from(rank) * self.count,
            };
            let part = |len: u64| whole.range(own as usize..(own + len) as usize);
            match self.collective {
                Collective::AllGather
                | Collective::Gather
                | Collective::AllGatherV
                | Collective::GatherV => (part(input_len), whole.clone()),
                Collective::ReduceScatter
                | Collective::Scatter
                | Collective::ReduceScatterV
                | Collective::ScatterV => (whole.clone(), part(output_len)),
                _ => (whole.clone(), whole.clone()),
            }
        } else {
            (alloc(input_len as usize), alloc(output_len as usize))
        };
        fill(&input, input_len);
        Prepared {
            case: self.clone(),
            input,
            output: output.range(..output_len as usize),
            sends: Vec::new(),
            receives: Vec::new(),
        }
    }

    /// Every rank sends to everyone, itself included, and receives from everyone; lengths differ.
    fn prepare_transfers(&self, rank: Rank, alloc: impl Fn(usize) -> Buffer<f32>) -> Prepared {
        let all: u64 = (0..self.ranks).map(|r| self.v_count(r, rank)).sum();
        let received = alloc(all as usize);
        let (mut sends, mut receives, mut at) = (Vec::new(), Vec::new(), 0);
        for peer in 0..self.ranks {
            let source = alloc(self.v_count(rank, peer) as usize);
            let values: Vec<f32> = (0..self.v_count(rank, peer))
                .map(|i| self.value(rank, i))
                .collect();
            source.write(0, &values).unwrap();
            sends.push(source);
            let count = self.v_count(peer, rank) as usize;
            receives.push(received.range(at..at + count));
            at += count;
        }
        Prepared {
            case: self.clone(),
            input: received.range(..0),
            output: received,
            sends,
            receives,
        }
    }

    /// What the output of `rank` must be, where that does not depend on the order of a sum.
    pub fn expected(&self, rank: Rank) -> Option<Vec<f32>> {
        let (n, p) = (self.count, self.ranks);
        let parts = |part: &dyn Fn(Rank) -> Vec<f32>| (0..p).flat_map(part).collect::<Vec<f32>>();
        let of = |from: Rank, start: u64, len: u64| {
            (start..start + len)
                .map(|i| self.value(from, i))
                .collect::<Vec<f32>>()
        };
        Some(match self.collective {
            Collective::Broadcast => of(self.root, 0, n),
            Collective::AllGather => parts(&|r| of(r, 0, n)),
            Collective::Gather if rank == self.root => parts(&|r| of(r, 0, n)),
            Collective::GatherV if rank == self.root => parts(&|r| of(r, 0, self.v_count(r, 0))),
            Collective::Gather | Collective::GatherV | Collective::Barrier => Vec::new(),
            Collective::ScatterV => of(self.root, self.before(rank), self.v_count(rank, 0)),
            Collective::Scatter => of(self.root, u64::from(rank) * n, n),
            Collective::AllToAll => parts(&|r| of(r, u64::from(rank) * n, n)),
            Collective::AllGatherV => parts(&|r| of(r, 0, self.v_count(r, 0))),
            Collective::AllToAllV => parts(&|r| {
                let start = (0..rank).map(|to| self.v_count(r, to)).sum();
                of(r, start, self.v_count(r, rank))
            }),
            Collective::SendRecv => parts(&|r| of(r, 0, self.v_count(r, rank))),
            _ => return None,
        })
    }

    /// Whether a reduced value is the reduction of everyone's inputs, up to rounding; exact for min
    /// and max.
    pub fn is_reduced(&self, rank: Rank, index: u64, got: f32) -> bool {
        let element = match self.collective {
            Collective::ReduceScatter => u64::from(rank) * self.count + index,
            Collective::ReduceScatterV => self.before(rank) + index,
            _ => index,
        };
        let values: Vec<f64> = (0..self.ranks)
            .map(|r| f64::from(self.value(r, element)))
            .collect();
        let (sum, scale) = (
            values.iter().sum::<f64>(),
            values.iter().map(|v| v.abs()).sum::<f64>(),
        );
        let p = f64::from(self.ranks);
        let (wanted, slack) = match self.op {
            ReduceOp::Sum => (sum, scale * p * 1e-7),
            ReduceOp::Avg => (sum / p, scale * 2e-7),
            ReduceOp::PremulSum(factor) => (sum * factor, scale * factor.abs() * p * 1e-7),
            ReduceOp::Max => (values.iter().copied().fold(f64::MIN, f64::max), 0.0),
            ReduceOp::Min => (values.iter().copied().fold(f64::MAX, f64::min), 0.0),
            _ => panic!("{} has no oracle here", self.op),
        };
        (f64::from(got) - wanted).abs() <= slack
    }

    /// Checks the output of a rank; returns its bits.
    pub fn check(&self, rank: Rank, prepared: &Prepared) -> Vec<u32> {
        let got = prepared.output.to_vec().unwrap();
        match self.expected(rank) {
            Some(wanted) => assert_eq!(got, wanted, "{self:?} on rank {rank}"),
            None => {
                for (index, &value) in got.iter().enumerate() {
                    assert!(
                        self.is_reduced(rank, index as u64, value),
                        "{self:?} on rank {rank}: element {index} is {value}"
                    );
                }
            }
        }
        got.iter().map(|v| v.to_bits()).collect()
    }

    /// Whether all ranks must have the same bits.
    pub fn is_same_everywhere(&self) -> bool {
        self.collective == Collective::AllReduce
    }
}

/// Every algorithm of every collective (and the free choice) for these ranks: counts around the
/// edges, operators where they matter, both placements.
pub fn cases(ranks: u32) -> Vec<Case> {
    let p = u64::from(ranks);
    let mut all = Vec::new();
    for collective in Collective::ALL {
        let named = linerate::collective::algorithms(collective)
            .iter()
            .map(|a| Some(a.name));
        for algorithm in std::iter::once(None).chain(named) {
            for (index, count) in [0, 1, p.saturating_sub(1), p, p + 1, 12, 97, 5003]
                .into_iter()
                .enumerate()
            {
                let root = (index as u32) % ranks;
                let ops: &[ReduceOp] = match collective.is_reducing() {
                    true => &[
                        ReduceOp::Sum,
                        ReduceOp::Avg,
                        ReduceOp::PremulSum(0.5),
                        ReduceOp::Max,
                    ],
                    false => &[ReduceOp::Sum],
                };
                let op = ops[index % ops.len()];
                let in_place = index % 2 == 1;
                all.push(Case {
                    collective,
                    algorithm,
                    ranks,
                    root,
                    count,
                    op,
                    in_place,
                    registered: index % 3 != 2,
                });
            }
        }
    }
    all
}
