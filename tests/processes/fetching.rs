//! Memory of the caller: named by its address, inside registered buffers or not, and read out of
//! the sender's process or staged. Real processes over shared memory.
#![allow(unsafe_code)]

use linerate::options::CrossMemory;
use linerate::{Buffer, Collective, CollectiveBuilder, Communicator, Config, DataType, ReduceOp};
use linerate_children::{spawn, text};

/// More than a window, several chunks, and no whole number of them.
const COUNT: usize = 300_001;

/// What all ranks printed; fails if one did not end well.
fn run(role: &str, ranks: u32, extra: &[(&str, &str)]) -> String {
    let outputs = spawn(&format!("fetching-{role}"), ranks, extra);
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", text(output));
    }
    outputs.iter().map(text).collect()
}

/// What a rank does in a role.
pub fn run_as_child(role: &str) {
    let mut config = Config::from_lookup(|name| std::env::var(name).ok()).unwrap();
    if std::env::var("LINERATE_TEST_OFF").ok() == std::env::var("RANK").ok() {
        config.cma = CrossMemory::Off;
    }
    let comm = Communicator::from_env_with(config).unwrap();
    match role {
        "messages" => messages(&comm),
        "addresses" => addresses(&comm),
        "mixed" => mixed(&comm),
        other => panic!("no role {other}"),
    }
}

fn value(rank: u32, index: usize) -> f32 {
    (rank as usize * 31 + index % 1000) as f32
}

fn filled(buffer: &Buffer<f32>, rank: u32) {
    let values: Vec<f32> = (0..COUNT).map(|index| value(rank, index)).collect();
    buffer.write(0, &values).unwrap();
}

fn check(what: &str, buffer: &Buffer<f32>, wanted: impl Fn(usize) -> f32) {
    let values = buffer.as_slice().unwrap();
    let wrong = (0..COUNT).find(|&index| values[index] != wanted(index));
    assert!(wrong.is_none(), "{what}: element {wrong:?} is wrong");
}

fn sum(ranks: u32, index: usize) -> f32 {
    (0..ranks).map(|rank| value(rank, index)).sum()
}

fn plain() -> Buffer<f32> {
    Buffer::from_vec(vec![0f32; COUNT])
}

fn of_count(comm: &Communicator, collective: Collective) -> CollectiveBuilder<'_> {
    comm.collective(collective, DataType::F32, COUNT as u64)
}

/// Collectives by messages, and sends and receives, of the caller's memory.
fn messages(comm: &Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let (input, output) = (plain(), plain());
    let sum_of_all = of_count(comm, Collective::AllReduce)
        .input(&input)
        .output(&output);
    for round in 0..3 {
        for algorithm in ["ring", "recursive-doubling"] {
            filled(&input, rank);
            sum_of_all.clone().algorithm(algorithm).run().unwrap();
            check(algorithm, &output, |index| sum(ranks, index));
            check("the input", &input, |index| value(rank, index));
        }
        for algorithm in ["tree", "chain"] {
            let root = round % ranks;
            filled(&output, if rank == root { root } else { 77 });
            let broadcast = of_count(comm, Collective::Broadcast).root(root);
            let broadcast = broadcast.input(&output).output(&output);
            broadcast.algorithm(algorithm).run().unwrap();
            check(algorithm, &output, |index| value(root, index));
        }
        filled(&input, rank);
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let group = comm.group().send(&input, next).recv(&output, previous);
        group.run().unwrap();
        check("a shift", &output, |index| value(previous, index));
    }
    // A shift is of three ranks: a rank that left after the last one would be missing when another
    // calls it.
    comm.barrier().unwrap();
    let explanation = sum_of_all.algorithm("ring").explain().unwrap();
    println!("PATH {}.", explanation.path);
}

#[test]
fn messages_that_are_read_where_they_lie_are_whole() {
    for ranks in [1, 2, 3, 5] {
        let extra = [("LINERATE_CMA", "on"), ("LINERATE_DEBUG", "info")];
        let said = run("messages", ranks, &extra);
        if ranks > 1 && !said.contains("are fetched by all others") {
            println!(
                "only staging was tested: this host lets no process read another one:\n{said}"
            );
            continue;
        }
        let path = if ranks > 1 {
            "messages, fetched"
        } else {
            "messages"
        };
        let paths = said.matches(&format!("PATH {path}.")).count();
        assert_eq!(paths, ranks as usize, "{said}");
    }
}

