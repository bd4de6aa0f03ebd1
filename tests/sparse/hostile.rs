//! A rank that sends entries which cannot be: every rank gets an error that names it.

use super::options;
use linerate::options::{Algorithm, Regions};
use linerate::sim::SimOptions;
use linerate::{
    Buffer, Communicator, Config, DataType, Element, Error, Operation, Simulation, SparseAllreduce,
    SparseOptions, TensorSpec,
};

const RANKS: u32 = 4;
const COUNT: u64 = 400;
const LIAR: u32 = 2;

/// What the liar sends to rank 0, whose region is the first quarter: as many entries as it says.
fn entries(lie: &[(u32, f32)]) -> Vec<u8> {
    let indices = lie.iter().flat_map(|(index, _)| index.to_le_bytes());
    let values = lie.iter().flat_map(|(_, value)| value.to_le_bytes());
    indices.chain(values).collect()
}

/// Registered memory with these elements.
fn buffer<T: Element>(comm: &Communicator, elements: &[T]) -> Buffer<T> {
    let buffer = comm.alloc(elements.len()).unwrap();
    buffer.write(0, elements).unwrap();
    buffer
}

/// The first two requests of Ok-Topk with equal regions: how many entries for whom, and those.
fn lie_to(comm: &Communicator, lie: &[(u32, f32)], step: usize) -> Operation {
    match step {
        0 => {
            let mut counts = [0u32; RANKS as usize];
            counts[0] = lie.len() as u32;
            comm.start_all_to_all(&buffer(comm, &counts), &buffer(comm, &counts))
        }
        _ => comm.group().send(&buffer(comm, &entries(lie)), 0).start(),
    }
    .unwrap()
}

/// What every rank is told when one of them lies.
fn errors(lie: &[(u32, f32)]) -> Vec<Error> {
    let mut simulation = Simulation::new(SimOptions::new(RANKS, 3), Config::default()).unwrap();
    let comms = simulation.communicators().to_vec();
    let options = SparseOptions {
        regions: Regions::Equal,
        ..options(Algorithm::OkTopk)
    };
    let tensor = TensorSpec {
        name: "all".into(),
        count: COUNT,
        dtype: DataType::F32,
    };
    let mut honest = Vec::new();
    for comm in comms.iter().filter(|comm| comm.rank() != LIAR) {
        let gradient = comm.alloc(COUNT as usize).unwrap();
        gradient.write(0, &[1.0; COUNT as usize]).unwrap();
        let mut sparse = SparseAllreduce::new(comm, vec![tensor.clone()], options.clone()).unwrap();
        sparse.start(&[gradient]).unwrap();
        honest.push(sparse);
    }
    let mut errors: Vec<Option<Error>> = vec![None; honest.len()];
    let (mut step, mut lying) = (0, lie_to(&comms[LIAR as usize], lie, 0));
    simulation
        .run(|_| {
            if step == 0 && lying.test().unwrap_or(false) {
                step = 1;
                lying = lie_to(&comms[LIAR as usize], lie, 1);
            }
            for (sparse, error) in honest.iter_mut().zip(&mut errors) {
                if error.is_none() {
                    *error = sparse.test().err();
                }
            }
            errors.iter().all(Option::is_some) && comms[LIAR as usize].failure().is_some()
        })
        .unwrap();
    let mut errors: Vec<Error> = errors.into_iter().flatten().collect();
    errors.extend(comms[LIAR as usize].failure());
    errors
}

#[test]
fn malformed_entries_of_one_rank_are_an_error_on_every_rank() {
    for (lie, what) in [
        (vec![(399, 1.0)], "outside of 0..100"),
        (vec![(7, 1.0), (7, 1.0)], "not above the one before"),
        (vec![(9, 1.0), (7, 1.0)], "not above the one before"),
    ] {
        let errors = errors(&lie);
        assert_eq!(errors.len(), RANKS as usize);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("malformed") && text.contains(what), "{text}");
            let cause = error.first_cause();
            assert!(
                matches!(cause, Error::PeerFailed { rank: LIAR, .. }),
                "{cause:?}"
            );
        }
    }
}
