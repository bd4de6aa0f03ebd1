//! One operation with exact numbers: what each rank gives, and what it must get, byte for byte.
//!
//! All values are whole and above zero, and small enough for their type that no sum of eight
//! rounds: a contribution that is lost or counted twice changes the result. Truth values are any
//! bytes, and complex numbers have the negative of their real part as the imaginary one.

use linerate::collective::{Algorithm, LINE_PAYLOAD_BYTES};
use linerate::elements::{F8E4M3, F8E5M2};
use linerate::{
    Buffer, Collective, Communicator, DataType, Group, Operation, Rank, ReduceOp, Result,
};

/// One collective on one shape.
#[derive(Clone, Debug)]
pub struct Planned {
    /// Makes its values its own.
    pub salt: u64,
    pub collective: Collective,
    pub dtype: DataType,
    pub op: ReduceOp,
    pub count: u64,
    pub root: Rank,
    pub ranks: u32,
    pub algorithm: Option<&'static str>,
    pub in_place: bool,
    pub registered: bool,
}

/// The buffers of one rank, filled, for an operation.
pub struct Prepared {
    planned: Planned,
    source: Buffer<u8>,
    pub output: Buffer<u8>,
}

impl Prepared {
    pub fn start(&self, communicator: &Communicator) -> Result<Operation> {
        let (planned, rank) = (&self.planned, communicator.rank());
        let counts = |of: &dyn Fn(Rank) -> u64| (0..planned.ranks).map(of).collect::<Vec<u64>>();
        let builder = communicator
            .collective(planned.collective, planned.dtype, planned.count)
            .op(planned.op)
            .root(planned.root)
            .input(&self.source)
            .output(&self.output);
        let builder = match planned.collective {
            Collective::SendRecv => return self.group(communicator).start(),
            of if of.has_part_lengths() => {
                builder.receive_counts(&counts(&|r| planned.v_count(r, 0)))
            }
            Collective::AllToAllV => builder
                .send_counts(&counts(&|r| planned.v_count(rank, r)))
                .receive_counts(&counts(&|r| planned.v_count(r, rank))),
            _ => builder,
        };
        match planned.algorithm {
            Some(name) => builder.algorithm(name).start(),
            None => builder.start(),
        }
    }

    /// Every rank sends to everyone, itself included, and receives from everyone.
    fn group<'a>(&self, communicator: &'a Communicator) -> Group<'a> {
        let (planned, rank) = (&self.planned, communicator.rank());
        let size = planned.dtype.size_bytes();
        let (mut sent, mut received) = (0, 0);
        let mut group = communicator.group();
        for peer in 0..planned.ranks {
            let to = planned.v_count(rank, peer) as usize * size;
            let from = planned.v_count(peer, rank) as usize * size;
            let source = self.source.range(sent..sent + to);
            let output = self.output.range(received..received + from);
            group = group.send(&source, peer).recv(&output, peer);
            sent += to;
            received += from;
        }
        group
    }
}

impl Planned {
    /// Whether this algorithm can run it, on ranks that map each other's memory or not.
    pub fn can_run(&self, algorithm: &Algorithm, is_mapped: bool) -> bool {
        let needs = algorithm.needs;
        let bytes = self.count * self.dtype.size_bytes() as u64;
        let is_scaled = self.collective.is_reducing() && self.op.factor().is_some();
        (is_mapped || !needs.mapped)
            && (self.registered || !needs.registered)
            && (bytes <= LINE_PAYLOAD_BYTES as u64 || !needs.payload_max)
            && !(needs.plain && is_scaled)
    }

    /// Element `index` of the input of `rank`.
    fn value(&self, rank: Rank, index: u64) -> u64 {
        let mixed = crate::prng::mix(self.salt ^ u64::from(rank) << 32 ^ index);
        let bits = match self.dtype {
            // As often false as true, and true in any way.
            DataType::Bool if mixed.is_multiple_of(2) => return 0,
            DataType::Bool => 8,
            // Of a sum, which must not round: eight is the last whole number that all 3 bits count.
            DataType::F8E4M3 | DataType::F8E5M2 if self.is_sum() => 1,
            DataType::F8E4M3 | DataType::F8E5M2 => 3,
            DataType::F16 | DataType::Bf16 | DataType::I8 | DataType::U8 => 4,
            DataType::I16 | DataType::U16 => 12,
            DataType::F32 | DataType::C64 => 20,
            DataType::I32 | DataType::U32 => 30,
            DataType::F64 | DataType::C128 => 40,
            DataType::I64 | DataType::U64 => 62,
        };
        1 + mixed % ((1 << bits) - 1)
    }

