//! What a batch saves: 64 all-gathers as one operation, against 64 operations that are started
//! together, with ranks that are threads of this process.
//!
//!     cargo bench --bench batch

use linerate::{Batch, Buffer, Collective, Communicator, Config, DataType, Operation};
use std::time::{Duration, Instant};

const TENSORS: usize = 64;
const ROUNDS: u32 = 300;

struct Tensors {
    inputs: Vec<Buffer<u8>>,
    outputs: Vec<Buffer<u8>>,
}

impl Tensors {
    fn new(comm: &Communicator, bytes: usize) -> Tensors {
        let all = |bytes: usize| {
            let one = |_| comm.alloc(bytes).expect("memory for a tensor");
            (0..TENSORS).map(one).collect()
        };
        Tensors {
            inputs: all(bytes),
            outputs: all(bytes * comm.ranks() as usize),
        }
    }

    fn each(&self) -> impl Iterator<Item = (&Buffer<u8>, &Buffer<u8>)> {
        self.inputs.iter().zip(&self.outputs)
    }

    fn batch<'a>(&self, comm: &'a Communicator) -> Batch<'a> {
        self.each().fold(comm.batch(), |batch, (input, output)| {
            let of = comm.collective(Collective::AllGather, DataType::U8, input.len() as u64);
            batch.with(of.input(input).output(output))
        })
    }

    fn one_by_one(&self, comm: &Communicator) {
        let started: Vec<Operation> = self
            .each()
            .map(|(input, output)| comm.start_all_gather(input, output).expect("it starts"))
            .collect();
        started
            .into_iter()
            .for_each(|one| one.wait().expect("it ends"));
    }
}

/// The fastest of some rounds, both ways, in turns.
fn measure(comm: &Communicator, bytes: usize) -> [Duration; 2] {
    let tensors = Tensors::new(comm, bytes);
    let batch = tensors.batch(comm);
    let mut best = [Duration::MAX; 2];
    for _ in 0..ROUNDS {
        for (way, best) in best.iter_mut().enumerate() {
            comm.barrier().expect("all come");
            let begun = Instant::now();
            match way {
                0 => batch.run().expect("it ends"),
                _ => tensors.one_by_one(comm),
            }
            *best = begun.elapsed().min(*best);
        }
    }
    best
}

fn main() {
    println!(
        "64 all-gathers: bytes of a rank, us as one batch, us as 64 operations, how often as fast"
    );
    for transport in ["shm", "tcp"] {
        for ranks in [2, 4] {
            for bytes in [512, 2 << 10, 4 << 10, 16 << 10, 64 << 10] {
                let job = format!("batch-{}-{transport}-{ranks}-{bytes}", std::process::id());
                let of_rank = |rank: u32| {
                    let config = Config {
                        transport: transport.into(),
                        ..Config::default()
                    };
                    let comm = Communicator::join(rank, ranks, &job, config).expect("it joins");
                    measure(&comm, bytes)
                };
                let [batch, single] = std::thread::scope(|scope| {
                    let of_rank = &of_rank;
                    let all: Vec<_> = (0..ranks)
                        .map(|r| scope.spawn(move || of_rank(r)))
                        .collect();
                    let all = all.into_iter().map(|rank| rank.join().expect("a rank"));
                    all.collect::<Vec<_>>()[0]
                });
                let us = |time: Duration| time.as_nanos() as f64 / 1e3;
                println!(
                    "{transport} {ranks} ranks {bytes:>6} {:>9.1} {:>9.1} {:>6.2}",
                    us(batch),
                    us(single),
                    us(single) / us(batch)
                );
            }
        }
    }
}
