//! Sends and receives with tags: random programs against the rules of matching, and every way in
//! which one ends that is not the ordinary one.

use super::{on_ranks, on_ranks_with, sum};
use crate::prng::{Prng, mix};
use linerate::sim::SimOptions;
use linerate::{Buffer, Communicator, Config, Error, Operation, ReduceOp, Simulation};
use std::collections::BTreeMap;
use std::time::Duration;

const TAGS: u64 = 5;

/// The length of every message with a tag: nothing, small, at the edges of what is copied inline,
/// several chunks.
fn bytes_of(tag: u32) -> usize {
    [1, 0, 4096, 4097, 1_300_001][tag as usize]
}

/// One message of a program, the same on all ranks.
#[derive(Clone, Copy)]
struct Letter {
    from: u32,
    to: u32,
    tag: u32,
    seed: u64,
}

impl Letter {
    fn bytes(&self) -> Vec<u8> {
        let seed = self.seed;
        let byte = |i| (mix(seed ^ (i / 8)) >> (8 * (i % 8))) as u8;
        (0..bytes_of(self.tag) as u64).map(byte).collect()
    }
}

/// How a rank receives all messages with one tag.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Named,
    Any,
    /// Some by name, which are started first, so that the others leave theirs to them.
    Both,
}

struct Program {
    letters: Vec<Letter>,
    /// Per receiver and tag.
    kinds: BTreeMap<(u32, u32), Kind>,
}

fn program(prng: &mut Prng, ranks: u32) -> Program {
    let count = prng.below(10 * u64::from(ranks));
    let mut kinds = BTreeMap::new();
    for to in 0..ranks {
        for tag in 0..TAGS as u32 {
            let kind = [Kind::Named, Kind::Any, Kind::Both][prng.below(3) as usize];
            kinds.insert((to, tag), kind);
        }
    }
    let mut letter = |_| Letter {
        from: prng.below(u64::from(ranks)) as u32,
        to: prng.below(u64::from(ranks)) as u32,
        // Long ones are rare.
        tag: prng.below(TAGS).min(prng.below(TAGS)) as u32,
        seed: prng.next_u64(),
    };
    let letters = (0..count).map(&mut letter).collect();
    Program { letters, kinds }
}

struct Receive {
    tag: u32,
    peer: Option<u32>,
    buffer: Buffer<u8>,
    operation: Operation,
}

/// What a rank has started of a program.
#[derive(Default)]
struct Started {
    sends: Vec<Operation>,
    /// In the order in which they were started, without those that were cancelled.
    receives: Vec<Receive>,
}

fn memory(comm: &Communicator, own: &mut Prng, bytes: usize) -> Buffer<u8> {
    match own.below(3) {
        0 => Buffer::from_vec(vec![0; bytes]),
        _ => comm.alloc(bytes).unwrap(),
    }
}

impl Started {
    fn send(&mut self, comm: &Communicator, own: &mut Prng, letter: &Letter) {
        let buffer = memory(comm, own, bytes_of(letter.tag));
        buffer.write(0, &letter.bytes()).unwrap();
        let send = comm.tagged(letter.tag).start_send(&buffer, letter.to);
        self.sends.push(send.unwrap());
    }

    fn receive(&mut self, comm: &Communicator, own: &mut Prng, (tag, peer): (u32, Option<u32>)) {
        let buffer = memory(comm, own, bytes_of(tag));
        let tagged = comm.tagged(tag);
        let operation = match peer {
            Some(peer) => tagged.start_recv(&buffer, peer),
            None => tagged.start_recv_any(&buffer),
        };
        self.receives.push(Receive {
            tag,
            peer,
            buffer,
            operation: operation.unwrap(),
        });
    }