#[test]
fn ranks_that_do_not_want_it_are_served_by_staging() {
    let debug = ("LINERATE_DEBUG", "info");
    let on = ("LINERATE_CMA", "on");
    let said = run("messages", 3, &[on, ("LINERATE_TEST_OFF", "1"), debug]);
    assert_eq!(said.matches("PATH messages.").count(), 3, "{said}");
    assert!(
        said.contains("rank 1: messages of memory that is not registered are staged"),
        "{said}"
    );
    if !said.contains("fetched by ranks [2]") {
        println!("only staging was tested:\n{said}");
    }
    let said = run("messages", 2, &[("LINERATE_CMA", "off"), debug]);
    assert_eq!(said.matches("PATH messages.").count(), 2, "{said}");
    assert!(said.contains("is off by LINERATE_CMA"), "{said}");
    let said = run("messages", 2, &[debug]);
    assert!(
        said.contains("measured at the start") || said.contains("process_vm_readv"),
        "{said}"
    );
}

/// The memory of a buffer, named by its address only.
fn bare(comm: &Communicator, buffer: &Buffer<f32>) -> Buffer<f32> {
    let address = buffer.as_mut_slice().unwrap().as_mut_ptr();
    // SAFETY: the callers keep the buffer for longer than the result, and use one slice of it at a
    // time.
    unsafe { comm.adopt(address, buffer.len()) }.unwrap()
}

/// `direct` works on registered memory only, and says so where it finds other.
fn all_reduce_directly(comm: &Communicator, buffer: &Buffer<f32>) -> linerate::Result<()> {
    let sum = of_count(comm, Collective::AllReduce).algorithm("direct");
    sum.input(buffer).output(buffer).run()
}

/// Memory that is named by its address, inside a registered buffer and elsewhere.
fn addresses(comm: &Communicator) {
    let ranks = comm.ranks();
    let child = comm.duplicate().unwrap();
    let whole = comm.alloc::<f32>(COUNT + 1024).unwrap();
    for (at, on) in [(0, comm), (512, comm), (1024, &child)] {
        let range = whole.range(at..at + COUNT);
        let part = bare(on, &range);
        assert!(part.is_registered());
        filled(&part, comm.rank());
        all_reduce_directly(on, &part).unwrap();
        check("by its address", &range, |index| sum(ranks, index));
    }
    // One use excludes the other, whichever way the elements were named.
    let part = bare(comm, &whole.range(16..32));
    let slice = whole.range(31..).as_mut_slice().map(|mut slice| {
        slice[0] = 7.0;
        part.as_slice().unwrap_err().to_string()
    });
    assert!(slice.unwrap().contains("are in use by a slice"));
    assert_eq!(part.as_slice().unwrap()[15], 7.0);
    let plain = plain();
    assert!(!bare(comm, &plain).is_registered());
    // The part keeps the buffer, and the buffer's end is the end of its range.
    let address = whole.as_mut_slice().unwrap().as_mut_ptr();
    // SAFETY: of no elements nothing is used.
    let is_known = || unsafe { comm.adopt(address, 0) }.unwrap().is_registered();
    drop(whole);
    assert!(is_known());
    drop(part);
    assert!(!is_known());
    // In place is where the addresses say, no matter who names them.
    let (one, other) = (bare(comm, &plain), bare(comm, &plain.range(1..)));
    let sum = comm.collective(Collective::AllReduce, DataType::F32, COUNT as u64 - 1);
    let error = sum
        .input(&one)
        .output(&other)
        .run()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("overlap at a distance of 4 bytes"),
        "{error}"
    );
    // Of three ranks, one may hear of another one's refusal before it has heard the third one's
    // part of the barrier.
    let refused = comm
        .barrier()
        .and_then(|()| all_reduce_directly(comm, &one));
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("direct needs registered memory"), "{error}");
    println!("STAGED");
}

#[test]
fn memory_inside_a_registered_buffer_is_used_where_it_lies() {
    for ranks in [2, 3] {
        let said = run("addresses", ranks, &[]);
        assert_eq!(said.matches("STAGED").count(), ranks as usize, "{said}");
    }
}

/// Registered on some ranks and not on others, all named by address.
fn mixed(comm: &Communicator) {
    let registered = comm.alloc(COUNT).unwrap();
    let plain = plain();
    for round in 0..2 * comm.ranks() {
        let buffer = match round % comm.ranks() == comm.rank() {
            true => bare(comm, &plain),
            false => bare(comm, &registered),
        };
        filled(&buffer, comm.rank());
        comm.all_reduce(&buffer, ReduceOp::Sum).unwrap();
        check("mixed", &buffer, |index| sum(comm.ranks(), index));
    }
}

#[test]
fn ranks_may_differ_in_whether_an_address_is_registered() {
    run("mixed", 3, &[]);
}
