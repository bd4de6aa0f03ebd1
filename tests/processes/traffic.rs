//! Many operations at once, in hostile orders: grouped transfers, operations that nobody waits for,
//! ranks that differ in what they registered, in how they make progress and in how fast they are.

use super::{results, spawn, spawn_late, wait_for_word, zeros};
use linerate::{Buffer, Collective, Communicator, DataType, Operation, ReduceOp};
use std::time::Duration;

/// Runs the role of this name, if there is one.
pub fn run(role: &str, comm: &Communicator) -> bool {
    match role {
        "partial" => partly_registered(comm),
        "stream" => stream(comm),
        "classes" => classes(comm),
        "opposite" => opposite(comm),
        "outstanding" => outstanding(comm),
        "slow" => slow(comm),
        "stuck-pair" => stuck_pair(comm),
        "dropped" => dropped(comm),
        "small" => small(comm),
        "patient" => patient(comm),
        "threads" => threads(comm),
        "late" => late(comm),
        "wrong" => wrong(comm),
        "nothing" => {}
        _ => return false,
    }
    true
}

fn filled(comm: &Communicator, registered: bool, count: usize, first: u32) -> Buffer<u32> {
    let buffer = zeros(comm, registered, count);
    let values: Vec<u32> = (0..count as u32).map(|i| first + i % 1000).collect();
    buffer.write(0, &values).unwrap();
    buffer
}

/// Every collective with memory that is registered for some of the ranks and buffers only, in place
/// on some ranks, and with ranks that come late, so that the others learn of it while they wait.
fn partly_registered(comm: &Communicator) {
    const COUNT: usize = 50_000;
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let wide = COUNT * ranks as usize;
    let collectives = [
        Collective::Broadcast,
        Collective::ReduceScatter,
        Collective::Reduce,
        Collective::AllReduce,
        Collective::Gather,
        Collective::Scatter,
        Collective::AllGather,
        Collective::AllToAll,
    ];
    for (number, collective) in (0..64u32).zip(collectives.into_iter().cycle()) {
        let variant = number / 8;
        let late = variant % ranks;
        if rank == late {
            std::thread::sleep(Duration::from_millis(5));
        }
        // One rank has a plain buffer; which of its two it is changes.
        let is_odd_one = rank == late;
        let (input_is_registered, output_is_registered) = match variant / 4 {
            0 => (true, !is_odd_one),
            _ => (!is_odd_one, true),
        };
        let (input_len, output_len) = match collective {
            Collective::ReduceScatter | Collective::Scatter => (wide, COUNT),
            Collective::Gather | Collective::AllGather => (COUNT, wide),
            Collective::AllToAll => (wide, wide),
            _ => (COUNT, COUNT),
        };
        let input = filled(comm, input_is_registered, input_len, rank);
        let in_place = !is_odd_one
            && matches!(
                collective,
                Collective::ReduceScatter | Collective::AllReduce
            );
        let output = match in_place {
            true if output_len < input_len => input.range(COUNT * rank as usize..).range(..COUNT),
            true => input.clone(),
            false => filled(comm, output_is_registered, output_len, 0),
        };
        let root = (variant + number) % ranks;
        let call = comm.collective(collective, DataType::U32, COUNT as u64);
        let call = call.root(root).input(&input).output(&output);
        call.run()
            .unwrap_or_else(|e| panic!("{collective} {variant}: {e}"));
        let sum = |i: usize| (0..ranks).map(|r| r + i as u32 % 1000).sum::<u32>();
        let value = |from: u32, i: usize| from + i as u32 % 1000;
        let wanted = |i: usize| match collective {
            Collective::Broadcast => value(root, i),
            Collective::Scatter => value(root, i + COUNT * rank as usize),
            Collective::ReduceScatter => sum(i + COUNT * rank as usize),
            Collective::Gather | Collective::AllGather => value((i / COUNT) as u32, i % COUNT),
            Collective::AllToAll => value((i / COUNT) as u32, i % COUNT + COUNT * rank as usize),
            _ => sum(i),
        };
        let is_rooted = matches!(collective, Collective::Reduce | Collective::Gather);
        if !is_rooted || rank == root {
            for (i, got) in output.to_vec().unwrap().into_iter().enumerate() {
                assert_eq!(
                    got,
                    wanted(i),
                    "{collective} {variant} element {i} rank {rank}"
                );
            }
        }
    }
}