    /// Cancels some receive, and starts another one like it if that was in time.
    fn cancel_one(&mut self, comm: &Communicator, own: &mut Prng, program: &Program) {
        if self.receives.is_empty() {
            return;
        }
        let at = own.below(self.receives.len() as u64) as usize;
        let Receive {
            tag,
            peer,
            operation,
            ..
        } = &mut self.receives[at];
        let what = (*tag, *peer);
        // Those by name that are started after the others could find their message taken.
        let is_fixed = program.kinds[&(comm.rank(), *tag)] == Kind::Both;
        if is_fixed || !operation.cancel_receive().unwrap() {
            return;
        }
        let cancelled = self.receives.remove(at).operation;
        assert_eq!(cancelled.source(), None);
        let error = cancelled.wait().unwrap_err();
        assert!(matches!(error, Error::ReceiveCancelled { .. }), "{error}");
        self.receive(comm, own, what);
    }

    fn is_over(&mut self) -> bool {
        let receives = self.receives.iter_mut().map(|r| &mut r.operation);
        let mut all = self.sends.iter_mut().chain(receives);
        all.all(|operation| operation.test().unwrap())
    }

    /// Whatever order the messages of different ranks came in: those of one rank with one tag have
    /// come in order, each once.
    fn check(&self, rank: u32, program: &Program) {
        for (index, receive) in self.receives.iter().enumerate() {
            let source = receive.operation.source().expect("it has ended");
            assert!(receive.peer.is_none_or(|peer| peer == source));
            let same = self.receives[..index].iter().filter(|earlier| {
                earlier.tag == receive.tag && earlier.operation.source() == Some(source)
            });
            let mut letters = program.letters.iter().filter(|letter| {
                (letter.from, letter.to, letter.tag) == (source, rank, receive.tag)
            });
            let letter = letters.nth(same.count()).expect("it was sent");
            assert!(
                receive.buffer.to_vec().unwrap() == letter.bytes(),
                "receive {index} of rank {rank}: tag {} of rank {source}",
                receive.tag
            );
        }
    }
}

/// Starts this rank's part of a program in an order of its own.
fn start(comm: &Communicator, program: &Program, own: &mut Prng) -> Started {
    let rank = comm.rank();
    let letters = program.letters.iter();
    let mut sends = letters.clone().filter(|letter| letter.from == rank).rev();
    let mut sends: Vec<&Letter> = sends.by_ref().collect();
    let mut receives: Vec<(u32, Option<u32>)> = letters
        .filter(|letter| letter.to == rank)
        .map(|letter| {
            let is_named = match program.kinds[&(rank, letter.tag)] {
                Kind::Named => true,
                Kind::Any => false,
                Kind::Both => own.below(2) == 0,
            };
            (letter.tag, is_named.then_some(letter.from))
        })
        .collect();
    for at in (1..receives.len()).rev() {
        receives.swap(at, own.below(at as u64 + 1) as usize);
    }
    // Taken from the end: those by name come first.
    receives.sort_by_key(|(_, peer)| peer.is_some());
    let mut started = Started::default();
    while !sends.is_empty() || !receives.is_empty() {
        let is_send = own.below((sends.len() + receives.len()) as u64) < sends.len() as u64;
        match is_send {
            true => started.send(comm, own, sends.pop().unwrap()),
            false => started.receive(comm, own, receives.pop().unwrap()),
        }
        match own.below(12) {
            0 => started.cancel_one(comm, own, program),
            1 => drop(started.is_over()),
            _ => {}
        }
    }
    started
}

