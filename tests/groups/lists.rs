//! Collectives with a length per rank where some ranks give lists of segments, and the others one
//! buffer.

use super::{on_ranks, on_ranks_with};
use crate::prng::Prng;
use linerate::{Buffer, Collective, Communicator, DataType, Error, ReduceOp};

/// Element `index` of what a rank gives.
fn value(rank: u32, index: u64) -> u64 {
    1000 * u64::from(rank + 1) + index
}

fn memory(comm: &Communicator, prng: &mut Prng, count: u64) -> Buffer<u64> {
    match prng.below(3) {
        0 => Buffer::from_vec(vec![0; count as usize]),
        _ => comm.alloc(count as usize).unwrap(),
    }
}

/// Parts of these lengths, in one buffer or in one for each, with what lies in them at first.
struct Parts {
    whole: Option<Buffer<u64>>,
    each: Vec<Buffer<u64>>,
}

impl Parts {
    fn new(comm: &Communicator, prng: &mut Prng, counts: &[u64]) -> Parts {
        if prng.below(2) == 0 {
            let each = counts.iter().map(|&count| memory(comm, prng, count));
            return Parts {
                each: each.collect(),
                whole: None,
            };
        }
        let whole = memory(comm, prng, counts.iter().sum());
        let mut at = 0;
        let each = counts.iter().map(|&count| {
            at += count as usize;
            whole.range(at - count as usize..at)
        });
        Parts {
            each: each.collect(),
            whole: Some(whole.clone()),
        }
    }

    fn fill(&self, rank: u32) {
        let mut at = 0;
        for part in &self.each {
            let values: Vec<u64> = (0..part.len() as u64)
                .map(|i| value(rank, at + i))
                .collect();
            part.write(0, &values).unwrap();
            at += part.len() as u64;
        }
    }
}

/// One collective with lengths that differ, some of them 0; `counts[a][b]`: from rank a to rank b.
fn run_one(comm: &Communicator, collective: Collective, counts: &[Vec<u64>], own: &mut Prng) {
    let (rank, ranks) = (comm.rank() as usize, comm.ranks() as usize);
    let (lengths, root) = (&counts[0], counts[0][0] as u32 % comm.ranks());
    let is_root = comm.rank() == root;
    let to: Vec<u64> = counts[rank].clone();
    let from: Vec<u64> = counts.iter().map(|row| row[rank]).collect();
    let part = [lengths[rank]];
    let (input, output): (&[u64], &[u64]) = match collective {
        Collective::AllGatherV => (&part, lengths),
        Collective::GatherV => (&part, if is_root { lengths } else { &[] }),
        Collective::ScatterV => (if is_root { lengths } else { &[] }, &part),
        Collective::ReduceScatterV => (lengths, &part),
        _ => (&to, &from),
    };
    let (inputs, outputs) = (Parts::new(comm, own, input), Parts::new(comm, own, output));
    inputs.fill(comm.rank());
    let mut call = comm.collective(collective, DataType::U64, 0).root(root);
    call = match collective {
        Collective::AllToAllV => call.send_counts(&to).receive_counts(&from),
        _ => call.receive_counts(lengths),
    };
    let is_list = |parts: &Parts, counts: &[u64]| parts.whole.is_none() && counts.len() == ranks;
    call = match is_list(&inputs, input) && ranks > 1 {
        true => call.inputs(&inputs.each),
        false => inputs
            .whole
            .iter()
            .chain(&inputs.each)
            .take(1)
            .fold(call, |call, all| call.input(all)),
    };
    call = match is_list(&outputs, output) && ranks > 1 {
        true => call.outputs(&outputs.each),
        false => outputs
            .whole
            .iter()
            .chain(&outputs.each)
            .take(1)
            .fold(call, |call, all| call.output(all)),
    };
    match own.below(2) {
        0 => call.run().unwrap(),
        _ => call.op(ReduceOp::Sum).start().unwrap().wait().unwrap(),
    }
    let before = |counts: &[u64], rank: usize| counts[..rank].iter().sum::<u64>();
    let wanted = |number: usize| -> Vec<u64> {
        let values = |from: usize, start: u64, len: u64| {
            (start..start + len)
                .map(|i| value(from as u32, i))
                .collect::<Vec<_>>()
        };
        match collective {
            Collective::AllGatherV | Collective::GatherV => values(number, 0, lengths[number]),
            Collective::ScatterV => values(root as usize, before(lengths, rank), part[0]),
            Collective::ReduceScatterV => {
                let at = before(lengths, rank);
                let all = |i| (0..ranks as u32).map(|r| value(r, i)).sum();
                (at..at + part[0]).map(all).collect()
            }
            _ => values(number, before(&counts[number], rank), from[number]),
        }
    };
    for (number, got) in outputs.each.iter().enumerate() {
        assert_eq!(
            got.to_vec().unwrap(),
            wanted(number),
            "{collective} {number} on {rank}"
        );
    }
}

