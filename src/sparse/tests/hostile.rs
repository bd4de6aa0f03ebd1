//! Peers that send anything: a rank's machine ends with a result or an error, whatever comes.

use super::extremes::machines;
use super::memory;
use crate::error::Error;
use crate::prng::Prng;
use crate::sparse::{
    Action, Algorithm, Arrived, Balance, DsaVariant, Machine, Message, Mode, NonFinite,
    OkTopkState, Regions, Request, SparseOptions, Step, Stream, SwitchRule, ValueFormat,
};
use crate::types::Rank;

const RANKS: u32 = 5;
const COUNT: u64 = 300;
const K: u64 = 12;

fn picks(rank: Rank) -> Stream {
    let mut prng = Prng::new(rank.into());
    let mut indices: Vec<u64> = (0..3 * K).map(|_| prng.below(COUNT)).collect();
    indices.sort_unstable();
    indices.dedup();
    indices.truncate(K as usize);
    let values = indices
        .iter()
        .map(|i| (i % 7) as f32 + 1.0 + rank as f32)
        .collect();
    Stream { indices, values }
}

fn machine(
    rank: Rank,
    algorithm: Algorithm,
    options: &SparseOptions,
    state: OkTopkState,
) -> Machine<Stream> {
    let step = Step {
        picks: picks(rank),
        not_finite: 0,
        count: COUNT,
        k: K,
    };
    Machine::new(algorithm, options, (rank, RANKS), step, state)
}

/// What each rank was told in a good run, in order.
fn good_run(
    algorithm: Algorithm,
    options: &SparseOptions,
    state: &OkTopkState,
) -> Vec<Vec<Arrived>> {
    let new = |rank| machine(rank, algorithm, options, state.clone());
    memory::run_with_record((0..RANKS).map(new).collect(), 5).1
}

/// Ways in which what arrives is changed.
fn damage(arrived: &mut Arrived, prng: &mut Prng) {
    let wild = [
        0,
        1,
        K,
        COUNT,
        COUNT + 1,
        1 << 31,
        1 << 32,
        1 << 50,
        u64::MAX,
    ];
    match arrived {
        Arrived::Words(words) if !words.is_empty() => {
            let at = prng.below(words.len() as u64) as usize;
            words[at] = match prng.below(3) {
                0 => words[at].wrapping_add(1),
                1 => words[at].wrapping_sub(1),
                _ => wild[prng.below(wild.len() as u64) as usize],
            };
        }
        Arrived::Messages(messages) if !messages.is_empty() => {
            let at = prng.below(messages.len() as u64) as usize;
            let data = &mut messages[at].data;
            if data.is_empty() {
                return;
            }
            let at = prng.below(data.len() as u64) as usize;
            match prng.below(3) {
                0 => data[at] ^= 1 << prng.below(8),
                1 => data.fill(0xff),
                _ => data
                    .iter_mut()
                    .for_each(|byte| *byte = prng.next_u64() as u8),
            }
        }
        _ => {}
    }
}

/// Something of the shape that a request asks for.
fn anything(request: &Request, prng: &mut Prng) -> Arrived {
    let mut message = |bytes: u64| {
        let data = (0..bytes).map(|_| prng.next_u64() as u8 % 3);
        Message::of(data.collect())
    };
    let mut messages = |lengths: Vec<u64>| lengths.into_iter().map(&mut message).collect();
    match request {
        Request::Exchange { receives, .. } => {
            Arrived::Messages(messages(receives.iter().map(|r| r.1).collect()))
        }
        Request::Gather { bytes, .. } => Arrived::Messages(messages(bytes.clone())),
        Request::Sum { words, .. } => {
            Arrived::Words(words.iter().map(|w| w + prng.below(9)).collect())
        }
        Request::AllToAll { words, .. } => {
            Arrived::Words(words.iter().map(|_| prng.below(K)).collect())
        }
        Request::GatherWords { words, .. } => {
            let count = words.len() as u64 * u64::from(RANKS);
            Arrived::Words((0..count).map(|_| prng.below(K)).collect())
        }
    }
}

/// Whether what was recorded has the shape that is asked for.
fn fits(request: &Request, arrived: &Arrived) -> bool {
    match (request, arrived) {
        (Request::Exchange { receives, .. }, Arrived::Messages(messages)) => receives
            .iter()
            .map(|r| r.1)
            .eq(messages.iter().map(|m| m.bytes)),
        (Request::Gather { bytes, .. }, Arrived::Messages(messages)) => {
            bytes.iter().copied().eq(messages.iter().map(|m| m.bytes))
        }
        (Request::Sum { words, .. } | Request::AllToAll { words, .. }, Arrived::Words(got)) => {
            words.len() == got.len()
        }
        (Request::GatherWords { words, .. }, Arrived::Words(got)) => {
            words.len() * RANKS as usize == got.len()
        }
        _ => false,
    }
}

/// Runs one rank on the recording, with what comes at place `at` damaged and what no longer fits
/// made up. Returns its error, if any.
fn run(mut machine: Machine<Stream>, record: &[Arrived], at: usize, seed: u64) -> Option<Error> {
    let mut prng = Prng::new(seed);
    let mut arrived = Arrived::Nothing;
    for place in 0..200 {
        match machine.next(arrived) {
            Action::Done => return machine.failure().cloned(),
            Action::Wait => panic!("a wait without a start"),
            Action::Start(request) => {
                assert_eq!(machine.next(Arrived::Nothing), Action::Wait);
                let recorded = record.get(place).filter(|r| fits(&request, r));
                arrived = match recorded {
                    Some(recorded) => recorded.clone(),
                    None => anything(&request, &mut prng),
                };
                if place == at {
                    damage(&mut arrived, &mut prng);
                }
            }
        }
    }
    panic!("a machine that never ends");
}

