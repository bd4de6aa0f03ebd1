//! [`choose`]: the cheapest algorithm that can run.

use super::table::algorithms;
use super::{Algorithm, Request, Window};
use crate::cost::{Model, Shape};
use crate::limits::LINE_PAYLOAD_BYTES;
use crate::pattern::hosts::Hosts;

/// What all ranks have; every rank must give the same, because all must choose the same algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Every rank maps every rank's windows.
    pub mapped: bool,
    /// The callers' buffers are registered, and mapped by every rank.
    pub registered: bool,
    /// Bytes of a window slot.
    pub window_bytes: u64,
}

/// The cheapest algorithm for `bytes` bytes of `count` elements. Where a window slot is too small the engine
/// cuts calls whose buffers hold one vector; others need all of it at once. Never looks at `in_place`, in
/// which ranks may differ. [`crate::types::Collective::SendRecv`] has no algorithms and no choice: it panics.
pub fn choose(
    request: &Request,
    bytes: u64,
    model: &Model,
    available: &Available,
) -> &'static Algorithm {
    let hosts = Hosts::new(&request.hosts).hosts() as u32;
    let candidates = algorithms(request.collective)
        .iter()
        .filter_map(|algorithm| {
            let segments = segments(algorithm, request, bytes, available)?;
            let shape = Shape {
                ranks: request.ranks,
                hosts,
                bytes: bytes as f64,
                segments: segments as f64,
            };
            Some((algorithm, (algorithm.cost)(model, &shape)))
        });
    let cheapest = candidates.min_by(|a, b| a.1.total_cmp(&b.1));
    cheapest
        .expect("each collective has an algorithm that needs nothing")
        .0
}

/// Into how many calls the algorithm cuts the call; `None`: it cannot run.
fn segments(
    algorithm: &Algorithm,
    request: &Request,
    bytes: u64,
    available: &Available,
) -> Option<u64> {
    let needs = &algorithm.needs;
    let can_run = (available.mapped || !needs.mapped)
        && (available.registered || !needs.registered)
        && (bytes <= LINE_PAYLOAD_BYTES as u64 || !needs.payload_max)
        && (!request.premultiply || !needs.plain);
    if !can_run || needs.window == Window::None {
        return can_run.then_some(1);
    }
    let window_bytes = algorithm.window_elements(request.ranks, bytes);
    let segments = window_bytes.div_ceil(available.window_bytes.max(1)).max(1);
    (available.window_bytes > 0 && (segments == 1 || algorithm.is_divisible())).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Collective;

    const HOST: Available = Available {
        mapped: true,
        registered: true,
        window_bytes: 256 << 10,
    };
    const FABRIC: Available = Available {
        mapped: false,
        registered: false,
        window_bytes: 0,
    };

    fn request(collective: Collective, ranks: u32, per_host: u32) -> Request {
        Request {
            collective,
            rank: 0,
            ranks,
            root: 0,
            in_place: false,
            premultiply: false,
            hosts: (0..ranks).map(|r| r / per_host).collect(),
        }
    }

    fn on_host(bytes: u64, registered: bool) -> &'static str {
        let available = Available { registered, ..HOST };
        let request = request(Collective::AllReduce, 4, 4);
        choose(&request, bytes, &Model::SHARED_MEMORY, &available).name
    }

    fn on_fabric(collective: Collective, bytes: u64, ranks: u32, per_host: u32) -> &'static str {
        let request = request(collective, ranks, per_host);
        choose(&request, bytes, &Model::FABRIC, &FABRIC).name
    }

    #[test]
    fn on_one_host_lines_then_windows_then_direct() {
        assert_eq!(on_host(8, true), "line");
        assert_eq!(on_host(48, true), "line");
        assert_eq!(on_host(512, true), "window");
        assert_eq!(on_host(1 << 20, true), "direct");
        assert_eq!(on_host(64 << 10, false), "window-split");
        assert_eq!(on_host(64 << 20, false), "window-split");
    }

    #[test]
    fn on_a_fabric_doubling_for_small_and_rings_for_large() {
        let all_reduce = Collective::AllReduce;
        assert_eq!(on_fabric(all_reduce, 8, 8, 1), "recursive-doubling");
        let large = on_fabric(all_reduce, 64 << 20, 8, 1);
        assert!(["rabenseifner", "ring"].contains(&large), "{large}");
        assert_eq!(on_fabric(all_reduce, 64 << 20, 7, 1), "ring");
        assert_eq!(on_fabric(Collective::Broadcast, 8, 16, 1), "tree");
        assert_eq!(on_fabric(Collective::Broadcast, 64 << 20, 16, 1), "chain");
        assert_eq!(on_fabric(Collective::AllGather, 8, 16, 1), "bruck");
    }

    #[test]
    fn large_parts_do_not_go_through_windows() {
        let request = request(Collective::AllToAll, 4, 4);
        let available = Available {
            registered: false,
            ..HOST
        };
        let name = |bytes| choose(&request, bytes, &Model::SHARED_MEMORY, &available).name;
        assert_eq!(name(1 << 10), "window");
        assert_eq!(name(1 << 20), "pairwise");
    }

    #[test]
    fn a_premultiplied_reduce_never_reads_inputs_where_they_lie() {
        let request = Request {
            premultiply: true,
            ..request(Collective::Reduce, 4, 4)
        };
        let chosen = choose(&request, 1 << 20, &Model::SHARED_MEMORY, &HOST);
        assert!(!chosen.needs.plain, "{}", chosen.name);
    }

    #[test]
    fn everything_has_a_choice_for_any_number_of_ranks() {
        for collective in Collective::ALL
            .into_iter()
            .filter(|&c| c != Collective::SendRecv)
        {
            for ranks in [1, 2, 3, 64] {
                for bytes in [0, 1, 1 << 30] {
                    let request = request(collective, ranks, 2);
                    for available in [HOST, FABRIC] {
                        let chosen = choose(&request, bytes, &Model::FABRIC, &available);
                        assert_eq!(chosen.collective, collective);
                    }
                }
            }
        }
    }
}
