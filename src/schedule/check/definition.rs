//! What each collective must leave in every output.

use super::fault::{CheckError, Fault};
use super::run::Trace;
use super::value::Value;
use super::world::World;
use crate::schedule::BufferId;
use crate::types::{Collective, Rank};

/// Which ranks' input element an output element must be.
struct Expected {
    contributors: u64,
    element: u64,
}

/// The outputs of all ranks; of a group of transfers, their buffers one after another.
pub(super) fn outputs(world: &World<'_>, trace: &Trace) -> Vec<Vec<Value>> {
    (0..world.ranks())
        .map(|rank| {
            let transfers = world.caller_storages(rank);
            let others = transfers.flat_map(|(storage, _)| trace.memory[storage].iter().copied());
            contents(world, trace, rank, BufferId::OUTPUT)
                .iter()
                .copied()
                .chain(others)
                .collect()
        })
        .collect()
}

fn contents<'t>(world: &World<'_>, trace: &'t Trace, rank: Rank, buffer: BufferId) -> &'t [Value] {
    let (input, output) = world.lens(rank);
    let len = if buffer == BufferId::INPUT {
        input
    } else {
        output
    };
    let (storage, offset) = world.locate(rank, buffer);
    &trace.memory[storage][offset as usize..(offset + len) as usize]
}

/// Checks every output, and that inputs which are not in place are intact.
pub(super) fn check_results(world: &World<'_>, trace: &Trace) -> Result<(), CheckError> {
    let collective = world.spec.collective;
    for rank in 0..world.ranks() {
        let output = contents(world, trace, rank, BufferId::OUTPUT);
        for (index, value) in output.iter().enumerate() {
            if let Some(expected) = expected(world, rank, index as u64) {
                let checked = check_value(world, value, &expected);
                checked.map_err(|(fault, text)| {
                    CheckError::new(fault, rank, None, text).at(index as u64)
                })?;
            }
        }
        if !world.is_aliased(rank) {
            for (index, value) in contents(world, trace, rank, BufferId::INPUT)
                .iter()
                .enumerate()
            {
                if *value != Value::input(rank, index as u64) {
                    let text = format!("the input is now {value}");
                    let error = CheckError::new(Fault::InputChanged, rank, None, text);
                    return Err(error.at(index as u64));
                }
            }
        }
    }
    if collective == Collective::AllReduce {
        check_trees(world, trace)?;
    }
    Ok(())
}

fn check_value(world: &World<'_>, value: &Value, want: &Expected) -> Result<(), (Fault, String)> {
    let is_reducing = world.spec.collective.is_reducing();
    let is_right =
        value.contributors == want.contributors && u64::from(value.element) == want.element;
    if !is_right {
        let ranks: Vec<_> = (0..64)
            .filter(|r| want.contributors >> r & 1 == 1)
            .collect();
        let text = format!(
            "is {value}, not input element {} of ranks {ranks:?}",
            want.element
        );
        return Err((Fault::Result, text));
    }
    if value.is_premultiplied != world.spec.premultiply {
        return Err((Fault::Premultiplied, format!("is {value}")));
    }
    if value.is_finished != is_reducing {
        return Err((Fault::Finished, format!("is {value}")));
    }
    Ok(())
}

/// All ranks must get the same bits.
fn check_trees(world: &World<'_>, trace: &Trace) -> Result<(), CheckError> {
    let first = contents(world, trace, 0, BufferId::OUTPUT);
    for rank in 1..world.ranks() {
        let other = contents(world, trace, rank, BufferId::OUTPUT);
        for (index, (a, b)) in first.iter().zip(other).enumerate() {
            if a.tree != b.tree {
                let text = "combined in another order than on rank 0, so its bits may differ";
                let error = CheckError::new(Fault::Tree, rank, None, text);
                return Err(error.at(index as u64));
            }
        }
    }
    Ok(())
}

/// `None`: the definition leaves the element open.
fn expected(world: &World<'_>, rank: Rank, index: u64) -> Option<Expected> {
    let spec = world.spec;
    let ranks = world.ranks();
    let count = spec.count.max(1);
    let all = u64::MAX >> (64 - ranks);
    let offset = || world.initial_slots(rank)[2 * rank as usize];
    let (contributors, element) = match spec.collective {
        Collective::AllReduce | Collective::Reduce => (all, index),
        Collective::ReduceScatter => (all, u64::from(rank) * count + index),
        Collective::AllGather | Collective::Gather => (1 << (index / count), index % count),
        Collective::Broadcast => (1 << spec.root, index),
        Collective::Scatter => (1 << spec.root, u64::from(rank) * count + index),
        Collective::AllToAll => (
            1 << (index / count),
            u64::from(rank) * count + index % count,
        ),
        Collective::ReduceScatterV => (all, offset() + index),
        Collective::ScatterV => (1 << spec.root, offset() + index),
        Collective::AllGatherV | Collective::GatherV => {
            let (peer, within) = part_of(world.initial_slots(rank), ranks, index)?;
            (1 << peer, within)
        }
        Collective::AllToAllV => {
            let receive = &world.initial_slots(rank)[2 * ranks as usize..];
            let (peer, within) = part_of(receive, ranks, index)?;
            (
                1 << peer,
                world.initial_slots(peer)[2 * rank as usize] + within,
            )
        }
        Collective::Barrier | Collective::SendRecv => return None,
    };
    Some(Expected {
        contributors,
        element,
    })
}

/// The peer in whose part (offset and length in `slots[2 * peer..]`) an element lies, and where.
fn part_of(slots: &[u64], ranks: u32, index: u64) -> Option<(Rank, u64)> {
    (0..ranks).find_map(|peer| {
        let (offset, length) = (slots[2 * peer as usize], slots[2 * peer as usize + 1]);
        (index >= offset && index < offset + length).then(|| (peer, index - offset))
    })
}