    fn is_sum(&self) -> bool {
        self.collective.is_reducing() && matches!(self.op, ReduceOp::Sum | ReduceOp::PremulSum(_))
    }

    /// Values as elements, as they lie in memory. Integers wrap.
    fn emit(&self, values: &[u64]) -> Vec<u8> {
        let emit = |&v: &u64| match self.dtype {
            DataType::F64 => (v as f64).to_le_bytes().to_vec(),
            DataType::F32 => (v as f32).to_le_bytes().to_vec(),
            DataType::F16 => half::f16::from_f64(v as f64).to_le_bytes().to_vec(),
            DataType::Bf16 => half::bf16::from_f64(v as f64).to_le_bytes().to_vec(),
            DataType::F8E4M3 => vec![F8E4M3::from_f32(v as f32).to_bits()],
            DataType::F8E5M2 => vec![F8E5M2::from_f32(v as f32).to_bits()],
            DataType::C64 => [v as f32, -(v as f32)].map(f32::to_le_bytes).concat(),
            DataType::C128 => [v as f64, -(v as f64)].map(f64::to_le_bytes).concat(),
            _ => v.to_le_bytes()[..self.dtype.size_bytes()].to_vec(),
        };
        values.iter().flat_map(emit).collect()
    }

    fn v_count(&self, from: Rank, to: Rank) -> u64 {
        (self.count + u64::from(3 * from + to)) % 5 * self.count / 4
    }

    /// Elements of the parts of the ranks before this one.
    fn before(&self, rank: Rank) -> u64 {
        (0..rank).map(|r| self.v_count(r, 0)).sum()
    }

    fn input_len(&self, rank: Rank) -> u64 {
        let (n, p) = (self.count, u64::from(self.ranks));
        let at_root = |len| if rank == self.root { len } else { 0 };
        match self.collective {
            Collective::AllReduce | Collective::Reduce => n,
            Collective::AllGather | Collective::Gather => n,
            Collective::Broadcast => at_root(n),
            Collective::Scatter => at_root(n * p),
            Collective::ReduceScatter | Collective::AllToAll => n * p,
            Collective::AllGatherV | Collective::GatherV => self.v_count(rank, 0),
            Collective::ScatterV => at_root(self.before(self.ranks)),
            Collective::ReduceScatterV => self.before(self.ranks),
            Collective::AllToAllV | Collective::SendRecv => {
                (0..self.ranks).map(|to| self.v_count(rank, to)).sum()
            }
            Collective::Barrier => 0,
        }
    }

    /// What the output of `rank` must be.
    pub fn expected(&self, rank: Rank) -> Vec<u8> {
        self.emit(&self.expected_values(rank))
    }

    fn expected_values(&self, rank: Rank) -> Vec<u64> {
        let n = self.count;
        let of = |from: Rank, start: u64, len: u64| -> Vec<u64> {
            (start..start + len).map(|i| self.value(from, i)).collect()
        };
        let parts = |part: &dyn Fn(Rank) -> Vec<u64>| -> Vec<u64> {
            (0..self.ranks).flat_map(part).collect()
        };
        let own = u64::from(rank) * n;
        match self.collective {
            Collective::AllReduce => self.reduced(0, n),
            Collective::Reduce if rank == self.root => self.reduced(0, n),
            Collective::ReduceScatter => self.reduced(own, n),
            Collective::ReduceScatterV => self.reduced(self.before(rank), self.v_count(rank, 0)),
            Collective::ScatterV => of(self.root, self.before(rank), self.v_count(rank, 0)),
            Collective::Broadcast => of(self.root, 0, n),
            Collective::AllGather => parts(&|r| of(r, 0, n)),
            Collective::Gather if rank == self.root => parts(&|r| of(r, 0, n)),
            Collective::Scatter => of(self.root, own, n),
            Collective::AllToAll => parts(&|r| of(r, own, n)),
            Collective::AllGatherV => parts(&|r| of(r, 0, self.v_count(r, 0))),
            Collective::GatherV if rank == self.root => parts(&|r| of(r, 0, self.v_count(r, 0))),
            Collective::AllToAllV | Collective::SendRecv => parts(&|r| {
                let start = (0..rank).map(|to| self.v_count(r, to)).sum();
                of(r, start, self.v_count(r, rank))
            }),
            Collective::Reduce | Collective::Gather | Collective::GatherV | Collective::Barrier => {
                Vec::new()
            }
        }
    }