/// Runs programs, with sums and groups in between that nothing holds up.
fn programs(world: &Communicator, seed: u64, count: u32) {
    let apart = world.duplicate().unwrap();
    let (mut shared, mut own) = (
        Prng::new(seed),
        Prng::new(seed ^ u64::from(world.rank() + 1)),
    );
    for number in 0..count {
        let comm = [world, &apart][shared.below(2) as usize];
        let program = program(&mut shared, comm.ranks());
        let sum = world.alloc::<u64>(3).unwrap();
        sum.write(0, &[1; 3]).unwrap();
        let sum_first = shared.below(2) == 0;
        let mut sums = Vec::new();
        if sum_first {
            sums.push(comm.start_all_reduce(&sum, ReduceOp::Sum).unwrap());
        }
        let mut started = start(comm, &program, &mut own);
        if !sum_first {
            sums.push(comm.start_all_reduce(&sum, ReduceOp::Sum).unwrap());
        }
        sums.into_iter().for_each(|sum| sum.wait().unwrap());
        assert_eq!(sum.to_vec().unwrap(), [u64::from(comm.ranks()); 3]);
        for send in std::mem::take(&mut started.sends) {
            send.wait().unwrap();
        }
        for receive in &mut started.receives {
            let has_ended = receive.operation.wait_timeout(Duration::from_secs(60));
            assert!(has_ended.unwrap(), "program {number} of seed {seed}");
        }
        started.check(comm.rank(), &program);
        // A receive from any rank would take a message of the next program.
        comm.barrier().unwrap();
    }
}

#[test]
fn random_programs_receive_each_message_once_and_in_order() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    for (ranks, has_thread, count) in [
        (1, false, 50),
        (2, false, 200),
        (3, true, 100),
        (4, false, 150),
    ] {
        on_ranks_with(ranks, has_thread, |world| programs(&world, seed, count));
    }
}

#[test]
fn random_programs_of_simulated_ranks_receive_each_message_once_and_in_order() {
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut shared = Prng::new(seed);
    for _ in 0..40 {
        let ranks = 1 + shared.below(5) as u32;
        let mut simulation =
            Simulation::new(SimOptions::new(ranks, shared.next_u64()), Config::default()).unwrap();
        let program = program(&mut shared, ranks);
        let mut all: Vec<Started> = (simulation.communicators().iter())
            .map(|comm| start(comm, &program, &mut Prng::new(shared.next_u64())))
            .collect();
        simulation
            .run(|_| {
                all.iter_mut()
                    .map(Started::is_over)
                    .collect::<Vec<_>>()
                    .iter()
                    .all(|over| *over)
            })
            .unwrap();
        for (rank, started) in (0..).zip(&all) {
            started.check(rank, &program);
        }
    }
}

#[test]
fn messages_that_wait_hold_up_nothing_but_messages_with_tags() {
    on_ranks_with(2, false, |world| {
        let buffers: Vec<Buffer<u32>> = (0..200).map(|_| world.alloc(2000).unwrap()).collect();
        let sends: Vec<Operation> = match world.rank() {
            0 => (0..)
                .zip(&buffers)
                .map(|(number, buffer)| {
                    buffer.write(0, &[number; 2000]).unwrap();
                    world.tagged(number % 3).start_send(buffer, 1).unwrap()
                })
                .collect(),
            _ => Vec::new(),
        };
        assert_eq!(sum(&world, &world, 1, 100_000), 2);
        let (to, from) = (world.alloc::<u8>(9).unwrap(), world.alloc::<u8>(9).unwrap());
        let peer = 1 - world.rank();
        world
            .group()
            .send(&to, peer)
            .recv(&from, peer)
            .run()
            .unwrap();
        if world.rank() == 1 {
            let started: Vec<Operation> = (0..)
                .zip(&buffers)
                .map(|(number, buffer)| world.tagged(number % 3).start_recv(buffer, 0).unwrap())
                .collect();
            started
                .into_iter()
                .for_each(|receive| receive.wait().unwrap());
            for (number, buffer) in (0..).zip(&buffers) {
                assert_eq!(*buffer.as_slice().unwrap(), [number; 2000]);
            }
        }
        sends.into_iter().for_each(|send| send.wait().unwrap());
        world.barrier().unwrap();
    });
}

