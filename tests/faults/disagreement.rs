//! Ranks that call different things, and ranks that call nothing.

use super::job::{Place, Start, join};
use linerate::{Buffer, Collective, CollectiveBuilder, Communicator, DataType, ReduceOp};
use linerate_children::{result, text};

const RANKS: u32 = 3;
const COUNT: u64 = 60;

/// What a rank calls.
struct Call {
    collective: Collective,
    dtype: DataType,
    op: ReduceOp,
    count: u64,
    root: u32,
    send_counts: Vec<u64>,
    receive_counts: Vec<u64>,
}

/// Rank 1 calls something else. Everyone's first error, of that call or of the barrier behind it,
/// is printed.
pub fn disagree() {
    let comm = join().unwrap();
    let name = std::env::var("LINERATE_TEST_COLLECTIVE").unwrap();
    let field = std::env::var("LINERATE_TEST_FIELD").unwrap();
    let scale: u64 = std::env::var("LINERATE_TEST_SCALE")
        .unwrap()
        .parse()
        .unwrap();
    let collective: Collective = name.parse().unwrap();
    let mut call = plain(collective, scale * COUNT);
    if comm.rank() == 1 {
        change(&mut call, &field, scale);
    }
    let call = with_buffers(&comm, call);
    comm.barrier().unwrap();
    let error = call
        .run()
        .and_then(|()| comm.barrier())
        .and_then(|()| settle(&comm));
    match error {
        Ok(()) => println!("ERROR none"),
        Err(error) => println!("ERROR {}", error.to_string().replace('\n', " ")),
    }
}

/// A rank that only sends may have ended before anybody could tell it; it learns within a few
/// operations.
fn settle(comm: &Communicator) -> linerate::Result<()> {
    (0..40).try_for_each(|_| comm.barrier())
}

fn plain(collective: Collective, count: u64) -> Call {
    let mut call = Call {
        collective,
        dtype: DataType::F32,
        op: ReduceOp::Sum,
        count,
        root: 0,
        send_counts: Vec::new(),
        receive_counts: Vec::new(),
    };
    let parts: Vec<u64> = (0..u64::from(RANKS)).map(|r| count / 2 + r).collect();
    match collective {
        of if of.has_part_lengths() => call.receive_counts = parts,
        Collective::AllToAllV => {
            call.send_counts = vec![count; RANKS as usize];
            call.receive_counts = vec![count; RANKS as usize];
        }
        _ => {}
    }
    call
}

fn change(call: &mut Call, field: &str, scale: u64) {
    match field {
        "count" => call.count += 1,
        "dtype" => call.dtype = DataType::I32,
        "op" => call.op = ReduceOp::Max,
        "root" => call.root = 1,
        "collective" => {
            let other = match call.collective {
                Collective::AllReduce => Collective::AllGather,
                _ => Collective::AllReduce,
            };
            *call = plain(other, scale * COUNT);
        }
        // Another order has the same sum.
        "order" => call.receive_counts.swap(0, 2),
        "sent" => call.send_counts[2] += 1,
        "received" => call.receive_counts[0] += 1,
        _ => panic!("{field}"),
    }
}

fn with_buffers(comm: &Communicator, call: Call) -> CollectiveBuilder<'_> {
    let wide = 4 * (call.count + 1) as usize * (RANKS as usize + 1);
    let builder = comm
        .collective(call.collective, call.dtype, call.count)
        .op(call.op)
        .root(call.root)
        .send_counts(&call.send_counts)
        .receive_counts(&call.receive_counts);
    let make = || match std::env::var("LINERATE_TEST_MEMORY").unwrap().as_str() {
        "registered" => comm.alloc::<u8>(wide).unwrap(),
        _ => Buffer::from_vec(vec![0; wide]),
    };
    match call.collective {
        Collective::Barrier => builder,
        _ => builder.input(&make()).output(&make()),
    }
}

fn fields(collective: Collective) -> Vec<&'static str> {
    let mut fields = match collective {
        Collective::Barrier => vec![],
        of if of.has_part_lengths() => vec!["dtype", "order", "received"],
        Collective::AllToAllV => vec!["dtype", "sent", "received"],
        _ => vec!["count", "dtype"],
    };
    fields.push("collective");
    if collective.is_reducing() {
        fields.push("op");
    }
    if collective.is_rooted() {
        fields.push("root");
    }
    fields
}

fn check(
    collective: Collective,
    field: &str,
    (scale, memory): (u64, &str),
    (transport, algorithm): (&str, &str),
) -> Vec<String> {
    let environment = [
        ("LINERATE_TRANSPORT", transport.to_string()),
        ("LINERATE_ALGO", algorithm.to_string()),
        ("LINERATE_TEST_COLLECTIVE", collective.to_string()),
        ("LINERATE_TEST_FIELD", field.to_string()),
        ("LINERATE_TEST_SCALE", scale.to_string()),
        ("LINERATE_TEST_MEMORY", memory.to_string()),
        ("LINERATE_TIMEOUT", "1".to_string()),
    ];
    let outputs = Start {
        environment: &environment,
        ..Start::new("disagree", RANKS)
    }
    .spawn()
    .end();
    let mut complaints = Vec::new();
    for (rank, output) in outputs.iter().enumerate() {
        let error = result(output, "ERROR").unwrap_or_else(|| text(output));
        let is_of_counts = field == "sent" || field == "received";
        let names_both = error.contains("ranks disagree at operation")
            && (is_of_counts || error.contains("rank 1 called"))
            && error.contains("rank 1")
            && ["rank 0", "rank 2"]
                .iter()
                .any(|other| error.contains(other));
        if !names_both {
            complaints.push(format!(
                "{collective} {field} x{scale} {memory} {transport} {algorithm}, rank {rank}: {error}"
            ));
        }
    }
    complaints
}

