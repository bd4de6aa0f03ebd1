//! The one list of algorithms.

use super::algorithm::{Algorithm, Needs, Window};
use super::{bruck, chain, direct, doubling, hierarchical, line, pairwise, ring, tree, window};
use crate::cost::formulas::*;
use crate::error::{Error, Result};
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

/// The rows of a collective, one for each algorithm: its name, what it needs, its builder, and the
/// formula of its work.
macro_rules! rows_of {
    ($asked:expr, $($collective:ident {
        $($name:literal $needs:ident $build:path, $work:path;)*
    })*) => {
        match $asked {
            $(Collective::$collective => {
                // A static has one address, and algorithms are compared by their addresses.
                static ROWS: &[Algorithm] = &[$(Algorithm {
                    name: $name,
                    collective: Collective::$collective,
                    needs: $needs,
                    build: $build,
                    work: $work,
                }),*];
                ROWS
            },)*
        }
    };
}

/// Every algorithm of a collective. [`Collective::SendRecv`] has none: see `build_send_recv`.
pub fn algorithms(collective: Collective) -> &'static [Algorithm] {
    rows_of! { collective,
        AllReduce {
            "line" LINE line::all_reduce, line;
            "window" WINDOW window::all_reduce, window_all_reduce;
            "window-split" WINDOW window::all_reduce_split, window_split;
            "direct" DIRECT_PLAIN direct::all_reduce, direct_all_reduce;
            "recursive-doubling" MESSAGES doubling::all_reduce_doubling, recursive_doubling;
            "rabenseifner" MESSAGES doubling::all_reduce_rabenseifner, rabenseifner;
            "ring" MESSAGES ring::all_reduce, ring_all_reduce;
            "tree" MESSAGES tree::all_reduce, tree_all_reduce;
            "hierarchical" MESSAGES hierarchical::all_reduce, hierarchical;
        }
        ReduceScatter {
            "line" LINE line::reduce_scatter, line;
            "window" WINDOW_PER_RANK window::reduce_scatter, window_reduce_scatter;
            "direct" DIRECT_PLAIN direct::reduce_scatter, direct_reduce_scatter;
            "pairwise" MESSAGES pairwise::reduce_scatter, pairwise_reduce_scatter;
            "ring" MESSAGES ring::reduce_scatter, ring_reduce_scatter;
        }
        AllGather {
            "line" LINE line::all_gather, line;
            "window" WINDOW window::all_gather, window_all_gather;
            "direct" DIRECT direct::all_gather, direct_parts;
            "bruck" MESSAGES bruck::all_gather, bruck;
            "ring" MESSAGES ring::all_gather, ring_parts;
            "star" WINDOW_PER_RANK window::all_gather_star, window_star;
        }
        AllGatherV {
            "direct" DIRECT direct::all_gather_v, direct_parts;
            "ring" MESSAGES ring::all_gather_v, ring_parts;
        }
        Broadcast {
            "line" LINE line::broadcast, line;
            "window" WINDOW window::broadcast, window_broadcast;
            "direct" DIRECT direct::broadcast, direct_root;
            "tree" MESSAGES tree::broadcast, tree_broadcast;
            "chain" MESSAGES chain::broadcast, chain_broadcast;
        }
        Reduce {
            "line" LINE line::reduce, line;
            "window" WINDOW window::reduce, window_reduce;
            "direct" DIRECT_PLAIN direct::reduce, direct_reduce;
            "tree" MESSAGES tree::reduce, tree_reduce;
            "chain" MESSAGES chain::reduce, chain_reduce;
        }
        Gather {
            "line" LINE line::gather, line;
            "window" WINDOW window::gather, window_gather;
            "direct" DIRECT direct::gather, direct_root;
            "tree" MESSAGES tree::gather, tree_parts;
            "linear" MESSAGES pairwise::gather, linear;
        }
        Scatter {
            "line" LINE line::scatter, line;
            "window" WINDOW_PER_RANK window::scatter, window_scatter;
            "direct" DIRECT direct::scatter, direct_root;
            "tree" MESSAGES tree::scatter, tree_scatter;
            "linear" MESSAGES pairwise::scatter, linear;
        }
        AllToAll {
            "line" LINE line::all_to_all, line;
            "window" WINDOW_PER_RANK window::all_to_all, window_all_to_all;
            "direct" DIRECT direct::all_to_all, direct_all_to_all;
            "pairwise" MESSAGES pairwise::all_to_all, pairwise_all_to_all;
        }
        AllToAllV {
            "pairwise" MESSAGES pairwise::all_to_all_v, pairwise;
        }
        Barrier {
            "line" SIGNALS line::barrier, line;
            "dissemination" MESSAGES bruck::barrier, dissemination;
        }
        SendRecv {}
        GatherV {
            "direct" DIRECT direct::gather_v, direct_root;
            "linear" MESSAGES pairwise::gather_v, linear;
        }
        ScatterV {
            "direct" DIRECT direct::scatter_v, direct_root;
            "linear" MESSAGES pairwise::scatter_v, linear;
        }
        ReduceScatterV {
            "direct" DIRECT_PLAIN direct::reduce_scatter_v, direct_reduce_scatter;
            "pairwise" MESSAGES pairwise::reduce_scatter_v, pairwise_reduce_scatter;
        }
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
