//! Types beyond the numbers of a processor, over shared memory and connections; operators that a
//! type does not have; calls without elements.
#![allow(unsafe_code)]

use super::network::TCP;
use super::{cases_of_types, results, spawn};
use linerate::elements::{Bool, F8E4M3};
use linerate::{Buffer, Collective, Communicator, DataType, Element, Operation, ReduceOp};
use num_complex::Complex;

/// Runs the role of this name, if there is one.
pub fn run(role: &str, comm: &Communicator) -> bool {
    match role {
        "types" => types(comm),
        "undefined" => undefined(comm),
        "nothing-at-all" => nothing_at_all(comm),
        _ => return false,
    }
    true
}

/// All cases one after the other, then several at a time.
fn types(comm: &Communicator) {
    let is_mapped = std::env::var(TCP.0).is_err();
    let cases = cases_of_types::cases(comm.ranks(), is_mapped);
    for group in cases.chunks(24) {
        let prepared: Vec<_> = (group.iter())
            .map(|case| cases_of_types::prepare(case, comm))
            .collect();
        let start = |(case, prepared): (_, &crate::values::Prepared)| {
            let started = prepared.start(comm);
            started.unwrap_or_else(|e| panic!("{case:?}: {e}"))
        };
        let started: Vec<Operation> = group.iter().zip(&prepared).map(start).collect();
        for ((operation, case), prepared) in started.into_iter().zip(group).zip(&prepared) {
            operation.wait().unwrap_or_else(|e| panic!("{case:?}: {e}"));
            cases_of_types::check(case, comm, prepared);
        }
    }
}

#[test]
fn every_algorithm_takes_every_type() {
    for ranks in [1, 2, 3, 8] {
        results(spawn("types", ranks, &[]));
    }
    let small = [
        ("LINERATE_CHUNK_BYTES", "4K"),
        ("LINERATE_WINDOW_BYTES", "16K"),
    ];
    results(spawn("types", 3, &small));
    for ranks in [2, 3, 5] {
        results(spawn("types", ranks, &[TCP]));
    }
}

/// An operator that a type does not have is an error of this rank that says which ones it has, and
/// the communicator goes on.
fn undefined(comm: &Communicator) {
    fn check<T: Element>(comm: &Communicator, op: ReduceOp, known: &str) {
        let buffer = comm.alloc::<T>(4).unwrap();
        let wanted = format!("{op} is not defined for {}, which has {known}", T::DTYPE);
        let mut slice = buffer.to_vec().unwrap();
        let started = comm.start_all_reduce(&buffer, op).map(drop);
        let built = comm.collective(Collective::Reduce, T::DTYPE, 4).op(op);
        let built = built.input(&buffer).output(&buffer).run();
        for refused in [comm.all_reduce(&mut slice, op), started, built] {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(&wanted), "{text}");
        }
        let sum = comm.collective(Collective::Broadcast, T::DTYPE, 4).op(op);
        sum.input(&buffer).output(&buffer).run().unwrap();
    }
    let integers = "sum prod min max avg bitand bitor bitxor";
    let floats = "sum prod min max avg premulsum";
    let (truth, complex) = ("sum prod min max bitand bitor bitxor", "sum avg premulsum");
    for op in [ReduceOp::Avg, ReduceOp::PremulSum(0.5)] {
        check::<Bool>(comm, op, truth);
    }
    for op in [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor] {
        check::<F8E4M3>(comm, op, floats);
        check::<f64>(comm, op, floats);
        check::<Complex<f32>>(comm, op, complex);
    }
    for op in [ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max] {
        check::<Complex<f64>>(comm, op, complex);
    }
    check::<i16>(comm, ReduceOp::PremulSum(2.0), integers);
    comm.barrier().unwrap();
}

#[test]
fn an_operator_that_a_type_does_not_have_is_refused_with_those_it_has() {
    results(spawn("undefined", 2, &[]));
}

