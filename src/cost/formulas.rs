//! One formula per algorithm: the [`Work`] of a [`Shape`].

pub use super::host::{
    direct_all_reduce, direct_all_to_all, direct_parts, direct_reduce, direct_reduce_scatter,
    direct_root, line, window_all_gather, window_all_reduce, window_all_to_all, window_broadcast,
    window_gather, window_reduce, window_reduce_scatter, window_scatter, window_split, window_star,
};
use super::{Shape, Work, host, network};

/// The type of all formulas.
pub type Formula = fn(&Shape) -> Work;

/// The formulas of algorithms that send messages: within a host, and over a network.
macro_rules! of_messages {
    ($($name:ident: $on_host:path, $on_network:path;)*) => {
        $(
            #[doc = concat!("The work of `", stringify!($name), "`.")]
            pub fn $name(s: &Shape) -> Work {
                match s.mapped {
                    true => $on_host(s),
                    false => $on_network(s),
                }
            }
        )*
    };
}

of_messages! {
    recursive_doubling: host::recursive_doubling, network::recursive_doubling;
    rabenseifner: host::rabenseifner, network::rabenseifner;
    ring_all_reduce: host::ring_all_reduce, network::ring_all_reduce;
    ring_reduce_scatter: host::ring_reduce_scatter, network::ring_reduce_scatter;
    ring_parts: host::ring_parts, network::ring_parts;
    pairwise: host::pairwise, network::pairwise;
    pairwise_all_to_all: host::pairwise_all_to_all, network::pairwise;
    pairwise_reduce_scatter: host::pairwise_reduce_scatter, network::pairwise_reduce_scatter;
    bruck: host::bruck, network::bruck;
    dissemination: host::dissemination, network::dissemination;
    tree_broadcast: host::tree_broadcast, network::tree_broadcast;
    tree_reduce: host::tree_reduce, network::tree_reduce;
    tree_all_reduce: host::tree_all_reduce, network::tree_all_reduce;
    tree_parts: host::tree_parts, network::tree_parts;
    tree_scatter: host::tree_scatter, network::tree_scatter;
    linear: host::linear, network::linear;
    chain_broadcast: host::chain_broadcast, network::chain_broadcast;
    chain_reduce: host::chain_reduce, network::chain_reduce;
    hierarchical: host::hierarchical, network::hierarchical;
}
