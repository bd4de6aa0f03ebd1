//! Ranks of one host that cannot share memory, or of which one would think so: another user,
//! another namespace of processes. Real processes; they need root, and say so and pass where there
//! is none.

use crate::work::{self, counts};
use linerate::{Collective, Communicator, DataType};
use linerate_children::{Child, end, free_address, rank, text, within};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// Nobody's number, as everywhere.
const NOBODY: u32 = 65534;
const APART: &str = "pairs of this host without shared memory";

/// Sums, and what was counted meanwhile.
pub fn sums(comm: &Communicator) {
    let buffer = comm.alloc(300_000).unwrap();
    for round in 0..30 {
        work::sum(comm, &buffer, [1, 500, 300_000][round as usize % 3], round).unwrap();
    }
    // Nobody takes for mapped what only some ranks map, and all cut long calls alike.
    let expected = u64::from((1..=comm.ranks()).sum::<u32>());
    for count in [1000, 1_400_000] {
        let buffer = comm.alloc(count).unwrap();
        let own = vec![u64::from(comm.rank()) + 1; count];
        buffer.write(0, &own).unwrap();
        let sum = comm.collective(Collective::AllReduce, DataType::U64, count as u64);
        let sum = sum.algorithm("hierarchical").input(&buffer).output(&buffer);
        sum.run().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), vec![expected; count]);
    }
    comm.barrier().unwrap();
    println!("TRANSPORT {}", comm.transport());
    for (name, count) in comm.transport_counts() {
        println!("COUNT {count} {name}");
    }
}

/// Ranks that meet over loopback; `change` says what is special about each.
fn run(ranks: u32, change: impl Fn(u32, Command) -> Command) -> Vec<Output> {
    let place = format!("tcp://{}", free_address());
    let start = |index: u32| {
        let mut command = rank("sums", index, ranks);
        command
            .env("LINERATE_RENDEZVOUS", &place)
            .env("LINERATE_SECRET", "0123456789abcdef")
            .env("LINERATE_TIMEOUT", "60")
            .env("LINERATE_DEBUG", "info");
        Child::start(&mut change(index, command))
    };
    end((0..ranks).map(start).collect())
}

/// Whether this user may do that.
fn can(command: &mut Command) -> bool {
    let output = command.output();
    let is_good = output.as_ref().is_ok_and(|o| o.status.success());
    if !is_good {
        println!("skipped: {command:?}: {output:?}");
    }
    is_good
}

/// Whether nobody, too, reaches this program.
fn can_be_nobody() -> bool {
    let mut probe = Command::new(std::env::current_exe().unwrap());
    can(as_nobody(probe.arg("--list")))
}

fn as_nobody(command: &mut Command) -> &mut Command {
    command.uid(NOBODY).gid(NOBODY)
}

#[test]
fn ranks_of_two_users_do_without_shared_memory_and_the_others_have_it() {
    if !can_be_nobody() {
        return;
    }
    let outputs = run(3, |rank, mut command| {
        if rank == 1 {
            as_nobody(&mut command);
        }
        command
    });
    for (rank, output) in outputs.iter().enumerate() {
        let told = text(output);
        assert!(told.contains("TRANSPORT router"), "{told}");
        // A rank tells of the first such pair that it finds, in whatever order peers answer.
        let others: &[u32] = if rank == 1 { &[0, 2] } else { &[1] };
        let is_told = others.iter().any(|other| {
            told.contains(&format!(
                "linerate: rank {rank}: rank {other} is on this host and shares no memory with it"
            ))
        });
        assert!(is_told, "{told}");
        assert!(told.contains("all ranks are on this host"), "{told}");
    }
    // Both sides of both pairs; ranks 0 and 2 share memory.
    assert_eq!(counts(&outputs)[APART], 4);
}

#[test]
fn a_host_whose_ranks_share_memory_meets_one_whose_ranks_do_not() {
    if !can_be_nobody() {
        return;
    }
    let outputs = run(4, |rank, mut command| {
        command.env("LINERATE_HOSTID", ["one", "other"][rank as usize / 2]);
        if rank == 1 {
            as_nobody(&mut command);
        }
        command
    });
    for output in &outputs {
        assert!(output.status.success(), "{}", text(output));
    }
    assert_eq!(counts(&outputs)[APART], 2);
}

#[test]
fn ranks_in_two_namespaces_of_processes_share_memory() {
    let unshare = ["unshare", "--pid", "--fork", "--kill-child"];
    if !can(&mut within(&unshare, &Command::new("true"))) {
        return;
    }
    let outputs = run(3, |rank, command| match rank {
        1 => within(&unshare, &command),
        _ => command,
    });
    for output in &outputs {
        let told = text(output);
        assert!(output.status.success(), "{told}");
        assert!(told.contains("TRANSPORT shm"), "{told}");
    }
}
