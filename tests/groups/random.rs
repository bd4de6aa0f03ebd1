//! Groups of sends and receives in random patterns, many under way, in an order that differs
//! between the ranks.

use super::on_ranks;
use crate::prng::Prng;
use linerate::{Buffer, Communicator, Operation};

/// One message of the pattern, the same on all ranks.
#[derive(Clone, Copy)]
struct Letter {
    from: u32,
    to: u32,
    bytes: usize,
    seed: u64,
}

/// The messages of one group of every rank. Sizes: nothing, odd, at the edges of what is copied
/// inline, many chunks.
fn letters(prng: &mut Prng, ranks: u32) -> Vec<Letter> {
    let sizes = [0, 1, 7, 64, 4095, 4096, 4097, 100_001, 700_000];
    (0..prng.below(4 * u64::from(ranks)))
        .map(|_| Letter {
            from: prng.below(u64::from(ranks)) as u32,
            to: prng.below(u64::from(ranks)) as u32,
            bytes: sizes[prng.below(sizes.len() as u64) as usize],
            seed: prng.next_u64(),
        })
        .collect()
}

fn bytes_of(letter: &Letter) -> Vec<u8> {
    let mut prng = Prng::new(letter.seed);
    let salt = prng.next_u64();
    (0..letter.bytes as u64)
        .map(|i| (crate::prng::mix(salt ^ (i / 8)) >> (8 * (i % 8))) as u8)
        .collect()
}

fn buffer(comm: &Communicator, prng: &mut Prng, bytes: usize) -> Buffer<u8> {
    let buffer = match prng.below(3) {
        0 => Buffer::from_vec(vec![0; bytes.max(1)]),
        _ => comm.alloc(bytes.max(1)).unwrap(),
    };
    buffer.range(..bytes)
}

/// Starts this rank's part of a group. Receives and sends are added in an order of this rank's own,
/// except that those of one pair keep theirs.
fn start(
    comm: &Communicator,
    letters: &[Letter],
    own: &mut Prng,
) -> (Operation, Vec<(Letter, Buffer<u8>)>) {
    let rank = comm.rank();
    let mut parts: Vec<(u64, bool, Letter)> = Vec::new();
    let lots: Vec<u64> = (0..2 * comm.ranks()).map(|_| own.next_u64()).collect();
    for letter in letters {
        if letter.from == rank {
            parts.push((lots[letter.to as usize], true, *letter));
        }
        if letter.to == rank {
            let lot = lots[(comm.ranks() + letter.from) as usize];
            parts.push((lot, false, *letter));
        }
    }
    parts.sort_by_key(|(lot, ..)| *lot);
    let mut group = comm.group();
    let mut arrivals = Vec::new();
    for (_, is_send, letter) in parts {
        let buffer = buffer(comm, own, letter.bytes);
        if is_send {
            buffer.write(0, &bytes_of(&letter)).unwrap();
            group = group.send(&buffer, letter.to);
        } else {
            group = group.recv(&buffer, letter.from);
            arrivals.push((letter, buffer));
        }
    }
    (group.start().unwrap(), arrivals)
}

#[test]
fn random_groups_never_deadlock_and_carry_the_right_bytes() {
    for ranks in 2..=5u32 {
        on_ranks(ranks, |comm| {
            let mut shared = Prng::new(u64::from(ranks));
            let mut own = Prng::new(1000 + u64::from(comm.rank()));
            for wave in 0..6 {
                let groups: Vec<Vec<Letter>> =
                    (0..12).map(|_| letters(&mut shared, ranks)).collect();
                let mut under_way: Vec<_> =
                    groups.iter().map(|g| start(&comm, g, &mut own)).collect();
                while !under_way.is_empty() {
                    let next = own.below(under_way.len() as u64) as usize;
                    let (operation, arrivals) = under_way.swap_remove(next);
                    operation.wait().unwrap();
                    for (letter, buffer) in arrivals {
                        let got = buffer.to_vec().unwrap();
                        let (from, to) = (letter.from, letter.to);
                        assert!(got == bytes_of(&letter), "wave {wave}, {from} to {to}");
                    }
                }
            }
            comm.barrier().unwrap();
        });
    }
}

#[test]
fn a_ring_of_sends_before_receives_ends() {
    on_ranks(4, |comm| {
        comm.group().run().unwrap();
        let (next, last) = ((comm.rank() + 1) % 4, (comm.rank() + 3) % 4);
        for _ in 0..50 {
            let alloc = || comm.alloc::<u32>(1 << 18).unwrap();
            let (to, from) = (alloc(), alloc());
            to.write(0, &[comm.rank()]).unwrap();
            comm.group()
                .send(&to, next)
                .recv(&from, last)
                .run()
                .unwrap();
            assert_eq!(from.as_slice().unwrap()[0], last);
        }
        // Who is done first does not leave before the others are.
        comm.barrier().unwrap();
    });
}
