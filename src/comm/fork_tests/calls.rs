//! The collectives that a child tries. Each must be refused, whatever memory it is given.

use crate::comm::{Buffer, Communicator};
use crate::error::Result;
use crate::types::ReduceOp::Sum;

/// A call of one of two ranks, on a buffer of four elements and on its first two.
pub(super) type Try = fn(&Communicator, &Buffer<f32>, &Buffer<f32>) -> Result<()>;

/// Two elements for each rank.
const COUNTS: &[u64] = &[2, 2];

/// Blocking collectives, three of them on slices.
pub(super) const BLOCKING: &[(&str, Try)] = &[
    ("Communicator::all_reduce", |comm, _, _| {
        comm.all_reduce(&mut [1.0f32, 2.0], Sum)
    }),
    ("Communicator::all_reduce_into", |comm, all, _| {
        comm.all_reduce_into(all, all, Sum)
    }),
    ("Communicator::broadcast", |comm, all, _| {
        comm.broadcast(all, 0)
    }),
    ("Communicator::broadcast_into", |comm, all, _| {
        comm.broadcast_into(all, all, 0)
    }),
    ("Communicator::reduce", |comm, all, _| {
        comm.reduce(all, Sum, 0)
    }),
    ("Communicator::reduce_into", |comm, all, _| {
        comm.reduce_into(all, all, Sum, 0)
    }),
    ("Communicator::reduce_scatter", |comm, all, own| {
        comm.reduce_scatter(all, own, Sum)
    }),
    ("Communicator::reduce_scatter_in_place", |comm, all, _| {
        comm.reduce_scatter_in_place(all, Sum)
    }),
    ("Communicator::all_gather", |comm, all, own| {
        comm.all_gather(own, all)
    }),
    ("Communicator::all_gather_in_place", |comm, all, _| {
        comm.all_gather_in_place(all)
    }),
    ("Communicator::all_gather_v", |comm, all, own| {
        comm.all_gather_v(own, all, COUNTS)
    }),
    ("Communicator::all_gather_v_in_place", |comm, all, _| {
        comm.all_gather_v_in_place(all, COUNTS)
    }),
    ("Communicator::reduce_scatter_v", |comm, all, own| {
        comm.reduce_scatter_v(all, own, COUNTS, Sum)
    }),
    ("Communicator::reduce_scatter_v_in_place", |comm, all, _| {
        comm.reduce_scatter_v_in_place(all, COUNTS, Sum)
    }),
    ("Communicator::gather_v", |comm, all, own| {
        comm.gather_v(own, all, COUNTS, 0)
    }),
    ("Communicator::scatter_v", |comm, all, own| {
        comm.scatter_v(all, own, COUNTS, 0)
    }),
    ("Communicator::gather", |comm, all, own| {
        comm.gather(own, all, 0)
    }),
    ("Communicator::scatter", |comm, all, own| {
        comm.scatter(all, own, 0)
    }),
    ("Communicator::all_to_all", |comm, all, _| {
        comm.all_to_all(all, all)
    }),
    ("Communicator::all_to_all_in_place", |comm, all, _| {
        comm.all_to_all_in_place(all)
    }),
    ("Communicator::all_to_all_v", |comm, all, _| {
        comm.all_to_all_v(all, COUNTS, all, COUNTS)
    }),
    ("Communicator::send", |comm, _, _| {
        comm.send(&[1.0f32], 1 - comm.rank())
    }),
    ("Communicator::recv", |comm, _, _| {
        comm.recv(&mut [1.0f32], 1 - comm.rank())
    }),
    ("Communicator::barrier", |comm, _, _| comm.barrier()),
    ("Communicator::finalize", |comm, _, _| {
        comm.clone().finalize()
    }),
];

/// Collectives that return at once.
pub(super) const STARTED: &[(&str, Try)] = &[
    ("Communicator::start_all_reduce", |comm, all, _| {
        comm.start_all_reduce(all, Sum).map(drop)
    }),
    ("Communicator::start_all_reduce_into", |comm, all, _| {
        comm.start_all_reduce_into(all, all, Sum).map(drop)
    }),
    ("Communicator::start_broadcast", |comm, all, _| {
        comm.start_broadcast(all, 0).map(drop)
    }),
    ("Communicator::start_broadcast_into", |comm, all, _| {
        comm.start_broadcast_into(all, all, 0).map(drop)
    }),
    ("Communicator::start_reduce", |comm, all, _| {
        comm.start_reduce(all, Sum, 0).map(drop)
    }),
    ("Communicator::start_reduce_into", |comm, all, _| {
        comm.start_reduce_into(all, all, Sum, 0).map(drop)
    }),
    ("Communicator::start_reduce_scatter", |comm, all, own| {
        comm.start_reduce_scatter(all, own, Sum).map(drop)
    }),
    (
        "Communicator::start_reduce_scatter_in_place",
        |comm, all, _| comm.start_reduce_scatter_in_place(all, Sum).map(drop),
    ),
    ("Communicator::start_all_gather", |comm, all, own| {
        comm.start_all_gather(own, all).map(drop)
    }),
    ("Communicator::start_all_gather_in_place", |comm, all, _| {
        comm.start_all_gather_in_place(all).map(drop)
    }),
    ("Communicator::start_all_gather_v", |comm, all, own| {
        comm.start_all_gather_v(own, all, COUNTS).map(drop)
    }),
    (
        "Communicator::start_all_gather_v_in_place",
        |comm, all, _| comm.start_all_gather_v_in_place(all, COUNTS).map(drop),
    ),
    ("Communicator::start_reduce_scatter_v", |comm, all, own| {
        let started = comm.start_reduce_scatter_v(all, own, COUNTS, Sum);
        started.map(drop)
    }),
    (
        "Communicator::start_reduce_scatter_v_in_place",
        |comm, all, _| {
            let started = comm.start_reduce_scatter_v_in_place(all, COUNTS, Sum);
            started.map(drop)
        },
    ),
    ("Communicator::start_gather_v", |comm, all, own| {
        comm.start_gather_v(own, all, COUNTS, 0).map(drop)
    }),
    ("Communicator::start_scatter_v", |comm, all, own| {
        comm.start_scatter_v(all, own, COUNTS, 0).map(drop)
    }),
    ("Communicator::start_gather", |comm, all, own| {
        comm.start_gather(own, all, 0).map(drop)
    }),
    ("Communicator::start_scatter", |comm, all, own| {
        comm.start_scatter(all, own, 0).map(drop)
    }),
    ("Communicator::start_all_to_all", |comm, all, _| {
        comm.start_all_to_all(all, all).map(drop)
    }),
    ("Communicator::start_all_to_all_in_place", |comm, all, _| {
        comm.start_all_to_all_in_place(all).map(drop)
    }),
    ("Communicator::start_all_to_all_v", |comm, all, _| {
        let started = comm.start_all_to_all_v(all, COUNTS, all, COUNTS);
        started.map(drop)
    }),
    ("Communicator::start_barrier", |comm, _, _| {
        comm.start_barrier().map(drop)
    }),
];