#[test]
fn a_call_with_one_plain_buffer_somewhere_gives_the_same_result() {
    for ranks in [2, 3, 4] {
        results(spawn("partial", ranks, &[]));
    }
}

/// Rank 0 sends many large messages at once, rank 1 takes one after the other.
fn stream(comm: &Communicator) {
    const COUNT: usize = 1 << 16;
    if comm.rank() == 0 {
        let send = |number| {
            let buffer = filled(comm, true, COUNT, number);
            comm.group().send(&buffer, 1).start().unwrap()
        };
        let operations: Vec<Operation> = (0..40).map(send).collect();
        operations.into_iter().for_each(|o| o.wait().unwrap());
    } else {
        for number in 0..40 {
            let buffer = filled(comm, true, COUNT, 0);
            comm.recv(&buffer, 0).unwrap();
            assert_eq!(buffer.as_slice().unwrap()[999], number + 999);
        }
    }
}

#[test]
fn later_messages_never_take_the_places_of_an_earlier_one() {
    for chunk in ["4K", "8K", "256K"] {
        let extra = [("LINERATE_CHUNK_BYTES", chunk), ("LINERATE_TIMEOUT", "5")];
        results(spawn("stream", 2, &extra));
    }
}

/// Rank 0 has many collectives and messages to rank 1 under way; rank 1 wants first what was sent
/// last.
fn classes(comm: &Communicator) {
    const COUNT: usize = 1 << 16;
    let rank = comm.rank();
    let message = filled(comm, true, COUNT, 7 * (1 - rank));
    let counts = [COUNT as u64; 2];
    let pair = |first| filled(comm, true, 2 * COUNT, first);
    let collectives: Vec<_> = (0..12).map(|_| (pair(rank), pair(0))).collect();
    let start_collectives = || -> Vec<Operation> {
        let start = |(input, output)| comm.start_all_to_all_v(input, &counts, output, &counts);
        let all = collectives.iter().map(|(input, output)| (input, output));
        all.map(|pair| start(pair).unwrap()).collect()
    };
    let run_collectives = || {
        for (input, output) in &collectives {
            let ended = comm.all_to_all_v(input, &counts, output, &counts);
            ended.unwrap();
        }
    };
    let start_messages = || -> Vec<Operation> {
        let send = |_| comm.group().send(&message, 1).start().unwrap();
        (0..40).map(send).collect()
    };
    let run_messages = || (0..40).for_each(|_| comm.recv(&message, 0).unwrap());
    for collectives_first in [true, false] {
        match (rank, collectives_first) {
            (0, _) => {
                let operations = match collectives_first {
                    true => [start_collectives(), start_messages()],
                    false => [start_messages(), start_collectives()],
                };
                let all = operations.into_iter().flatten();
                all.for_each(|operation| operation.wait().unwrap());
                continue;
            }
            (_, true) => (run_messages(), run_collectives()),
            (_, false) => (run_collectives(), run_messages()),
        };
        assert_eq!(message.as_slice().unwrap()[999], 7 + 999);
    }
}

#[test]
fn messages_of_pairs_and_of_collectives_never_take_each_others_places() {
    let extra = [("LINERATE_CHUNK_BYTES", "4K"), ("LINERATE_TIMEOUT", "5")];
    results(spawn("classes", 2, &extra));
}