#[test]
fn a_queue_says_who_sent_and_that_a_receive_was_cancelled() {
    on_ranks(3, |world| {
        let queue = world.completion_queue().unwrap();
        let buffer = world.alloc::<u64>(1).unwrap();
        if world.rank() > 0 {
            world
                .tagged(4)
                .start_send(&buffer, 0)
                .unwrap()
                .wait()
                .unwrap();
        } else {
            let buffers = [0; 3].map(|_| world.alloc::<u64>(1).unwrap());
            for (user, buffer) in (0..).zip(&buffers) {
                let mut receive = world.tagged(4).start_recv_any(buffer).unwrap();
                receive.notify(&queue, user).unwrap();
                if user == 2 {
                    // Both messages go to the others.
                    let mut cancelled = None;
                    while cancelled.is_none() {
                        let ended = queue.wait(Duration::from_secs(30)).unwrap();
                        for completion in ended {
                            assert_eq!(completion.result, Ok(()));
                            cancelled.get_or_insert(completion.source.unwrap());
                        }
                    }
                    assert!(receive.cancel_receive().unwrap());
                    assert!(!receive.cancel_receive().unwrap());
                    let mut last = queue.wait(Duration::from_secs(30)).unwrap();
                    while !last.iter().any(|end| end.user == 2) {
                        last.extend(queue.wait(Duration::from_secs(30)).unwrap());
                    }
                    let end = last.iter().find(|end| end.user == 2).unwrap();
                    assert!(matches!(end.result, Err(Error::ReceiveCancelled { .. })));
                    assert_eq!(end.source, None);
                }
            }
        }
        world.barrier().unwrap();
    });
}

#[test]
fn a_queue_that_is_named_after_the_end_says_who_sent_too() {
    on_ranks(2, |world| {
        let (mine, other) = (
            world.alloc::<u64>(1).unwrap(),
            world.alloc::<u64>(1).unwrap(),
        );
        let peer = 1 - world.rank();
        let send = world.tagged(4).start_send(&mine, peer).unwrap();
        let mut receive = world.tagged(4).start_recv_any(&other).unwrap();
        // It ends while this thread waits for something else.
        while receive.source().is_none() {
            assert_eq!(world.failure(), None);
        }
        world.barrier().unwrap();
        let queue = world.completion_queue().unwrap();
        receive.notify(&queue, 5).unwrap();
        let ended = queue.wait(Duration::from_secs(30)).unwrap();
        assert_eq!((ended[0].user, ended[0].source), (5, Some(peer)));
        send.wait().unwrap();
        world.barrier().unwrap();
    });
}

#[test]
fn what_cannot_be_is_refused_with_what_to_do() {
    on_ranks(2, |world| {
        let buffer = world.alloc::<u32>(4).unwrap();
        let error = world
            .tagged(1)
            .start_send(&buffer, 2)
            .unwrap_err()
            .to_string();
        assert!(error.contains("rank 2 of 2"), "{error}");
        let mut receive = world
            .tagged(1)
            .start_recv(&buffer, 1 - world.rank())
            .unwrap();
        let twice = world.tagged(1).start_recv_any(&buffer).unwrap_err();
        assert!(matches!(twice, Error::InUse { .. }), "{twice}");
        assert!(receive.cancel_receive().unwrap());
        let error = receive.wait().unwrap_err().to_string();
        let peer = 1 - world.rank();
        let wanted = format!("receive of 16 bytes with tag 1 from rank {peer} was cancelled");
        assert!(error.contains(&wanted), "{error}");
        // Its memory is free again.
        buffer.write(0, &[1; 4]).unwrap();
        let mut sum = world.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
        assert!(!sum.cancel_receive().unwrap());
        assert_eq!(sum.source(), None);
        sum.wait().unwrap();
    });
}

#[test]
fn lengths_that_differ_are_named_on_both_sides() {
    for bytes in [8, 70_000, 3_000_000] {
        on_ranks(2, |world| {
            let (long, short) = (
                world.alloc::<u8>(bytes).unwrap(),
                world.alloc::<u8>(5).unwrap(),
            );
            let error = match world.rank() {
                0 => {
                    let send = world.tagged(1).start_send(&long, 1).unwrap();
                    send.wait().and_then(|()| world.barrier()).unwrap_err()
                }
                _ => {
                    let receive = world.tagged(1).start_recv(&short, 0).unwrap();
                    receive.wait().unwrap_err()
                }
            };
            let text = error.first_cause().to_string();
            assert!(text.contains("expects 5"), "{text}");
        });
    }
}

