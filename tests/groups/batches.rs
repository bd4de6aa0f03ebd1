//! Several collectives that end as one operation: short ones travel together, and nobody sees it
//! but by the clock.

use super::{on_ranks, on_ranks_with};
use crate::prng::Prng;
use linerate::{Buffer, Collective, CollectiveBuilder, Communicator, DataType, Error, ReduceOp};
use std::time::Duration;

/// Element `index` of what a rank gives to member `number`.
fn value(rank: u32, number: usize, index: u64) -> u64 {
    1_000_000 * u64::from(rank + 1) + 1000 * number as u64 + index % 997
}

/// One collective of a batch, the same on all ranks.
#[derive(Clone, Copy)]
struct Member {
    collective: Collective,
    op: ReduceOp,
    count: u64,
    root: u32,
    in_place: bool,
}

fn members(prng: &mut Prng, ranks: u32) -> Vec<Member> {
    let of = [
        Collective::AllReduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllToAll,
        Collective::Barrier,
    ];
    let count = 1 + prng.below(20);
    let member = |_| Member {
        collective: of[prng.below(7).min(prng.below(7)) as usize],
        op: [ReduceOp::Sum, ReduceOp::Max][prng.below(2) as usize],
        // Long ones, which travel alone, are rare.
        count: [0, 1, 5, 300, 2000, 2048, 2049, 50_000][prng.below(8).min(prng.below(8)) as usize],
        root: prng.below(u64::from(ranks)) as u32,
        in_place: prng.below(2) == 0,
    };
    (0..count).map(member).collect()
}

/// The memory of the inputs or outputs of a batch on a rank.
enum Place {
    /// A buffer for each, registered or not.
    Apart,
    /// One after another in a registered buffer, with the place of the next one.
    Run(Buffer<u64>, usize),
}

impl Place {
    fn new(comm: &Communicator, members: &[Member], prng: &mut Prng) -> Place {
        let most: u64 = members.iter().map(|member| member.count).sum();
        match prng.below(2) {
            0 => Place::Apart,
            _ => Place::Run(
                comm.alloc((most as usize + 1) * comm.ranks() as usize)
                    .unwrap(),
                0,
            ),
        }
    }

    fn take(&mut self, comm: &Communicator, len: u64, prng: &mut Prng) -> Buffer<u64> {
        match self {
            Place::Run(all, at) => {
                let first = *at;
                *at += len as usize;
                all.range(first..*at)
            }
            Place::Apart if prng.below(3) == 0 => Buffer::from_vec(vec![0; len as usize]),
            Place::Apart => comm.alloc(len as usize).unwrap(),
        }
    }
}

/// The memory of a member on a rank, which is filled.
fn memory(
    comm: &Communicator,
    member: &Member,
    number: usize,
    [of_inputs, of_outputs]: &mut [Place; 2],
    prng: &mut Prng,
) -> [Buffer<u64>; 2] {
    let (n, p, rank) = (member.count, u64::from(comm.ranks()), comm.rank());
    let (inputs, outputs) = match member.collective {
        Collective::AllGather => (n, n * p),
        Collective::ReduceScatter => (n * p, n),
        Collective::AllToAll => (n * p, n * p),
        Collective::Barrier => (0, 0),
        _ => (n, n),
    };
    let own = (u64::from(rank) * n) as usize;
    let part = |whole: &Buffer<u64>| whole.range(own..own + n as usize);
    let [input, output] = match (member.in_place, member.collective) {
        (false, _) => [
            of_inputs.take(comm, inputs, prng),
            of_outputs.take(comm, outputs, prng),
        ],
        (true, Collective::AllGather) => {
            let whole = of_outputs.take(comm, outputs, prng);
            [part(&whole), whole]
        }
        (true, Collective::ReduceScatter) => {
            let whole = of_inputs.take(comm, inputs, prng);
            [whole.clone(), part(&whole)]
        }
        (true, _) => {
            let both = of_outputs.take(comm, inputs, prng);
            [both.clone(), both]
        }
    };
    let values: Vec<u64> = (0..inputs).map(|i| value(rank, number, i)).collect();
    input.write(0, &values).unwrap();
    [input, output]
}

/// What the output of a rank must be; `None`: anything.
fn wanted(member: &Member, number: usize, rank: u32, ranks: u32) -> Option<Vec<u64>> {
    let n = member.count;
    let of = |from: u32, start: u64| -> Vec<u64> {
        (start..start + n).map(|i| value(from, number, i)).collect()
    };
    let reduced = |start: u64| -> Vec<u64> {
        let all = |i| (0..ranks).map(move |r| value(r, number, i));
        let one = |i| match member.op {
            ReduceOp::Sum => all(i).sum(),
            _ => all(i).max().unwrap(),
        };
        (start..start + n).map(one).collect()
    };
    Some(match member.collective {
        Collective::AllReduce => reduced(0),
        Collective::Reduce if rank == member.root => reduced(0),
        Collective::Reduce | Collective::Barrier => return None,
        Collective::ReduceScatter => reduced(u64::from(rank) * n),
        Collective::Broadcast => of(member.root, 0),
        Collective::AllGather => (0..ranks).flat_map(|r| of(r, 0)).collect(),
        _ => (0..ranks)
            .flat_map(|r| of(r, u64::from(rank) * n))
            .collect(),
    })
}

fn builder<'a>(
    comm: &'a Communicator,
    member: &Member,
    [input, output]: &[Buffer<u64>; 2],
) -> CollectiveBuilder<'a> {
    let builder = comm.collective(member.collective, DataType::U64, member.count);
    let builder = builder.op(member.op).root(member.root);
    match member.collective {
        Collective::Barrier => builder,
        _ => builder.input(input).output(output),
    }
}