#[test]
fn every_rank_learns_of_a_disagreement_in_every_collective() {
    let mut complaints = Vec::new();
    for collective in Collective::ALL {
        if collective == Collective::SendRecv {
            continue;
        }
        for field in fields(collective) {
            for (scale, memory) in [(1, "registered"), (1000, "registered"), (1000, "caller")] {
                let with = (scale, memory);
                complaints.extend(check(collective, field, with, ("shm", "")));
            }
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Where a message is all that ranks hear of each other, and each may have as many as it waits for.
#[test]
fn every_rank_learns_of_a_disagreement_about_the_root_over_connections() {
    let mut complaints = Vec::new();
    for collective in Collective::ALL.into_iter().filter(|c| c.is_rooted()) {
        let algorithms = linerate::collective::algorithms(collective);
        let of_messages = algorithms.iter().filter(|a| !a.needs.mapped);
        let names = of_messages.map(|a| a.name).chain([""]);
        for name in names {
            for scale in [1, 1000] {
                let with = (scale, "registered");
                complaints.extend(check(collective, "root", with, ("tcp", name)));
            }
        }
    }
    complaints.extend(check(
        Collective::AllToAllV,
        "sent",
        (1, "caller"),
        ("tcp", ""),
    ));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Each of two ranks takes the other one for the root, so that both receive and nobody sends.
pub fn crossed() {
    let comm = join().unwrap();
    let mut call = plain(Collective::Broadcast, COUNT);
    call.root = 1 - comm.rank();
    let error = with_buffers(&comm, call).run().unwrap_err();
    println!("ERROR {}", error.to_string().replace('\n', " "));
}

#[test]
fn ranks_that_take_each_other_for_the_root_find_that_out_long_before_the_timeout() {
    for transport in ["tcp", "shm"] {
        let environment = [
            ("LINERATE_TRANSPORT", transport.to_string()),
            ("LINERATE_TEST_MEMORY", "registered".to_string()),
            // Longer than the test waits for the ranks to end.
            ("LINERATE_TIMEOUT", "100".to_string()),
        ];
        let start = Start {
            environment: &environment,
            ..Start::new("crossed", 2)
        };
        for (rank, output) in start.spawn().end().iter().enumerate() {
            let error = result(output, "ERROR").unwrap_or_else(|| text(output));
            let words = ["ranks disagree at operation 0", "rank 0", "rank 1", "root"];
            let is_told = words.iter().all(|word| error.contains(word));
            assert!(is_told, "{transport}, rank {rank}: {error}");
        }
    }
}

/// Rank 1 has no registered memory for an algorithm that needs it on every rank, and is named.
pub fn plain_memory() {
    let comm = join().unwrap();
    let buffer = match comm.rank() {
        1 => Buffer::from_vec(vec![0.0f32; 1 << 18]),
        _ => comm.alloc(1 << 18).unwrap(),
    };
    let sum = comm.collective(Collective::AllReduce, DataType::F32, 1 << 18);
    let sum = sum.input(&buffer).output(&buffer).algorithm("direct");
    // A rank that calls after the news has come is told that the communicator has failed, and why.
    println!("ERROR {}", sum.run().unwrap_err().first_cause());
}

#[test]
fn a_rank_without_registered_memory_under_a_named_algorithm_is_named_to_all_with_what_to_do() {
    for (rank, output) in Start::new("plain", 3).spawn().end().iter().enumerate() {
        let error = result(output, "ERROR").unwrap_or_else(|| text(output));
        let is_told = error.contains("that of rank 1 is not: take it from Communicator::alloc");
        assert!(is_told && !error.contains("failed"), "rank {rank}: {error}");
    }
}

/// Rank 2 does not call the second operation.
pub fn absent() {
    let place = Place::open();
    let comm = join().unwrap();
    let buffer = comm.alloc::<f32>(1 << 18).unwrap();
    comm.barrier().unwrap();
    if comm.rank() == 2 {
        place.wait_for(b'e');
        return;
    }
    let error = comm.all_reduce(&buffer, ReduceOp::Sum).unwrap_err();
    println!("ERROR {}", error.to_string().replace('\n', " "));
    place.set(b'e');
}

#[test]
fn a_rank_that_never_arrives_is_named_with_what_everyone_did_last() {
    let environment = [("LINERATE_TIMEOUT", "2".to_string())];
    let job = Start {
        environment: &environment,
        ..Start::new("absent", 4)
    }
    .spawn();
    job.wait_for("the errors of the others", |places| {
        [0, 1, 3].iter().all(|&rank| places[rank] == b'e')
    });
    job.set_place(2, b'e');
    let outputs = job.end();
    for rank in [0, 1, 3] {
        let error = result(&outputs[rank], "ERROR").unwrap_or_else(|| text(&outputs[rank]));
        assert!(
            error.contains("rank 2 is missing: no answer"),
            "rank {rank}: {error}"
        );
        assert!(
            error.contains("last seen in operation 0, barrier"),
            "rank {rank}: {error}"
        );
        assert!(error.contains("ranks 0, 1 and 3: 2 operations started and 1 ended, the last one allreduce of 262144 f32"), "rank {rank}: {error}");
    }
}
