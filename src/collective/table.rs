//! The one list of algorithms.

use super::algorithm::{Algorithm, Needs, Window};
use super::{
    Request, bruck, chain, direct, doubling, hierarchical, line, pairwise, ring, tree, window,
};
use crate::cost::formulas::{self, Formula};
use crate::error::{Error, Result};
use crate::schedule::Schedule;
use crate::types::Collective;

const MESSAGES: Needs = Needs {
    mapped: false,
    registered: false,
    payload_max: false,
    plain: false,
    window: Window::None,
};
const LINE: Needs = Needs {
    mapped: true,
    payload_max: true,
    ..MESSAGES
};
const SIGNALS: Needs = Needs {
    mapped: true,
    ..MESSAGES
};
const WINDOW: Needs = Needs {
    mapped: true,
    window: Window::One,
    ..MESSAGES
};
const WINDOW_PER_RANK: Needs = Needs {
    window: Window::PerRank,
    ..WINDOW
};
const DIRECT: Needs = Needs {
    mapped: true,
    registered: true,
    ..MESSAGES
};
const DIRECT_PLAIN: Needs = Needs {
    plain: true,
    ..DIRECT
};

/// Every algorithm of a collective. [`Collective::SendRecv`] has none: see `build_send_recv`.
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    match collective {
        Collective::AllReduce => &ALL_REDUCE,
        Collective::ReduceScatter => &REDUCE_SCATTER,
        Collective::AllGather => &ALL_GATHER,
        Collective::AllGatherV => &ALL_GATHER_V,
        Collective::Broadcast => &BROADCAST,
        Collective::Reduce => &REDUCE,
        Collective::Gather => &GATHER,
        Collective::Scatter => &SCATTER,
        Collective::AllToAll => &ALL_TO_ALL,
        Collective::AllToAllV => &ALL_TO_ALL_V,
        Collective::Barrier => &BARRIER,
        Collective::SendRecv => &[],
    }
}

/// The algorithm with this name; the error lists the names that exist.
pub fn find(collective: Collective, name: &str) -> Result<&'static Algorithm> {
    let all = algorithms(collective);
    all.iter().find(|a| a.name == name).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|a| a.name).collect();
        let names = if names.is_empty() {
            "none".into()
        } else {
            names.join(" ")
        };
        Error::invalid(format!(
            "{collective} has no algorithm '{name}': it has {names}"
        ))
    })
}

static ALL_REDUCE: [Algorithm; 9] = [
    row(
        Collective::AllReduce,
        "line",
        LINE,
        line::all_reduce,
        formulas::line,
    ),
    row(
        Collective::AllReduce,
        "window",
        WINDOW,
        window::all_reduce,
        formulas::window_all_reduce,
    ),
    row(
        Collective::AllReduce,
        "window-split",
        WINDOW,
        window::all_reduce_split,
        formulas::window_split,
    ),
    row(
        Collective::AllReduce,
        "direct",
        DIRECT_PLAIN,
        direct::all_reduce,
        formulas::direct_all_reduce,
    ),
    row(
        Collective::AllReduce,
        "recursive-doubling",
        MESSAGES,
        doubling::all_reduce_doubling,
        formulas::recursive_doubling,
    ),
    row(
        Collective::AllReduce,
        "rabenseifner",
        MESSAGES,
        doubling::all_reduce_rabenseifner,
        formulas::rabenseifner,
    ),
    row(
        Collective::AllReduce,
        "ring",
        MESSAGES,
        ring::all_reduce,
        formulas::ring_all_reduce,
    ),
    row(
        Collective::AllReduce,
        "tree",
        MESSAGES,
        tree::all_reduce,
        formulas::tree_all_reduce,
    ),
    row(
        Collective::AllReduce,
        "hierarchical",
        MESSAGES,
        hierarchical::all_reduce,
        formulas::hierarchical,
    ),
];

static REDUCE_SCATTER: [Algorithm; 5] = [
    row(
        Collective::ReduceScatter,
        "line",
        LINE,
        line::reduce_scatter,
        formulas::line,
    ),
    row(
        Collective::ReduceScatter,
        "window",
        WINDOW_PER_RANK,
        window::reduce_scatter,
        formulas::window_reduce_scatter,
    ),
    row(
        Collective::ReduceScatter,
        "direct",
        DIRECT_PLAIN,
        direct::reduce_scatter,
        formulas::direct_reduce_scatter,
    ),
    row(
        Collective::ReduceScatter,
        "pairwise",
        MESSAGES,
        pairwise::reduce_scatter,
        formulas::pairwise_reduce_scatter,
    ),
    row(
        Collective::ReduceScatter,
        "ring",
        MESSAGES,
        ring::reduce_scatter,
        formulas::ring_reduce_scatter,
    ),
];

static ALL_GATHER: [Algorithm; 6] = [
    row(
        Collective::AllGather,
        "line",
        LINE,
        line::all_gather,
        formulas::line,
    ),
    row(
        Collective::AllGather,
        "window",
        WINDOW,
        window::all_gather,
        formulas::window_all_gather,
    ),
    row(
        Collective::AllGather,
        "direct",
        DIRECT,
        direct::all_gather,
        formulas::direct_parts,
    ),
    row(
        Collective::AllGather,
        "bruck",
        MESSAGES,
        bruck::all_gather,
        formulas::bruck,
    ),
    row(
        Collective::AllGather,
        "ring",
        MESSAGES,
        ring::all_gather,
        formulas::ring_parts,
    ),
    row(
        Collective::AllGather,
        "star",
        WINDOW_PER_RANK,
        window::all_gather_star,
        formulas::window_star,
    ),
];

