//! [`choose`]: which algorithm a dense collective uses. It is the one that was measured to be the
//! fastest, or else the cheapest by the cost model.

use super::table::algorithms;
use super::{Algorithm, Request, Window};
use crate::cost::{Caches, Finding, Model, Models, Shape, Work};
use crate::error::Result;
use crate::limits::{CHUNK_BYTES_DEFAULT, LINE_PAYLOAD_BYTES, WINDOW_BYTES_DEFAULT};
use crate::pattern::hosts::Hosts;
use crate::types::Collective;

/// What all ranks have. Every rank must give equal values, because all must choose one algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Available {
    /// Every rank maps every rank's windows.
    pub mapped: bool,
    /// The callers' buffers may be registered, and mapped by every rank; no rank knows before the
    /// call whether those of all others are. False: they are not.
    pub registered: bool,
    /// Bytes of a window slot.
    pub window_bytes: u64,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Cores that the ranks of a host share.
    pub cores: u32,
    /// Sizes of caches.
    pub caches: Caches,
}

/// An algorithm that can run, and its price.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Which.
    pub algorithm: &'static Algorithm,
    /// Into how many calls the engine cuts the call, because a window slot holds no more.
    pub segments: u64,
    /// What it does.
    pub work: Work,
    /// What that costs, by the model.
    pub predicted_ns: f64,
}

/// What [`choose`] gives.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// Which.
    pub algorithm: &'static Algorithm,
    /// Whether measured times decided, and not prices.
    pub is_found: bool,
}

/// The algorithm for a call whose `count` elements are `bytes` bytes: the one that was found to be
/// the fastest at the size nearest to this, or else the cheapest. `findings` are those for this
/// number of ranks. It never looks at `in_place`, in which ranks may differ. It panics for
/// [`crate::types::Collective::SendRecv`], which has no algorithms.
///
/// Where `available.registered`, the memory of a call may turn out not to be registered on some
/// rank. A call by an algorithm that needs it is then redirected to what is chosen for such memory,
/// and the next calls like it go there at once (`engine/staged.rs`). So this risk has no price
/// here.
pub fn choose(
    request: &Request,
    bytes: u64,
    (model, findings): (&Model, &[Finding]),
    available: &Available,
) -> Choice {
    let candidates = candidates(request, bytes, model, available, available.registered);
    let found = found(&candidates, request, bytes, findings, available);
    Choice {
        algorithm: found.unwrap_or_else(|| cheapest(&candidates)).algorithm,
        is_found: found.is_some(),
    }
}

fn found<'a>(
    candidates: &'a [Candidate],
    request: &Request,
    bytes: u64,
    findings: &[Finding],
    available: &Available,
) -> Option<&'a Candidate> {
    let nearest = findings
        .iter()
        .filter(|f| (f.collective, f.registered) == (request.collective, available.registered))
        .filter_map(|finding| Some((finding.distance(bytes)?, finding)))
        .min_by(|(a, _), (b, _)| a.total_cmp(b));
    let (_, finding) = nearest?;
    candidates
        .iter()
        .find(|c| c.algorithm.name == finding.algorithm)
}

/// Every algorithm that can run, in the order of the table, if the callers' buffers are
/// `registered` on all ranks or on none. Where a window slot is too small the engine cuts the call,
/// which is not worth it where registered buffers hold a part per rank (except in an all-to-all).
pub fn candidates(
    request: &Request,
    bytes: u64,
    model: &Model,
    available: &Available,
    registered: bool,
) -> Vec<Candidate> {
    let all = algorithms(request.collective).iter();
    all.filter_map(|algorithm| {
        let segments = segments(algorithm, request, bytes, available, registered)?;
        let shape = Shape {
            bytes: bytes as f64,
            segments: segments as f64,
            registered,
            ..shape(request, model, available)
        };
        let mut work = (algorithm.work)(&shape);
        if !algorithm.needs.mapped && available.mapped && request.collective.is_rooted() {
            // The roll call makes every rank wait until all have called, also where no message
            // does.
            work = work.meet(&shape, 1.0);
        }
        Some(Candidate {
            algorithm,
            segments,
            work,
            predicted_ns: model.predict(&work),
        })
    })
    .collect()
}

/// Every algorithm of which ranks that only send messages can run the request, as [`candidates`]:
/// nobody maps memory, and caches hold everything.
pub fn candidates_by_messages(
    request: &Request,
    bytes: u64,
    model: &Model,
    chunk_bytes: u64,
) -> Vec<Candidate> {
    let available = Available {
        mapped: false,
        registered: false,
        window_bytes: 0,
        chunk_bytes,
        cores: request.ranks,
        caches: Caches {
            core_bytes: f64::INFINITY,
            host_bytes: f64::INFINITY,
        },
    };
    candidates(request, bytes, model, &available, false)
}