/// Groups of large and small messages between all pairs; each rank lists sends first or receives
/// first, large first or small first.
fn opposite(comm: &Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    for round in 0..12u32 {
        let lengths = [1 << 18, 1, 0, 1 << 18, 300];
        let (mut sends, mut receives, mut arrived) = (Vec::new(), Vec::new(), Vec::new());
        for peer in 0..ranks {
            for (index, &count) in lengths.iter().enumerate() {
                let registered = !(round + index as u32).is_multiple_of(2);
                let first = 10_000 * (index as u32 + 1) + rank;
                sends.push((peer, true, filled(comm, registered, count, first)));
                let buffer = filled(comm, registered, count, 0);
                receives.push((peer, false, buffer.clone()));
                arrived.push((10_000 * (index as u32 + 1) + peer, buffer));
            }
        }
        let (mut first, second) = match (rank + round) % 2 {
            0 => (sends, receives),
            _ => (receives, sends),
        };
        first.extend(second);
        let all = first.iter();
        let group = all.fold(
            comm.group(),
            |group, (peer, is_send, buffer)| match is_send {
                true => group.send(buffer, *peer),
                false => group.recv(buffer, *peer),
            },
        );
        group.run().unwrap();
        for (value, buffer) in arrived {
            let got = buffer.as_slice().unwrap();
            assert!(
                got.iter()
                    .enumerate()
                    .all(|(i, &v)| v == value + i as u32 % 1000),
                "round {round}: {value}"
            );
        }
    }
}

#[test]
fn groups_in_opposite_orders_end() {
    for ranks in [1, 2, 3] {
        results(spawn("opposite", ranks, &[]));
        let small = [
            ("LINERATE_CHUNK_BYTES", "4K"),
            ("LINERATE_PROGRESS", "thread"),
        ];
        results(spawn("opposite", ranks, &small));
    }
}

/// 300 operations at once, waited for backwards.
fn outstanding(comm: &Communicator) {
    let ranks = comm.ranks();
    let next = (comm.rank() + 1) % ranks;
    let before = (comm.rank() + ranks - 1) % ranks;
    let mut operations = Vec::new();
    for number in 0..300u32 {
        let buffer = filled(comm, number % 3 > 0, 1 + 40 * number as usize, number);
        let other = filled(comm, number % 3 > 1, buffer.len(), 0);
        let started = match number % 2 {
            0 => comm.start_all_reduce_into(&buffer, &other, ReduceOp::Sum),
            _ => {
                let group = comm.group().send(&buffer, next);
                group.recv(&other, before).start()
            }
        };
        let factor = if number % 2 == 0 { ranks } else { 1 };
        operations.push((started.unwrap(), other, factor * number));
    }
    for (operation, output, wanted) in operations.into_iter().rev() {
        operation.wait().unwrap();
        assert_eq!(output.as_slice().unwrap()[0], wanted);
    }
}

#[test]
fn three_hundred_operations_may_be_outstanding() {
    for ranks in [1, 2, 3] {
        results(spawn("outstanding", ranks, &[]));
    }
}

/// Rank 0 starts everything at once; rank 1 takes longer than the timeout to come to the last.
fn slow(comm: &Communicator) {
    let buffers = [(); 5].map(|()| comm.alloc::<f32>(1 << 10).unwrap());
    let sum = |buffer: &Buffer<f32>| comm.start_all_reduce(buffer, ReduceOp::Sum).unwrap();
    let pair = |buffer: &Buffer<f32>| {
        let group = match comm.rank() {
            0 => comm.group().send(buffer, 1),
            _ => comm.group().recv(buffer, 0),
        };
        group.start().unwrap()
    };
    for start in [&sum as &dyn Fn(&Buffer<f32>) -> Operation, &pair] {
        if comm.rank() == 0 {
            let all = buffers.each_ref().map(start);
            all.into_iter().for_each(|o| o.wait().unwrap());
        } else {
            for buffer in &buffers {
                std::thread::sleep(Duration::from_millis(750));
                start(buffer).wait().unwrap();
            }
        }
    }
}

#[test]
fn operations_that_wait_for_earlier_ones_do_not_time_out() {
    results(spawn("slow", 2, &[("LINERATE_TIMEOUT", "3")]));
}