/// Every collective without elements, in memory that is allocated, adopted without an address, of a
/// `Vec` and of slices; what it is differs between the ranks.
fn nothing_at_all(comm: &Communicator) {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    // SAFETY: there are no elements.
    let nowhere = || unsafe { comm.adopt::<Complex<f64>>(std::ptr::null_mut(), 0) };
    for round in 0..4 {
        let empty: Buffer<Complex<f64>> = match (rank + round) % 4 {
            0 => comm.alloc(0).unwrap(),
            1 => nowhere().unwrap(),
            2 => Buffer::from_vec(Vec::new()),
            _ => comm.alloc(3).unwrap().range(2..2),
        };
        assert!(empty.is_empty() && empty.as_slice().unwrap().is_empty());
        assert!(empty.as_mut_slice().unwrap().is_empty());
        assert!(empty.to_vec().unwrap().is_empty() && empty.clone().cast::<u8>().is_ok());
        for collective in Collective::ALL {
            if collective == Collective::SendRecv {
                continue;
            }
            let counts = vec![0; ranks as usize];
            let named = linerate::collective::algorithms(collective).iter();
            let can_run = |a: &&linerate::collective::Algorithm| {
                std::env::var(TCP.0).is_err() || !a.needs.mapped
            };
            let plain = |a: &&linerate::collective::Algorithm| !a.needs.registered;
            let named = named.filter(can_run).filter(plain).map(|a| Some(a.name));
            for algorithm in std::iter::once(None).chain(named) {
                let call = comm.collective(collective, DataType::C128, 0);
                let call = call.root(round % ranks).input(&empty).output(&empty);
                let call = call.send_counts(&counts).receive_counts(&counts);
                let call = match algorithm {
                    Some(name) => call.algorithm(name),
                    None => call,
                };
                let ended = call.run();
                ended.unwrap_or_else(|e| panic!("{collective} by {algorithm:?}: {e}"));
            }
            // Without any buffer, too.
            let call = comm.collective(collective, DataType::C128, 0);
            let call = call.send_counts(&counts).receive_counts(&counts);
            call.start().unwrap().wait().unwrap();
        }
        let all = (0..ranks).fold(comm.group(), |group, peer| {
            group.send(&empty, peer).recv(&empty, peer)
        });
        all.run().unwrap();
        comm.group().run().unwrap();
        named_methods(comm, &empty);
    }
    // SAFETY: it is refused.
    let refused = unsafe { comm.adopt::<f32>(std::ptr::null_mut(), 5) };
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("5 elements of f32 at a null address"),
        "{text}"
    );
    comm.barrier().unwrap();
}

/// The methods by name, on the buffer by some ranks and on slices by the others.
fn named_methods(comm: &Communicator, empty: &Buffer<Complex<f64>>) {
    let (sum, counts) = (ReduceOp::Sum, vec![0; comm.ranks() as usize]);
    macro_rules! call_all {
        ($input:expr, $output:expr) => {{
            comm.all_reduce($output, sum).unwrap();
            comm.all_reduce_into($input, $output, sum).unwrap();
            comm.broadcast($output, 0).unwrap();
            comm.broadcast_into($input, $output, 0).unwrap();
            comm.reduce($output, sum, 0).unwrap();
            comm.reduce_into($input, $output, sum, 0).unwrap();
            comm.reduce_scatter($input, $output, sum).unwrap();
            comm.reduce_scatter_in_place($output, sum).unwrap();
            comm.all_gather($input, $output).unwrap();
            comm.all_gather_in_place($output).unwrap();
            comm.all_gather_v($input, $output, &counts).unwrap();
            comm.all_gather_v_in_place($output, &counts).unwrap();
            comm.reduce_scatter_v($input, $output, &counts, sum)
                .unwrap();
            comm.reduce_scatter_v_in_place($output, &counts, sum)
                .unwrap();
            comm.gather_v($input, $output, &counts, 0).unwrap();
            comm.scatter_v($input, $output, &counts, 0).unwrap();
            comm.gather($input, $output, 0).unwrap();
            comm.scatter($input, $output, 0).unwrap();
            comm.all_to_all($input, $output).unwrap();
            comm.all_to_all_in_place($output).unwrap();
            let ended = comm.all_to_all_v($input, &counts, $output, &counts);
            ended.unwrap();
            match comm.rank() {
                0 => comm.send($input, 1).unwrap(),
                1 => comm.recv($output, 0).unwrap(),
                _ => {}
            }
        }};
    }
    let (none, mut nowhere): ([Complex<f64>; 0], [Complex<f64>; 0]) = ([], []);
    match comm.rank() % 2 {
        0 => call_all!(empty, empty),
        _ => call_all!(&none, &mut nowhere),
    }
}

#[test]
fn calls_without_elements_need_no_memory() {
    for ranks in [2, 4] {
        results(spawn("nothing-at-all", ranks, &[]));
        results(spawn("nothing-at-all", ranks, &[TCP]));
    }
}
