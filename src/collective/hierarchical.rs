//! Allreduce in two levels: few bytes cross between hosts, and as many ranks as possible send them.

use super::Request;
use super::ring::{all_gather_part, reduce_scatter_part};
use super::stage::{Group, Part, Vector, begin};
use super::tree::{broadcast_from, reduce_to};
use crate::pattern::hosts::Hosts;
use crate::schedule::Schedule;

/// Where all hosts have equally many ranks: reduce-scatter on every host, allreduce of each piece
/// between the hosts, all-gather on every host. Else: reduce to the first rank of every host,
/// allreduce among those, broadcast on every host.
pub(super) fn all_reduce(request: &Request) -> Schedule {
    let mut b = begin(request, "hierarchical");
    let vector = Vector::new(&mut b, request);
    let hosts = Hosts::new(&request.hosts);
    let local = Group::new(hosts.neighbours(request.rank).to_vec(), request.rank);
    if hosts.ranks_per_host().is_some() {
        let across = Group::new(hosts.column(local.me as usize), request.rank);
        let piece = Part::WHOLE.piece(local.me, local.len());
        reduce_scatter_part(&mut b, &local, vector, Part::WHOLE, false);
        reduce_scatter_part(&mut b, &across, vector.continued(), piece, true);
        all_gather_part(&mut b, &across, vector.to, piece);
        all_gather_part(&mut b, &local, vector.to, Part::WHOLE);
        return b.build();
    }
    reduce_to(&mut b, &local, 0, vector, false);
    if local.me == 0 {
        let across = Group::new(hosts.column(0), request.rank);
        reduce_scatter_part(&mut b, &across, vector.continued(), Part::WHOLE, true);
        all_gather_part(&mut b, &across, vector.to, Part::WHOLE);
    }
    broadcast_from(&mut b, &local, 0, vector.to);
    b.build()
}
