//! Several threads per rank, each with communicators of its own, and fusion beside other
//! operations.

use super::{on_ranks, on_ranks_with, sum};
use crate::prng::Prng;
use linerate::{Buffer, Communicator, DataType, Fusion, FusionOptions, ReduceOp, TensorSpec};

/// One collective of a random kind and size, checked.
fn collective(comm: &Communicator, shared: &mut Prng, turn: u64) {
    let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.ranks()));
    let count = [1, 3, 6, 1000, 40_000][shared.below(5) as usize];
    let is_registered = shared.below(2) == 0;
    let alloc = |elements: usize| match is_registered {
        true => comm.alloc::<u64>(elements).unwrap(),
        false => Buffer::from_vec(vec![0; elements]),
    };
    let fill = |value: u64, elements: usize| {
        let buffer = alloc(elements);
        buffer.write(0, &vec![value; elements]).unwrap();
        buffer
    };
    match shared.below(5) {
        0 => {
            let buffer = fill(rank + turn, count);
            comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
            let wanted = ranks * (ranks - 1) / 2 + ranks * turn;
            assert!(buffer.to_vec().unwrap() == vec![wanted; count]);
        }
        1 => {
            let root = shared.below(ranks);
            let buffer = fill(rank * 7 + turn, count);
            comm.broadcast(&buffer, root as u32).unwrap();
            assert!(buffer.to_vec().unwrap() == vec![root * 7 + turn; count]);
        }
        2 => {
            let (input, output) = (fill(rank + turn, count), alloc(count * ranks as usize));
            comm.all_gather(&input, &output).unwrap();
            let got = output.as_slice().unwrap();
            assert!((got.iter().enumerate()).all(|(i, &v)| v == (i / count) as u64 + turn));
        }
        3 => comm.barrier().unwrap(),
        _ => {
            let peer = ((rank + 1) % ranks) as u32;
            let from = ((rank + ranks - 1) % ranks) as u32;
            let (input, output) = (fill(rank + turn, count), alloc(count));
            let group = comm.group().recv(&output, from).send(&input, peer);
            group.run().unwrap();
            assert!(output.to_vec().unwrap() == vec![u64::from(from) + turn; count]);
        }
    }
}

#[test]
fn four_threads_per_rank_run_collectives_on_communicators_of_their_own() {
    for has_thread in [false, true] {
        on_ranks_with(3, has_thread, |world| {
            let parts: Vec<Communicator> = (0..4)
                .map(|thread| {
                    // The ranks' order differs from part to part.
                    let key = (world.rank() as i32 + thread) % 3;
                    world.split(Some(thread as u32), key).unwrap().unwrap()
                })
                .collect();
            std::thread::scope(|scope| {
                for (thread, part) in parts.iter().enumerate() {
                    let world = (thread == 0).then(|| world.clone());
                    scope.spawn(move || {
                        let mut shared = Prng::new(thread as u64 + 77);
                        for turn in 0..if has_thread { 60 } else { 200 } {
                            collective(part, &mut shared, turn);
                            // One thread per rank also uses the parent, in the same order
                            // everywhere.
                            if let (Some(world), 0) = (&world, turn % 3) {
                                collective(world, &mut shared, turn);
                            }
                        }
                    });
                }
            });
            drop(world);
            for (index, part) in parts.into_iter().enumerate() {
                assert_eq!(sum(&part, &part, 1, 10 * index + 1), 3);
            }
        });
    }
}

#[test]
fn threads_split_one_after_the_other_and_drop_in_any_order() {
    on_ranks(2, |world| {
        let (mut all, mut kept) = (Vec::new(), Vec::new());
        let mut shared = Prng::new(9);
        for turn in 0..30u64 {
            let parent = match all.is_empty() {
                true => world.clone(),
                false => {
                    let pick = shared.below(all.len() as u64) as usize;
                    Communicator::clone(&all[pick])
                }
            };
            all.push(parent.split(Some(3), -(turn as i32)).unwrap().unwrap());
            collective(&all[all.len() - 1], &mut shared, turn);
            if all.len() > 6 {
                let dropped = all.remove(shared.below(6) as usize);
                // One rank lets go later than the other.
                if turn % 2 == u64::from(world.rank()) {
                    kept.push(dropped);
                }
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn a_fusion_buffer_leaves_its_communicator_to_others() {
    on_ranks(2, |world| {
        let specs = |name: &str| -> Vec<TensorSpec> {
            (0..6)
                .map(|index| TensorSpec {
                    name: format!("{name}{index}"),
                    count: 1000 * (index + 1),
                    dtype: DataType::F32,
                })
                .collect()
        };
        let options = || FusionOptions {
            bytes_max: 8192,
            ..FusionOptions::default()
        };
        let first = Fusion::new(&world, options(), specs("a")).unwrap();
        let second = Fusion::new(&world, options(), specs("b")).unwrap();
        let tensors: Vec<Buffer<f32>> = (0..12)
            .map(|i| world.alloc(1000 * (i % 6 + 1)).unwrap())
            .collect();
        for step in 0..10 {
            for (index, tensor) in tensors.iter().enumerate() {
                tensor.as_mut_slice().unwrap().fill((step + index) as f32);
            }
            for index in 0..6 {
                first.announce(index, &tensors[index]).unwrap();
                // In the middle of the step, and at another place of it on the other rank.
                if index == 2 + world.rank() as usize {
                    assert_eq!(sum(&world, &world, 3, 70_000), 6);
                    world.barrier().unwrap();
                }
                second.announce(5 - index, &tensors[11 - index]).unwrap();
            }
            let mut slice = vec![1.0f32; 100];
            world.all_reduce(&mut slice, ReduceOp::Sum).unwrap();
            assert_eq!(slice, vec![2.0; 100]);
            first.end_of_backward().unwrap();
            second.end_of_backward().unwrap();
            match world.rank() {
                0 => drop((first.wait().unwrap(), second.wait().unwrap())),
                _ => drop((second.wait().unwrap(), first.wait().unwrap())),
            }
            for (index, tensor) in tensors.iter().enumerate() {
                let wanted = vec![2.0 * (step + index) as f32; tensor.len()];
                assert!(
                    tensor.to_vec().unwrap() == wanted,
                    "step {step} tensor {index}"
                );
            }
        }
    });
}