fn variants() -> Vec<SparseOptions> {
    let base = SparseOptions::default();
    vec![
        base.clone(),
        SparseOptions {
            values: ValueFormat::I8,
            switch: SwitchRule::SparCml,
            ..base.clone()
        },
        SparseOptions {
            values: ValueFormat::Bf16,
            regions: Regions::Averaged,
            balance: Balance::Always,
            ..base.clone()
        },
        SparseOptions {
            mode: Mode::Paper,
            regions: Regions::Equal,
            ..base.clone()
        },
        SparseOptions {
            mode: Mode::Threshold,
            non_finite: NonFinite::Count,
            ..base
        },
    ]
}

#[test]
fn whatever_peers_send_ends_in_a_result_or_an_error() {
    let (mut errors, mut named, mut total) = (0, 0, 0);
    for options in variants() {
        for algorithm in machines() {
            // The second step of Ok-Topk has thresholds and regions of the first.
            let mut states = vec![OkTopkState::default()];
            if algorithm == Algorithm::OkTopk {
                let new = |rank| machine(rank, algorithm, &options, OkTopkState::default());
                let first = memory::run((0..RANKS).map(new).collect(), 5);
                states.extend(first[0].state.clone());
            }
            for state in states {
                let records = good_run(algorithm, &options, &state);
                for (rank, record) in (0..).zip(&records) {
                    for seed in 0..20 * record.len() as u64 {
                        let at = seed as usize % record.len();
                        let machine = machine(rank, algorithm, &options, state.clone());
                        let error = run(machine, record, at, seed);
                        total += 1;
                        errors += u64::from(error.is_some());
                        if let Some(Error::PeerFailed { rank: peer, .. }) = error {
                            assert!(peer < RANKS);
                            named += 1;
                        }
                    }
                }
            }
        }
    }
    // Values cannot be wrong, only lengths, counts and indices.
    assert!(
        errors > total / 4 && named > errors / 2 && errors < total,
        "{errors} errors, {named} with a rank, in {total} runs"
    );
}

/// Changes what rank 1 gets in a run of an algorithm, and returns the rank that the error names,
/// and its text.
fn told(algorithm: Algorithm, change: impl Fn(&mut Arrived) -> bool) -> (Option<Rank>, String) {
    let options = SparseOptions::default();
    let mut record = good_run(algorithm, &options, &OkTopkState::default()).swap_remove(1);
    let changed = record.iter_mut().any(change);
    assert!(changed, "{algorithm}: nothing to change");
    let machine = machine(1, algorithm, &options, OkTopkState::default());
    let error = run(machine, &record, usize::MAX, 0).expect("an error");
    let rank = match &error {
        Error::PeerFailed { rank, .. } => Some(*rank),
        _ => None,
    };
    (rank, error.to_string())
}

#[test]
fn a_rank_whose_entries_are_malformed_is_named() {
    // A gather's messages come by rank: the one of rank 3 gets an index that is none.
    let (rank, text) = told(Algorithm::TopkA, |arrived| match arrived {
        Arrived::Messages(messages) => {
            messages[3].data[..4].copy_from_slice(&(COUNT as u32 + 7).to_le_bytes());
            true
        }
        _ => false,
    });
    assert_eq!(rank, Some(3), "{text}");
    assert!(
        text.contains("malformed") && text.contains("outside of 0..300"),
        "{text}"
    );
    // An index twice.
    let (rank, text) = told(Algorithm::TopkA, |arrived| match arrived {
        Arrived::Messages(messages) => {
            messages[3].data.copy_within(..4, 4);
            true
        }
        _ => false,
    });
    assert_eq!(rank, Some(3), "{text}");
    assert!(text.contains("not above the one before"), "{text}");
    // Owners have left out what is not finite: a selected sum cannot be.
    let (rank, text) = told(Algorithm::OkTopk, |arrived| match arrived {
        Arrived::Messages(messages) if messages.len() == RANKS as usize => {
            let mut others = (0..).zip(messages).filter(|(rank, _)| *rank != 1);
            let found = others.find(|(_, message)| message.bytes > 0);
            let message = found.expect("a rank that has selected something").1;
            let value = message.data.len() - 4;
            message.data[value..].copy_from_slice(&f32::NAN.to_le_bytes());
            true
        }
        _ => false,
    });
    assert!(rank.is_some_and(|rank| rank != 1), "{text}");
    assert!(
        text.contains("1 of its selected sums are not finite"),
        "{text}"
    );
    // Sizes: rank 4 says that it has more than there are coordinates.
    for algorithm in [Algorithm::TopkA, Algorithm::TopkDsa(DsaVariant::Split)] {
        let (rank, text) = told(algorithm, |arrived| match arrived {
            Arrived::Words(words) if words.len() == 2 * RANKS as usize => {
                words[8] = 1 << 40;
                true
            }
            _ => false,
        });
        assert_eq!(rank, Some(4), "{text}");
        assert!(text.contains("1099511627776"), "{text}");
    }
    // Sums have no author.
    let (rank, text) = told(Algorithm::OkTopk, |arrived| match arrived {
        Arrived::Words(words) if words.len() == 2048 => {
            words.fill(0);
            true
        }
        _ => false,
    });
    assert_eq!(rank, None);
    assert!(text.contains("magnitudes"), "{text}");
}