static ALL_GATHER_V: [Algorithm; 2] = [
    row(
        Collective::AllGatherV,
        "direct",
        DIRECT,
        direct::all_gather_v,
        formulas::direct_parts,
    ),
    row(
        Collective::AllGatherV,
        "ring",
        MESSAGES,
        ring::all_gather_v,
        formulas::ring_parts,
    ),
];

static BROADCAST: [Algorithm; 5] = [
    row(
        Collective::Broadcast,
        "line",
        LINE,
        line::broadcast,
        formulas::line,
    ),
    row(
        Collective::Broadcast,
        "window",
        WINDOW,
        window::broadcast,
        formulas::window_broadcast,
    ),
    row(
        Collective::Broadcast,
        "direct",
        DIRECT,
        direct::broadcast,
        formulas::direct_root,
    ),
    row(
        Collective::Broadcast,
        "tree",
        MESSAGES,
        tree::broadcast,
        formulas::tree_broadcast,
    ),
    row(
        Collective::Broadcast,
        "chain",
        MESSAGES,
        chain::broadcast,
        formulas::chain_broadcast,
    ),
];

static REDUCE: [Algorithm; 5] = [
    row(
        Collective::Reduce,
        "line",
        LINE,
        line::reduce,
        formulas::line,
    ),
    row(
        Collective::Reduce,
        "window",
        WINDOW,
        window::reduce,
        formulas::window_reduce,
    ),
    row(
        Collective::Reduce,
        "direct",
        DIRECT_PLAIN,
        direct::reduce,
        formulas::direct_reduce,
    ),
    row(
        Collective::Reduce,
        "tree",
        MESSAGES,
        tree::reduce,
        formulas::tree_reduce,
    ),
    row(
        Collective::Reduce,
        "chain",
        MESSAGES,
        chain::reduce,
        formulas::chain_reduce,
    ),
];

static GATHER: [Algorithm; 5] = [
    row(
        Collective::Gather,
        "line",
        LINE,
        line::gather,
        formulas::line,
    ),
    row(
        Collective::Gather,
        "window",
        WINDOW,
        window::gather,
        formulas::window_gather,
    ),
    row(
        Collective::Gather,
        "direct",
        DIRECT,
        direct::gather,
        formulas::direct_root,
    ),
    row(
        Collective::Gather,
        "tree",
        MESSAGES,
        tree::gather,
        formulas::tree_parts,
    ),
    row(
        Collective::Gather,
        "linear",
        MESSAGES,
        pairwise::gather,
        formulas::linear,
    ),
];

static SCATTER: [Algorithm; 5] = [
    row(
        Collective::Scatter,
        "line",
        LINE,
        line::scatter,
        formulas::line,
    ),
    row(
        Collective::Scatter,
        "window",
        WINDOW_PER_RANK,
        window::scatter,
        formulas::window_scatter,
    ),
    row(
        Collective::Scatter,
        "direct",
        DIRECT,
        direct::scatter,
        formulas::direct_root,
    ),
    row(
        Collective::Scatter,
        "tree",
        MESSAGES,
        tree::scatter,
        formulas::tree_parts,
    ),
    row(
        Collective::Scatter,
        "linear",
        MESSAGES,
        pairwise::scatter,
        formulas::linear,
    ),
];

static ALL_TO_ALL: [Algorithm; 4] = [
    row(
        Collective::AllToAll,
        "line",
        LINE,
        line::all_to_all,
        formulas::line,
    ),
    row(
        Collective::AllToAll,
        "window",
        WINDOW_PER_RANK,
        window::all_to_all,
        formulas::window_all_to_all,
    ),
    row(
        Collective::AllToAll,
        "direct",
        DIRECT,
        direct::all_to_all,
        formulas::direct_all_to_all,
    ),
    row(
        Collective::AllToAll,
        "pairwise",
        MESSAGES,
        pairwise::all_to_all,
        formulas::pairwise_all_to_all,
    ),
];

static ALL_TO_ALL_V: [Algorithm; 1] = [row(
    Collective::AllToAllV,
    "pairwise",
    MESSAGES,
    pairwise::all_to_all_v,
    formulas::pairwise,
)];

static BARRIER: [Algorithm; 2] = [
    row(
        Collective::Barrier,
        "line",
        SIGNALS,
        line::barrier,
        formulas::line,
    ),
    row(
        Collective::Barrier,
        "dissemination",
        MESSAGES,
        bruck::barrier,
        formulas::dissemination,
    ),
];

const fn row(
    collective: Collective,
    name: &'static str,
    needs: Needs,
    build: fn(&Request) -> Schedule,
    work: Formula,
) -> Algorithm {
    Algorithm {
        name,
        collective,
        needs,
        build,
        work,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for collective in Collective::ALL {
            let all = algorithms(collective);
            for algorithm in all {
                assert_eq!(algorithm.collective, collective);
                let same = all.iter().filter(|a| a.name == algorithm.name).count();
                assert_eq!(same, 1, "{collective} {}", algorithm.name);
                assert_eq!(
                    find(collective, algorithm.name).unwrap().name,
                    algorithm.name
                );
            }
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = find(Collective::Barrier, "carrier-pigeon").unwrap_err();
        assert_eq!(
            error.to_string(),
            "barrier has no algorithm 'carrier-pigeon': it has line dissemination"
        );
    }

    #[test]
    fn every_collective_has_an_algorithm_for_any_transport() {
        for collective in Collective::ALL {
            let is_any = |a: &Algorithm| a.needs == MESSAGES;
            assert!(
                collective == Collective::SendRecv || algorithms(collective).iter().any(is_any)
            );
        }
    }
}