/// Rank 0 waits for a message of rank 1, which does not come; rank 2 is in a barrier.
fn stuck_pair(comm: &Communicator) {
    let buffer = comm.alloc::<f32>(16).unwrap();
    let error = match comm.rank() {
        0 => comm.recv(&buffer, 1).unwrap_err(),
        1 => {
            wait_for_word();
            comm.barrier().unwrap_err()
        }
        _ => {
            std::thread::sleep(Duration::from_millis(500));
            comm.barrier().unwrap_err()
        }
    };
    println!("RESULT {}", error.to_string().replace('\n', " "));
}

#[test]
fn a_message_that_never_comes_is_no_disagreement_with_bystanders() {
    let timeout = [("LINERATE_TIMEOUT", "2")];
    for line in results(spawn_late(
        ("stuck-pair", 3),
        (1, &[0, 2], "RESULT"),
        &timeout,
    )) {
        assert!(line.contains("rank 1 is missing"), "{line}");
    }
}

/// Operations whose handles are dropped at once go on, and their memory lives as long as they do.
fn dropped(comm: &Communicator) {
    for round in 0..20u32 {
        let kept = filled(comm, true, 10_000, round);
        drop(comm.start_all_reduce(&kept, ReduceOp::Sum).unwrap());
        for registered in [true, false] {
            let buffer = filled(comm, registered, 100_000, round);
            drop(comm.start_all_reduce(&buffer, ReduceOp::Max).unwrap());
        }
        // Operations end in any order, and far fewer than these are under way at once: the last of
        // them starts only when all ranks have ended this.
        for _ in 0..64 {
            comm.barrier().unwrap();
        }
        let wanted = comm.ranks() * (round + 999);
        assert_eq!(kept.as_slice().unwrap()[9_999], wanted);
    }
    comm.barrier().unwrap();
}

#[test]
fn an_operation_whose_handle_is_dropped_goes_on() {
    for ranks in [2, 3] {
        results(spawn("dropped", ranks, &[]));
        results(spawn("dropped", ranks, &[("LINERATE_PROGRESS", "thread")]));
    }
}

fn small(comm: &Communicator) {
    let buffer = comm.alloc::<u32>(1).unwrap();
    for round in 0..200u32 {
        buffer.write(0, &[comm.rank() + round]).unwrap();
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        let p = comm.ranks();
        assert_eq!(*buffer.as_slice().unwrap(), [p * (p - 1) / 2 + p * round]);
    }
}

#[test]
fn more_ranks_than_cores_come_through() {
    results(spawn("small", 8, &[]));
}

#[test]
fn ranks_may_differ_in_how_they_make_progress() {
    let thread_on_one = [("LINERATE_TEST_THREAD_ON", "1")];
    for role in ["small", "outstanding", "opposite"] {
        results(spawn(role, 3, &thread_on_one));
    }
}

#[test]
fn a_rank_that_leaves_at_once_does_not_fail_those_that_still_join() {
    for _ in 0..10 {
        results(spawn("nothing", 4, &[]));
    }
}

/// A wait that is too short says so, and a later one ends well.
fn patient(comm: &Communicator) {
    let buffer = filled(comm, true, 1000, 1);
    comm.barrier().unwrap();
    if comm.rank() == 1 {
        wait_for_word();
    }
    let mut operation = comm.start_all_reduce(&buffer, ReduceOp::Sum).unwrap();
    if comm.rank() == 0 {
        assert!(!operation.wait_timeout(Duration::ZERO).unwrap());
        assert!(!operation.wait_timeout(Duration::from_millis(20)).unwrap());
        assert!(!operation.test().unwrap());
        println!("LOOKED");
    }
    while !operation.wait_timeout(Duration::from_millis(50)).unwrap() {}
    assert!(operation.test().unwrap());
    operation.wait().unwrap();
    assert_eq!(buffer.as_slice().unwrap()[0], comm.ranks());
}