#[test]
fn a_receive_whose_message_never_comes_names_whom_it_waited_for() {
    for from in [Some(0), None] {
        on_ranks(2, |world| {
            let buffer = world.alloc::<u8>(100).unwrap();
            if world.rank() == 0 {
                let cause = world.barrier().unwrap_err();
                let text = cause.first_cause().to_string();
                assert!(text.contains("with tag 9 from"), "{text}");
                return;
            }
            let tagged = world.tagged(9).timeout(Duration::from_millis(300));
            let receive = match from {
                Some(peer) => tagged.start_recv(&buffer, peer).unwrap(),
                None => tagged.start_recv_any(&buffer).unwrap(),
            };
            let error = receive.wait().unwrap_err();
            let Error::Timeout {
                missing, operation, ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(*missing, [0]);
            let whom = from.map_or("any rank".into(), |peer| format!("rank {peer}"));
            let wanted = format!("receive of 100 bytes with tag 9 from {whom}");
            assert!(operation.contains(&wanted), "{operation}");
        });
    }
}

#[test]
fn what_a_rank_sent_before_it_left_is_received_and_nothing_is_waited_for_after() {
    on_ranks(3, |world| {
        let buffers = [0; 3].map(|_| world.alloc::<u64>(1000).unwrap());
        if world.rank() == 0 {
            let send = world.tagged(3).start_send(&buffers[0], 1).unwrap();
            send.wait().unwrap();
            return;
        }
        if world.rank() == 2 {
            // It receives nothing.
            let error = world.tagged(3).start_recv(&buffers[0], 0).unwrap().wait();
            assert!(
                matches!(error, Err(Error::Left { rank: 0, .. })),
                "{error:?}"
            );
            return;
        }
        let [first, second, third] = &buffers;
        let any = world.tagged(3).start_recv_any(second).unwrap();
        let named = world.tagged(3).start_recv(first, 0).unwrap();
        any.wait().unwrap();
        let error = named.wait().unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Left { rank: 0, .. }), "{text}");
        assert!(text.contains("with tag 3 from rank 0"), "{text}");
        // When all have left.
        let error = world.tagged(3).start_recv_any(third).unwrap().wait();
        assert!(matches!(error, Err(Error::Left { .. })), "{error:?}");
    });
}

#[test]
fn every_send_to_a_rank_that_has_left_says_so() {
    on_ranks(3, |world| {
        let buffers = [0; 4].map(|_| world.alloc::<u64>(20_000).unwrap());
        if world.rank() == 2 {
            return;
        }
        let peer = 1 - world.rank();
        let has_left = |ended: Result<(), Error>| match ended {
            Err(Error::Left { rank: 2, .. }) => true,
            Ok(()) => false,
            Err(other) => panic!("{other}"),
        };
        let start_sends = || {
            let sends = [0, 1].map(|at| world.tagged(1).start_send(&buffers[at], 2).unwrap());
            let groups = [2, 3].map(|at| world.group().send(&buffers[at], 2).start().unwrap());
            sends.into_iter().chain(groups).map(Operation::wait)
        };
        // Until this rank knows of the leave, what fits the space between them is sent to nobody;
        // all sends end.
        start_sends().map(has_left).for_each(drop);
        let word = world.alloc::<u8>(9).unwrap();
        let receive = world.tagged(2).start_recv(&word, 2).unwrap();
        assert!(has_left(receive.wait()));
        assert!(start_sends().all(has_left));
        // What goes to others is not held up.
        let (one, other) = (world.alloc::<u8>(9).unwrap(), world.alloc::<u8>(9).unwrap());
        let send = world.tagged(1).start_send(&one, peer).unwrap();
        world
            .tagged(1)
            .start_recv_any(&other)
            .unwrap()
            .wait()
            .unwrap();
        send.wait().unwrap();
        world
            .group()
            .send(&one, peer)
            .recv(&other, peer)
            .run()
            .unwrap();
    });
}
