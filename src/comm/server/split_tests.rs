//! Parameter servers with two servers of each shard whose network falls into two parts: each part
//! has one order, or ends with errors.

use super::sim_ranks::{PUSHES, Rank};
use super::*;
use crate::comm::Simulation;
use crate::config::Config;
use crate::prng::Prng;
use crate::staleness::{Entry, Staleness};
use crate::time::Time;
use crate::transport::sim::SimOptions;

/// Runs a job with two servers of each shard whose network falls into two parts at some time. True:
/// somebody saw it.
fn split(seed: u64) -> std::result::Result<bool, String> {
    let mut prng = Prng::new(seed);
    let (servers, ranks) = (2 + 2 * prng.below(2) as u32, 5 + prng.below(2) as u32);
    let options = ServerOptions {
        servers: (0..servers).collect(),
        replicas: 1,
        staleness: [Staleness::Bsp, Staleness::Ssp(1), Staleness::Asp][prng.below(3) as usize],
        rate: 1.0,
        ..ServerOptions::default()
    };
    let tensors = [TensorSpec {
        name: "all".into(),
        count: 40,
        dtype: DataType::F32,
    }];
    let sides = prng.below(1 << ranks);
    let (left, right): (Vec<u32>, Vec<u32>) = (0..ranks).partition(|rank| sides & (1 << rank) != 0);
    let magnitude = 14 + prng.below(8);
    let end = Time(prng.below(1 << magnitude));
    let mut simulation = Simulation::new(SimOptions::new(ranks, seed), Config::default()).unwrap();
    let mut all = Rank::all(&simulation, &tensors, &options);
    let world = simulation.world().clone();
    world.wake_at(0, end);
    let (mut is_split, mut errors) = (false, vec![None; ranks as usize]);
    let ran = simulation.run(|_| {
        let now = world.now();
        let has_begun = || all.iter().any(|rank| rank.pushes > 0);
        if now >= end && !is_split && has_begun() {
            is_split = true;
            world.partition(&left, &right);
        }
        for (rank, error) in all.iter_mut().zip(&mut errors) {
            if let Err(text) = rank.go_on(now, 3000, &mut prng)
                && !rank.is_over
            {
                *error = Some(text);
                rank.is_over = true;
                rank.shared.comm.abort("this rank has failed");
            }
            if let Some(busy) = rank.busy {
                world.wake_at(rank.shared.comm.rank(), busy);
            }
        }
        all.iter().all(|rank| rank.is_over)
    });
    let case =
        format!("seed {seed}, {left:?} and {right:?} after {end:?}, {errors:?}, {options:?}");
    ran.map_err(|error| format!("{case}: {error}"))?;
    for side in [left, right] {
        let of_side = || side.iter().map(|&rank| &all[rank as usize]);
        let logs: Vec<&[Entry]> = of_side()
            .filter_map(|rank| Some(&rank.shard.as_ref()?.log[..]))
            .collect();
        let longest = logs.iter().max_by_key(|log| log.len());
        let Some(longest) = longest else {
            continue;
        };
        if !logs.iter().all(|log| longest.starts_with(log)) {
            return Err(format!("{case}: orders of one side differ: {logs:?}"));
        }
        for rank in of_side() {
            let is_well = errors[rank.shared.comm.rank() as usize].is_none();
            let Some(worker) = rank.worker.as_ref().filter(|_| is_well) else {
                continue;
            };
            let own = |entry: &&Entry| matches!(entry, Entry::Push { worker: one, .. } if *one as usize == worker.number);
            if longest.iter().filter(own).count() as u64 != PUSHES {
                return Err(format!("{case}: pushes of worker {}", worker.number));
            }
        }
    }
    Ok(errors.iter().any(Option::is_some) || all.iter().any(|rank| rank.has_lost()))
}

#[test]
fn parts_of_a_network_that_falls_apart_have_one_order_each_or_end_with_errors() {
    let seeds = std::env::var("LINERATE_TEST_SEEDS").map_or(200, |seeds| seeds.parse().unwrap());
    let seen = (0..seeds).filter(|&seed| split(seed).unwrap()).count();
    assert!(seen > seeds as usize / 4, "{seen} of {seeds} noticed it");
}