/// What the built-in prices predict for every algorithm that can run a collective of `bytes` bytes
/// per rank, cheapest first. Ranks of one host map each other's memory, and share `cores` cores;
/// ranks of several hosts send messages over a fabric. The callers' buffers are `registered` on all
/// ranks or on none. A communicator knows its own host better:
/// [`CollectiveBuilder::explain`](crate::CollectiveBuilder::explain).
///
/// ```
/// use linerate::Collective;
/// use linerate::collective::{Request, predict};
/// let request = Request {
///     collective: Collective::AllReduce,
///     rank: 0,
///     ranks: 16,
///     root: 0,
///     in_place: true,
///     premultiply: false,
///     hosts: (0..16).collect(),
///     maps_host: false,
///     is_mapped: false,
/// };
/// assert_eq!(predict(&request, 256 << 20, 1, false)?[0].algorithm.name, "ring");
/// # Ok::<(), linerate::Error>(())
/// ```
///
/// # Errors
/// Those of [`Request::check`].
pub fn predict(
    request: &Request,
    bytes: u64,
    cores: u32,
    registered: bool,
) -> Result<Vec<Candidate>> {
    request.check()?;
    let models = Models::BUILT_IN;
    let mapped = Hosts::new(&request.hosts).hosts() == 1;
    let model = match mapped {
        true => models.of(request.ranks, cores),
        false => Model::FABRIC,
    };
    let available = Available {
        mapped,
        registered: registered && mapped,
        window_bytes: WINDOW_BYTES_DEFAULT as u64,
        chunk_bytes: CHUNK_BYTES_DEFAULT as u64,
        cores,
        caches: models.caches,
    };
    let mut all = candidates(request, bytes, &model, &available, available.registered);
    all.sort_by(|a, b| a.predicted_ns.total_cmp(&b.predicted_ns));
    Ok(all)
}

fn shape(request: &Request, model: &Model, available: &Available) -> Shape {
    let [far, near] = model.links();
    Shape {
        far,
        near,
        ranks: request.ranks,
        hosts: Hosts::new(&request.hosts).hosts() as u32,
        cores: available.cores,
        bytes: 0.0,
        segments: 1.0,
        chunk_bytes: available.chunk_bytes as f64,
        mapped: available.mapped,
        registered: available.registered,
        caches: available.caches,
    }
}

fn cheapest(candidates: &[Candidate]) -> &Candidate {
    candidates
        .iter()
        .min_by(|a, b| a.predicted_ns.total_cmp(&b.predicted_ns))
        .expect("each collective has an algorithm that needs nothing")
}