fn random_batches(world: &Communicator, seed: u64, batches: u32) {
    let mut shared = Prng::new(seed);
    let mut own = Prng::new(seed ^ u64::from(world.rank() + 1));
    let queue = world.completion_queue().unwrap();
    for number in 0..batches {
        let members = members(&mut shared, world.ranks());
        let mut places = [(); 2].map(|()| Place::new(world, &members, &mut own));
        let memory: Vec<[Buffer<u64>; 2]> = (0..)
            .zip(&members)
            .map(|(number, member)| memory(world, member, number, &mut places, &mut own))
            .collect();
        let batch = members.iter().zip(&memory);
        let batch = batch.fold(world.batch(), |batch, (member, memory)| {
            batch.with(builder(world, member, memory))
        });
        match own.below(4) {
            0 => batch.run().unwrap(),
            1 => {
                let mut started = batch.start().unwrap();
                while !started.test().unwrap() {}
            }
            2 => {
                let mut started = batch.start().unwrap();
                while !started
                    .wait_timeout(Duration::from_micros(own.below(30)))
                    .unwrap()
                {}
            }
            _ => {
                let mut started = batch.start().unwrap();
                if own.below(2) == 0 {
                    let _ = started.test().unwrap();
                }
                started.notify(&queue, u64::from(number)).unwrap();
                drop(started);
                let ended = queue.wait(Duration::from_secs(30)).unwrap();
                assert_eq!(ended.len(), 1);
                assert_eq!(
                    (ended[0].user, &ended[0].result),
                    (u64::from(number), &Ok(()))
                );
            }
        }
        for (number, (member, [_, output])) in members.iter().zip(&memory).enumerate() {
            if let Some(wanted) = wanted(member, number, world.rank(), world.ranks()) {
                let got = output.to_vec().unwrap();
                assert!(
                    got == wanted,
                    "member {number}: {} of {}",
                    member.collective,
                    member.count
                );
            }
        }
    }
    assert_eq!(queue.running_count(), 0);
    world.barrier().unwrap();
}

#[test]
fn random_batches_do_what_their_members_do_alone() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for (ranks, has_thread) in [(1, false), (2, false), (3, true), (4, false)] {
        on_ranks_with(ranks, has_thread, |world| random_batches(&world, seed, 60));
    }
}

#[test]
fn a_batch_that_cannot_be_starts_nothing_and_frees_its_memory() {
    on_ranks(2, |world| {
        let (one, two) = (
            world.alloc::<f32>(4).unwrap(),
            world.alloc::<f32>(4).unwrap(),
        );
        let sum = |count, buffer: &Buffer<f32>| {
            let sum = world.collective(Collective::AllReduce, DataType::F32, count);
            sum.input(buffer).output(buffer)
        };
        let text = world.batch().with(sum(4, &one)).with(sum(5, &two)).run();
        assert!(text.unwrap_err().to_string().contains("20 are needed"));
        let twice = world.batch().with(sum(4, &one)).with(sum(4, &one)).run();
        assert!(matches!(twice, Err(Error::InUse { .. })), "{twice:?}");
        let apart = world.duplicate().unwrap();
        let other = apart.collective(Collective::Barrier, DataType::U8, 0);
        let text = world.batch().with(other).run().unwrap_err().to_string();
        assert!(text.contains("another communicator"), "{text}");
        world.batch().run().unwrap();
        let mut none = world.batch().start().unwrap();
        assert!(none.test().unwrap());
        // Nothing uses the memory, and nothing has been started.
        one.write(0, &[1.0; 4]).unwrap();
        two.write(0, &[2.0; 4]).unwrap();
        world
            .batch()
            .with(sum(4, &one))
            .with(sum(4, &two))
            .run()
            .unwrap();
        assert_eq!(
            (one.to_vec().unwrap(), two.to_vec().unwrap()),
            (vec![2.0; 4], vec![4.0; 4])
        );
    });
}

#[test]
fn ranks_that_batch_other_collectives_disagree() {
    on_ranks(2, |world| {
        let buffers = [4, 5].map(|count| world.alloc::<f32>(count).unwrap());
        let counts = if world.rank() == 0 { [4, 4] } else { [4, 5] };
        let batch = buffers.iter().zip(counts);
        let batch = batch.fold(world.batch(), |batch, (buffer, count)| {
            let sum = world.collective(Collective::AllReduce, DataType::F32, count);
            batch.with(sum.input(buffer).output(buffer))
        });
        let error = batch.run().unwrap_err();
        assert!(
            matches!(error.first_cause(), Error::Mismatch { .. }),
            "{error}"
        );
    });
}

#[test]
fn members_that_read_some_of_the_same_memory_get_their_own_parts() {
    on_ranks(2, |world| {
        let input = world.alloc::<u64>(12).unwrap();
        let values: Vec<u64> = (0..12).collect();
        input.write(0, &values).unwrap();
        // Each input begins where the part of rank 1 in the one before begins.
        let outputs = [(); 2].map(|()| world.alloc::<u64>(4).unwrap());
        let batch = [0, 4].iter().zip(&outputs);
        let batch = batch.fold(world.batch(), |batch, (&first, output)| {
            let sum = world.collective(Collective::ReduceScatter, DataType::U64, 4);
            batch.with(sum.input(&input.range(first..first + 8)).output(output))
        });
        batch.run().unwrap();
        for (first, output) in [0, 4].into_iter().zip(&outputs) {
            let own = first + 4 * u64::from(world.rank());
            let wanted: Vec<u64> = (own..own + 4).map(|value| 2 * value).collect();
            assert_eq!(output.to_vec().unwrap(), wanted);
        }
        world.barrier().unwrap();
    });
}