    /// The reduction of `len` elements from `start` on.
    fn reduced(&self, start: u64, len: u64) -> Vec<u64> {
        let reduce = |index: u64| {
            let values = (0..self.ranks).map(|rank| self.value(rank, index));
            if self.dtype == DataType::Bool && self.ranks > 1 {
                return u64::from(self.is_true(values.map(|byte| byte != 0)));
            }
            match self.op {
                ReduceOp::Sum => values.fold(0, u64::wrapping_add),
                ReduceOp::Prod => values.fold(1, u64::wrapping_mul),
                ReduceOp::Max => values.max().unwrap_or(0),
                ReduceOp::Min => values.min().unwrap_or(0),
                ReduceOp::PremulSum(factor) => values.sum::<u64>() * factor as u64,
                ReduceOp::BitAnd => values.fold(u64::MAX, |a, b| a & b),
                ReduceOp::BitOr => values.fold(0, |a, b| a | b),
                ReduceOp::BitXor => values.fold(0, |a, b| a ^ b),
                ReduceOp::Avg => panic!("averages round"),
            }
        };
        (start..start + len).map(reduce).collect()
    }

    fn is_true(&self, mut values: impl Iterator<Item = bool>) -> bool {
        match self.op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr => values.any(|value| value),
            ReduceOp::BitXor => values.fold(false, |a, b| a ^ b),
            _ => values.all(|value| value),
        }
    }

    /// Allocates bytes with `alloc` and fills them.
    pub fn prepare(&self, rank: Rank, alloc: impl Fn(usize) -> Buffer<u8>) -> Prepared {
        let input: Vec<u64> = (0..self.input_len(rank))
            .map(|i| self.value(rank, i))
            .collect();
        let input = self.emit(&input);
        let output_bytes = self.expected(rank).len();
        let (source, output) = self.place(rank, input.len(), output_bytes, alloc);
        source.write(0, &input).expect("memory that nothing uses");
        Prepared {
            planned: self.clone(),
            source,
            output,
        }
    }

    /// Input and output, apart or as the collective defines "in place".
    fn place(
        &self,
        rank: Rank,
        input_bytes: usize,
        output_bytes: usize,
        alloc: impl Fn(usize) -> Buffer<u8>,
    ) -> (Buffer<u8>, Buffer<u8>) {
        let is_rooted = self.collective.is_rooted();
        let never = matches!(
            self.collective,
            Collective::AllToAllV | Collective::SendRecv | Collective::Barrier
        );
        if !self.in_place || never || (is_rooted && rank != self.root) {
            return (alloc(input_bytes), alloc(output_bytes));
        }
        let before: u64 = match self.collective {
            of if of.has_part_lengths() => self.before(rank),
            _ => u64::from(rank) * self.count,
        };
        let own = before as usize * self.dtype.size_bytes();
        let whole = alloc(input_bytes.max(output_bytes));
        match self.collective {
            Collective::AllGather
            | Collective::Gather
            | Collective::AllGatherV
            | Collective::GatherV => (whole.range(own..own + input_bytes), whole),
            Collective::ReduceScatter
            | Collective::Scatter
            | Collective::ReduceScatterV
            | Collective::ScatterV => {
                let output = whole.range(own..own + output_bytes);
                (whole, output)
            }
            _ => (whole.clone(), whole),
        }
    }
}