#[test]
fn a_wait_that_was_too_short_can_be_repeated() {
    results(spawn_late(("patient", 2), (1, &[0], "LOOKED"), &[]));
}

/// Threads of one process: each with a communicator of its own, and all on one, handing over the
/// turn.
fn threads(comm: &Communicator) {
    let job = std::env::var("LINERATE_JOB").unwrap();
    let turn = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3u32 {
            let (job, turn) = (format!("{}-{thread}", &job[..job.len().min(50)]), &turn);
            scope.spawn(move || {
                let config = linerate::Config::default();
                let own = Communicator::join(comm.rank(), comm.ranks(), &job, config).unwrap();
                small(&own);
                let mut data = vec![thread + 1; 30_000];
                for step in 0..30u32 {
                    // The order of the calls is the order of the turns, and the waits overlap.
                    let mut started = None;
                    let buffer = filled(comm, step % 2 == 0, 20_000, thread);
                    for whose in 0..3 {
                        if whose == thread {
                            let sum = comm.start_all_reduce(&buffer, ReduceOp::Sum);
                            started = Some(sum.unwrap());
                        }
                        turn.wait();
                    }
                    started.unwrap().wait().unwrap();
                    let sum = buffer.as_slice().unwrap()[999];
                    assert_eq!(sum, comm.ranks() * (thread + 999));
                    own.all_reduce(&mut data, ReduceOp::Max).unwrap();
                    assert!(data.iter().all(|&v| v == thread + 1));
                }
            });
        }
    });
}

#[test]
fn threads_share_a_communicator_and_have_their_own() {
    for ranks in [2, 3] {
        results(spawn("threads", ranks, &[]));
    }
}

/// Rank 1 fails while a borrowed slice waits for a message, and rank 0 sends that message after
/// that.
fn late(comm: &Communicator) {
    let mut data = vec![1.0f32; 512];
    if comm.rank() == 0 {
        wait_for_word();
        // Whether it ends well depends on what is read first.
        let _ = comm.all_reduce(&mut data, ReduceOp::Sum);
        std::thread::sleep(Duration::from_secs(1));
        return;
    }
    let data = std::thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            comm.all_reduce(&mut data, ReduceOp::Sum).unwrap_err();
            data
        });
        std::thread::sleep(Duration::from_millis(200));
        let mut barriers: Vec<Operation> = (0..5).map(|_| comm.start_barrier().unwrap()).collect();
        barriers.pop().unwrap().cancel().unwrap();
        let mut data = waiting.join().unwrap();
        data.fill(7.0);
        println!("FILLED");
        for barrier in &mut barriers {
            std::thread::sleep(Duration::from_millis(200));
            barrier.test().unwrap_err();
        }
        data
    });
    assert!(data.iter().all(|&v| v == 7.0));
}

#[test]
fn a_slice_is_left_alone_once_its_call_has_failed() {
    let tree = [("LINERATE_ALGO", "tree")];
    results(spawn_late(("late", 2), (0, &[1], "FILLED"), &tree));
}

/// Arguments that no operation can have are errors, and the communicator goes on.
fn wrong(comm: &Communicator) {
    let alloc = |bytes| comm.alloc::<u8>(bytes).unwrap();
    let (short, long, own) = (alloc(4), alloc(8), comm.rank());
    for (send, receive) in [(&short, &long), (&long, &short)] {
        let group = comm.group().send(send, own).recv(receive, own);
        assert!(group.run().unwrap_err().to_string().contains("to itself"));
    }
    for count in [u64::MAX, u64::MAX / 4, 1 << 49, 1 << 62] {
        for collective in Collective::ALL {
            let call = comm.collective(collective, DataType::F64, count);
            assert!(call.run().is_err(), "{collective} {count}");
            let call = call.input(&short).output(&long);
            assert!(call.run().is_err(), "{collective} {count}");
        }
    }
    comm.barrier().unwrap();
}

#[test]
fn impossible_arguments_are_errors() {
    for ranks in [1, 2] {
        results(spawn("wrong", ranks, &[]));
    }
}
