//! A rank of a job whose links are cut: it sums until it is told to end, so that what is tested
//! does not depend on how fast the machine is. `tools/rdma_vm/check_verbs.py` starts one on each of
//! two hosts.

use linerate::{Buffer, Communicator, ReduceOp};
use std::path::PathBuf;

/// Sums before the job says that it runs, and after it was told to end.
const SUMS_BEFORE: u64 = 3;
const SUMS_AFTER: u64 = 3;

/// Sums of this many bytes. Rank 0 makes the file `running` when some were right, and all ranks end
/// a few sums after there is a file `end`; both are in the folder that is named.
pub fn sum_until_told() {
    let of_test = |name: &str| std::env::var(format!("LINERATE_TEST_{name}")).unwrap();
    let folder = PathBuf::from(of_test("FOLDER"));
    let count = of_test("BYTES").parse::<usize>().unwrap() / 8;
    let comm = Communicator::from_env().unwrap();
    let buffer = comm.alloc(count).unwrap();
    let mut last = u64::MAX;
    let mut round = 0;
    while round < last {
        let is_told = comm.rank() == 0 && folder.join("end").exists();
        match sum(&comm, &buffer, count, (round, is_told)) {
            Ok(true) if last == u64::MAX => last = round + SUMS_AFTER,
            Ok(_) => {}
            Err(error) => panic!("sum {round}: {error}"),
        }
        round += 1;
        if round == SUMS_BEFORE && comm.rank() == 0 {
            std::fs::write(folder.join("running"), "").unwrap();
        }
    }
    println!("all {round} sums right");
    for (name, count) in comm.transport_counts() {
        println!("COUNT {count} {name}");
    }
}

/// One sum, every number of it looked at; the first number says whether a rank was told to end.
fn sum(
    comm: &Communicator,
    buffer: &Buffer<u64>,
    count: usize,
    (round, is_told): (u64, bool),
) -> linerate::Result<bool> {
    let (rank, ranks) = (u64::from(comm.rank()), u64::from(comm.ranks()));
    let own = |i: usize| round * 1_000_003 + i as u64 * (1 + rank);
    let mut numbers: Vec<u64> = (0..count).map(own).collect();
    numbers[0] = u64::from(is_told);
    buffer.write(0, &numbers)?;
    comm.all_reduce(buffer, ReduceOp::Sum)?;
    let of_ranks = ranks * (ranks + 1) / 2;
    let right = |i: usize| ranks * round * 1_000_003 + i as u64 * of_ranks;
    let sums = buffer.to_vec()?;
    let wrong = (1..count).filter(|&i| sums[i] != right(i)).count();
    assert_eq!(wrong, 0, "of {count} numbers of sum {round}");
    assert!(sums[0] <= 1, "the first number of sum {round}: {}", sums[0]);
    Ok(sums[0] == 1)
}