/// Into how many calls the algorithm cuts the call; `None`: it cannot run.
fn segments(
    algorithm: &Algorithm,
    request: &Request,
    bytes: u64,
    available: &Available,
    registered: bool,
) -> Option<u64> {
    let needs = &algorithm.needs;
    let can_run = (available.mapped || !needs.mapped)
        && (registered || !needs.registered)
        && (bytes <= LINE_PAYLOAD_BYTES as u64 || !needs.payload_max)
        && (!request.premultiply || !needs.plain);
    if !can_run || needs.window == Window::None {
        return can_run.then_some(1);
    }
    let window_bytes = algorithm.window_elements(request.ranks, bytes);
    let segments = window_bytes.div_ceil(available.window_bytes.max(1)).max(1);
    // Registered parts are best read where they lie: an all-gather of 16 MiB on 8 ranks takes 1.5
    // ms so, and 5.9 ms when it is cut, which the prices do not show. An all-to-all in place has to
    // keep a copy of what it sends anyway. When it is cut the copy stays in the cache (16 MiB on 2
    // ranks: 2.1 ms, `direct` 3.6; on 3 ranks: 7.1 and 8.3).
    let is_exchange = request.collective == Collective::AllToAll;
    let is_worth_cutting = !registered || is_exchange || !request.collective.has_parts();
    (available.window_bytes > 0 && (segments == 1 || is_worth_cutting)).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Models;
    use crate::limits::INLINE_BYTES_MAX;

    const HOST: Available = Available {
        mapped: true,
        registered: true,
        window_bytes: 256 << 10,
        chunk_bytes: 256 << 10,
        cores: 8,
        caches: Caches {
            core_bytes: 1e6,
            host_bytes: 32e6,
        },
    };
    const FABRIC: Available = Available {
        mapped: false,
        registered: false,
        window_bytes: 0,
        ..HOST
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
            maps_host: false,
            is_mapped: false,
        }
    }

    fn on_host(bytes: u64, registered: bool) -> &'static str {
        let available = Available { registered, ..HOST };
        let request = request(Collective::AllReduce, 4, 4);
        choose(&request, bytes, (&Models::BUILT_IN.apart, &[]), &available)
            .algorithm
            .name
    }

    fn on_fabric(collective: Collective, bytes: u64, ranks: u32, per_host: u32) -> &'static str {
        let request = request(collective, ranks, per_host);
        choose(&request, bytes, (&Model::FABRIC, &[]), &FABRIC)
            .algorithm
            .name
    }

    #[test]
    fn on_one_host_lines_then_windows_then_direct() {
        assert_eq!(on_host(8, true), "line");
        assert_eq!(on_host(48, true), "line");
        assert_eq!(on_host(64, true), "window");
        assert_eq!(on_host(1 << 20, true), "direct");
        assert_eq!(on_host(64 << 10, false), "window-split");
        assert_eq!(on_host(64 << 20, false), "window-split");
    }

    #[test]
    fn what_was_found_wins_where_it_can_run() {
        let finding = |bytes: u64, algorithm: &'static str| Finding {
            collective: Collective::AllReduce,
            ranks: 4,
            crowded: false,
            registered: true,
            bytes,
            algorithm: algorithm.into(),
        };
        let findings = [
            finding(8, "ring"),
            finding(64, "line"),
            finding(1 << 20, "window-split"),
        ];
        let name = |bytes: u64, registered| {
            let available = Available { registered, ..HOST };
            let prices = (&Models::BUILT_IN.apart, &findings[..]);
            let choice = choose(
                &request(Collective::AllReduce, 4, 4),
                bytes,
                prices,
                &available,
            );
            (choice.algorithm.name, choice.is_found)
        };
        assert_eq!(name(8, true), ("ring", true));
        assert_eq!(name(20, true), ("ring", true));
        assert_eq!(name(48, true), ("line", true));
        // A line carries 48 bytes.
        assert_eq!(name(64, true), ("window", false));
        assert_eq!(name(1 << 20, true), ("window-split", true));
        assert_eq!(name(3 << 20, true), ("direct", false));
        assert!(!name(8, false).1);
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
    fn parts_that_no_window_holds_go_through_it_in_segments() {
        let segments = |collective, registered| {
            let request = request(collective, 4, 4);
            let apart = Models::BUILT_IN.apart;
            let candidates = candidates(&request, 1 << 20, &apart, &HOST, registered);
            let window = candidates.iter().find(|c| c.algorithm.name == "window");
            window.map(|c| c.segments)
        };
        assert_eq!(segments(Collective::AllGather, false), Some(4));
        assert_eq!(segments(Collective::AllGather, true), None);
        for registered in [false, true] {
            assert_eq!(segments(Collective::AllToAll, registered), Some(16));
        }
    }

    #[test]
    fn a_premultiplied_reduce_never_reads_inputs_where_they_lie() {
        let request = Request {
            premultiply: true,
            ..request(Collective::Reduce, 4, 4)
        };
        let chosen = choose(&request, 1 << 20, (&Models::BUILT_IN.apart, &[]), &HOST).algorithm;
        assert!(!chosen.needs.plain, "{}", chosen.name);
    }

    #[test]
    fn what_is_chosen_never_depends_on_the_rank_or_on_its_buffers() {
        for collective in Collective::ALL {
            if collective == Collective::SendRecv {
                continue;
            }
            for shift in 0..28 {
                let names = (0..5).map(|rank| {
                    let request = Request {
                        rank,
                        in_place: rank % 2 == 0,
                        ..request(collective, 5, 5)
                    };
                    choose(
                        &request,
                        1 << shift,
                        (&Models::BUILT_IN.crowded, &[]),
                        &HOST,
                    )
                    .algorithm
                    .name
                });
                let names: Vec<_> = names.collect();
                assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
            }
        }
    }

    #[test]
    fn more_bytes_never_cost_less() {
        for collective in Collective::ALL {
            if collective == Collective::SendRecv {
                continue;
            }
            for (ranks, cores) in [(2, 2), (3, 2), (4, 8), (8, 2), (64, 64)] {
                let request = request(collective, ranks, ranks);
                let available = Available { cores, ..HOST };
                let model = Models::BUILT_IN.of(ranks, cores);
                for registered in [true, false] {
                    let at = |shift: u32| {
                        let bytes = 1 << shift;
                        candidates(&request, bytes, &model, &available, registered)
                    };
                    // Messages above the bound are read where they lie, which saves a copy.
                    let at_bound = INLINE_BYTES_MAX.ilog2();
                    let mut less = at(0);
                    for shift in 1..30 {
                        let more = at(shift);
                        if shift == at_bound + 1 {
                            less = more;
                            continue;
                        }
                        for (less, more) in less.iter().flat_map(|less| {
                            let same = |c: &&Candidate| std::ptr::eq(c.algorithm, less.algorithm);
                            more.iter().find(same).map(|more| (less, more))
                        }) {
                            assert!(
                                less.predicted_ns <= more.predicted_ns,
                                "{collective} {} on {ranks} ranks, 2^{shift} B: {} ns, half: {} ns",
                                less.algorithm.name,
                                more.predicted_ns,
                                less.predicted_ns,
                            );
                        }
                        less = more;
                    }
                }
            }
        }
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
                        let chosen =
                            choose(&request, bytes, (&Model::FABRIC, &[]), &available).algorithm;
                        assert_eq!(chosen.collective, collective);
                    }
                }
            }
        }
    }
}