#[test]
fn lists_and_single_buffers_meet_in_every_collective_with_lengths() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for (ranks, has_thread) in [(1, false), (2, true), (3, false), (4, false)] {
        on_ranks_with(ranks, has_thread, |world| {
            let mut shared = Prng::new(seed);
            let mut own = Prng::new(seed ^ u64::from(world.rank() + 1));
            for _ in 0..60 {
                let scale = [3, 40, 1000, 40_000][shared.below(4) as usize];
                let mut row = |_| {
                    (0..ranks)
                        .map(|_| shared.below(scale))
                        .collect::<Vec<u64>>()
                };
                let counts: Vec<Vec<u64>> = (0..ranks).map(&mut row).collect();
                let of = [
                    Collective::AllGatherV,
                    Collective::GatherV,
                    Collective::ScatterV,
                    Collective::ReduceScatterV,
                    Collective::AllToAllV,
                ];
                run_one(&world, of[shared.below(5) as usize], &counts, &mut own);
            }
            world.barrier().unwrap();
        });
    }
}

#[test]
fn a_list_that_does_not_fit_is_refused_before_anything_starts() {
    on_ranks(2, |world| {
        let part = || world.alloc::<f32>(4).unwrap();
        let of = |collective| world.collective(collective, DataType::F32, 0);
        let refused = |ended: linerate::Result<()>, with: &str| {
            let text = ended.unwrap_err().to_string();
            assert!(text.contains(with), "{text}");
        };
        let (mine, lists) = (part(), [part(), part()]);
        refused(
            of(Collective::AllReduce).inputs(&lists).output(&mine).run(),
            "is a list",
        );
        refused(
            of(Collective::AllGatherV)
                .inputs(&lists)
                .output(&mine)
                .run(),
            "is a list",
        );
        refused(
            of(Collective::AllGatherV)
                .input(&mine)
                .outputs(&lists[..1])
                .run(),
            "1 receive_counts for 2 ranks",
        );
        let counted = of(Collective::AllGatherV).receive_counts(&[4, 3]);
        refused(
            counted.input(&mine).outputs(&lists).run(),
            "segment 1 of the output",
        );
        let bytes = [part().cast::<f64>().unwrap(), part().cast().unwrap()];
        refused(
            of(Collective::AllGatherV)
                .input(&mine)
                .outputs(&bytes)
                .run(),
            "elements of f64",
        );
        let twice = [lists[0].clone(), lists[0].clone()];
        let same = of(Collective::AllGatherV)
            .input(&mine)
            .outputs(&twice)
            .run();
        assert!(matches!(same, Err(Error::InUse { .. })), "{same:?}");
        of(Collective::AllGatherV)
            .input(&mine)
            .outputs(&lists)
            .run()
            .unwrap();
        world.barrier().unwrap();
    });
}
