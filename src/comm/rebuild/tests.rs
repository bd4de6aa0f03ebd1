//! Rebuilds whose leader dies at the worst moments. A test plays the leader.

use super::leader::{Leader, Stage};
use super::*;
use crate::bootstrap::Message;
use crate::config::Config;
use crate::types::ReduceOp;
use std::time::Duration;

/// Leads a rebuild of three ranks until all are connected, tells only the ranks `told` to commit,
/// and then ends as if it had died.
fn lead_and_die(comm: Communicator, told: &[Rank]) {
    comm.abort("to rebuild it");
    let mut survivor = Survivor::new(&comm, Time::MAX).unwrap();
    let place = survivor.reunion.open().unwrap();
    let mut leader = Leader::new(place, 3);
    loop {
        assert!(!survivor.look());
        leader.greet(survivor.clock()).unwrap();
        survivor.hear_members(&mut leader).unwrap();
        let Stage::Connecting(connected) = &mut leader.stage else {
            assert!(!survivor.go_on(&mut leader).unwrap());
            continue;
        };
        connected[0] |= survivor.go_on_connecting().unwrap();
        if connected.iter().all(|&is_connected| is_connected) {
            break;
        }
    }
    for &rank in told {
        let conversation = leader.came[rank as usize].as_mut().unwrap();
        conversation.say(&Message::Commit(survivor.round));
    }
}

fn sum(comm: &Communicator) -> Result<u64> {
    let mut sum = [1u64];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

/// How many ranks the communicators have that ranks 1 and 2 get from a rebuild, if its leader dies
/// after it has told the ranks `told` to commit.
fn ranks_after(told: &'static [Rank]) -> [u32; 2] {
    let job = format!("in-doubt-{}-{told:?}", std::process::id());
    let config = Config {
        timeout: Duration::from_secs(20),
        ..Config::default()
    };
    let run = |rank: Rank| -> u32 {
        let comm = Communicator::join(rank, 3, &job, config.clone()).unwrap();
        if rank == 0 {
            lead_and_die(comm, told);
            return 0;
        }
        let mut comm = comm.rebuild().unwrap();
        let ranks = comm.ranks();
        if ranks == 3 {
            // One of its members is gone, so its first use fails.
            assert!(sum(&comm).is_err());
            comm = comm.rebuild().unwrap();
        }
        assert_eq!((comm.rank(), comm.ranks()), (rank - 1, 2));
        assert_eq!(sum(&comm).unwrap(), 2);
        comm.barrier().unwrap();
        ranks
    };
    let run = &run;
    std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|rank| scope.spawn(move || run(rank)));
        let [_, one, two] = threads.map(|thread| thread.join().unwrap());
        [one, two]
    })
}

#[test]
fn if_the_leader_dies_before_it_commits_nobody_has_and_another_leads() {
    assert_eq!(ranks_after(&[]), [2, 2]);
}

#[test]
fn if_the_leader_dies_after_it_has_told_one_all_others_learn_of_it() {
    for _ in 0..5 {
        assert_eq!(ranks_after(&[1]), [3, 3]);
        assert_eq!(ranks_after(&[2]), [3, 3]);
    }
}
