//! Algorithms other than the published ring, beside costs that were worked out by hand.

use super::algorithm::Algorithm;
use super::model::{LimitedBy, Members, WhatIf};
use super::trace::{Gradient, Trace};
use crate::cost::Additions;
use crate::fusion::FusionOptions;
use crate::types::DataType;

/// Two gradients of 1 MB, ready at 10 and 20 ms, of a step of 50 ms.
fn two_gradients() -> Trace {
    let gradient = |name: &str| Gradient {
        name: name.into(),
        wait_us: 10_000.0,
        bytes: 1_000_000,
        dtype: DataType::F32,
    };
    Trace {
        gradients: ["a", "b"].map(gradient).into(),
        batch_ms: Some(50.0),
        steps: 1,
        ..Trace::default()
    }
}

/// Four GPUs whose links carry a byte in 8 ns, so that a flush of 1 MB fills one for 8 ms; each
/// gradient is flushed alone.
fn base(algorithm: Algorithm) -> WhatIf {
    WhatIf {
        gpus: 4,
        bits_per_second: 1e9,
        additions: Additions::free(),
        algorithm,
        fusion: FusionOptions {
            bytes_max: 1,
            ..FusionOptions::default()
        },
        ..WhatIf::default()
    }
}

fn near(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-9, "{got}, {expected}");
}

fn sync_ms(whatif: &WhatIf) -> f64 {
    whatif.predict(&two_gradients()).unwrap().sync_ms
}

#[test]
fn each_algorithm_takes_what_is_worked_out_by_hand() {
    // A ring takes 12 ms for each of both: from 10 to 22 and to 34 ms.
    near(sync_ms(&base(Algorithm::Ring)), 34.0);
    // The switch: 8 ms each, 10 to 18, 20 to 28.
    near(sync_ms(&base(Algorithm::SwitchMl)), 28.0);
    // Two servers for four workers: each server gets half of four vectors, 16 ms, and sends as
    // much.
    let servers = |servers| base(Algorithm::ParameterServer { servers });
    near(sync_ms(&servers(2)), 10.0 + 64.0);
    // As many as workers, or more: the links of the workers are full.
    near(sync_ms(&servers(4)), 10.0 + 32.0);
    near(sync_ms(&servers(8)), 10.0 + 32.0);
    // 2500 of 250,000 elements: 6 k 3 / 4 words of 4 bytes are 45,000 bytes, 0.36 ms.
    let sparse = base(Algorithm::OkTopk { density: 0.01 });
    near(sync_ms(&sparse), 20.36);
}

#[test]
fn latencies_additions_and_types_count_for_each_algorithm() {
    let additions = Additions::measured(vec![(0.0, 0.001), (1e6, 0.002)]).unwrap();
    let with = |algorithm| WhatIf {
        latency_us: 100.0,
        bits_per_second: f64::INFINITY,
        additions: additions.clone(),
        ..base(algorithm)
    };
    let of = |algorithm| sync_ms(&with(algorithm)) - 20.0;
    // 6 messages, and 3 additions of a quarter.
    near(of(Algorithm::Ring), 0.6 + 3.0 * 1.25);
    near(of(Algorithm::SwitchMl), 0.2);
    // There and back; a server adds three vectors of half a flush to its first.
    near(
        of(Algorithm::ParameterServer { servers: 2 }),
        0.2 + 3.0 * 1.5,
    );
    // 2 P + 2 log P messages; 3 additions of 625 values.
    let sparse = of(Algorithm::OkTopk { density: 0.01 });
    near(sparse, 1.2 + 3.0 * 1.0025);
    let half = WhatIf {
        wire_dtype: Some(DataType::Bf16),
        ..with(Algorithm::Ring)
    };
    near(sync_ms(&half) - 20.0, 0.6 + 3.0 * 1.125);
    let half = WhatIf {
        wire_dtype: Some(DataType::Bf16),
        ..base(Algorithm::Ring)
    };
    near(sync_ms(&half), 26.0);
}

#[test]
fn compression_shortens_additions_where_it_is_said_and_packing_takes_time() {
    let additions = Additions::measured(vec![(0.0, 0.0), (1e6, 0.001)]).unwrap();
    let base = WhatIf {
        compression: 4.0,
        additions,
        ..base(Algorithm::Ring)
    };
    // A ring of a quarter takes 3 ms, and 3 additions of a quarter of a flush.
    near(sync_ms(&base), 23.75);
    let shorter = WhatIf {
        adds_compressed: true,
        ..base.clone()
    };
    near(sync_ms(&shorter), 23.0 + 0.75 / 4.0);
    let packing = WhatIf {
        packing_bytes_per_second: 1e9,
        ..base.clone()
    };
    near(sync_ms(&packing), 25.75);
    let slow = WhatIf {
        packing_bytes_per_second: 1e8,
        ..base
    };
    let limited_by = slow.predict(&two_gradients()).unwrap().limited_by;
    assert_eq!(limited_by, LimitedBy::Packing);
}

#[test]
fn the_schedules_of_linerate_cost_what_rings_and_trees_do() {
    let trace = Trace::load("resnet50").unwrap();
    let of = |algorithm: &str, members, latency_us| {
        let whatif = WhatIf {
            gpus: 64,
            bits_per_second: 10e9,
            latency_us,
            additions: Additions::free(),
            members,
            algorithm: algorithm.parse().unwrap(),
            ..WhatIf::default()
        };
        whatif.predict(&trace).unwrap()
    };
    // Long vectors on a ring of linerate, which `auto` takes, cost as the formula says.
    let (ring, auto) = (
        of("ring", Members::Gpus, 0.0),
        of("auto", Members::Gpus, 0.0),
    );
    let share = auto.sync_ms / ring.sync_ms;
    assert!((0.95..1.05).contains(&share), "{ring:?} {auto:?}");
    assert!(auto.low < auto.scaling_factor && auto.high > auto.scaling_factor);
    assert_eq!(
        (ring.low, ring.high),
        (ring.scaling_factor, ring.scaling_factor)
    );
    // A tree sends each byte twice in each direction where a ring sends it about once.
    assert!(of("tree", Members::Gpus, 0.0).sync_ms > 1.5 * ring.sync_ms);
    // A network of long latencies is one for trees.
    let far = |name| of(name, Members::Gpus, 20_000.0).sync_ms;
    assert!(far("recursive-doubling") < far("ring"));
    assert!(far("auto") <= far("recursive-doubling") && far("auto") <= far("tree"));
    // GPUs of servers share a link, which a hierarchical schedule uses once.
    let servers = Members::Servers {
        gpus_per_server: 8,
        inside_bits_per_second: 1.2e12,
    };
    // One server has no link to others: what it sends inside takes as long as that of a ring.
    let alone = |algorithm: &str| {
        let whatif = WhatIf {
            gpus: 8,
            bits_per_second: 1e6,
            latency_us: 1e4,
            additions: Additions::free(),
            members: Members::Servers {
                gpus_per_server: 8,
                inside_bits_per_second: 8e9,
            },
            algorithm: algorithm.parse().unwrap(),
            ..WhatIf::default()
        };
        whatif.predict(&trace).unwrap()
    };
    let (ring, auto) = (alone("ring"), alone("auto"));
    assert!(
        (0.95..1.05).contains(&(auto.sync_ms / ring.sync_ms)),
        "{ring:?} {auto:?}"
    );
    assert_eq!(auto.limited_by, LimitedBy::InsideServers);
    assert_eq!((ring.link_utilisation, auto.link_utilisation), (0.0, 0.0));
    let hierarchical = of("hierarchical", servers, 0.0).sync_ms;
    let ring = of("ring", servers, 0.0).sync_ms;
    assert!(
        (0.9..1.1).contains(&(hierarchical / ring)),
        "{hierarchical} {ring}"
    );
}

#[test]
fn stragglers_keep_all_waiting_but_not_a_quorum() {
    let trace = two_gradients();
    let of = |algorithm: Algorithm| {
        let whatif = WhatIf {
            spread: 0.2,
            gpus: 16,
            bits_per_second: f64::INFINITY,
            ..base(algorithm)
        };
        whatif.predict(&trace).unwrap()
    };
    // The slowest of 16 is 1.766 standard deviations above the mean (tables), here of 10 ms.
    let all = of(Algorithm::Ring);
    assert!((all.overhead_ms - 17.66).abs() < 0.2, "{all:?}");
    assert_eq!(all.limited_by, LimitedBy::Stragglers);
    let half = of(Algorithm::Partial { share: 0.5 });
    assert!(half.overhead_ms < 0.3 * all.overhead_ms, "{half:?}");
    let first = of(Algorithm::Partial { share: 0.01 });
    assert!(first.overhead_ms.abs() < 0.2, "{first:?}");
    let every = of(Algorithm::Partial { share: 1.0 });
    assert_eq!(every.overhead_ms, all.overhead_ms);
}

#[test]
fn bytescheduler_sends_first_what_the_next_forward_pass_needs_first() {
    // The forward pass takes 30 ms: b for 15, then a for 15. Parts of 500 kB take 6 ms on a ring.
    let algorithm = Algorithm::ByteScheduler {
        partition_bytes: 500_000,
    };
    let got = base(algorithm).predict(&two_gradients()).unwrap();
    // 10 to 16 and to 22 a, 22 to 28 and to 34 b; b runs to 49, a to 64: 14 ms more than 50.
    assert_eq!(got.flushes, 4);
    near(got.sync_ms, 34.0);
    near(got.overhead_ms, 14.0);
    // With parts of 250 kB b, which comes at 20, waits for the part from 19 to 22 and overtakes
    // the last of a, if that has more: here all of a is done at 22.
    let trace = Trace {
        gradients: vec![
            Gradient {
                bytes: 2_000_000,
                ..two_gradients().gradients[0].clone()
            },
            two_gradients().gradients[1].clone(),
        ],
        ..two_gradients()
    };
    let got = base(algorithm_of(500_000)).predict(&trace).unwrap();
    // a: 10-16, 16-22; b: 22-28, 28-34; a: 34-40, 40-46. b runs 34 to 49, a 49 to 64.
    near(got.sync_ms, 46.0);
    near(got.overhead_ms, 14.0);
    // In order b would be done at 46, and the step end at 76.
    let in_order = base(Algorithm::Ring).predict(&trace).unwrap();
    near(in_order.overhead_ms, 26.0);
    let error = base(algorithm_of(4096)).predict(&Trace {
        gradients: vec![Gradient {
            bytes: 1 << 40,
            ..trace.gradients[0].clone()
        }],
        ..trace
    });
    assert!(
        error
            .unwrap_err()
            .to_string()
            .contains("partitions of 4096 bytes")
    );
}

fn algorithm_of(partition_bytes: u64) -> Algorithm {
    Algorithm::ByteScheduler { partition_bytes }
}

#[test]
fn intervals_come_from_the_spread_of_steps_and_known_errors() {
    let trace = Trace {
        steps: 4,
        spread: 0.1,
        ..two_gradients()
    };
    let got = base(Algorithm::Ring).predict(&trace).unwrap();
    // 50 and 14 ms; two standard deviations of the mean of four are 5 ms.
    near(got.scaling_factor, 50.0 / 64.0);
    near(got.low, 50.0 / 69.0);
    near(got.high, 50.0 / 59.0);
    let known = WhatIf {
        errors: (0.9, 1.2),
        ..base(Algorithm::Ring)
    };
    let got = known.predict(&two_gradients()).unwrap();
    near(got.low, 50.0 / (64.0 * 1.2));
    near(got.high, 50.0 / (64.0 * 0.9));
    for errors in [
        (0.0, 1.0),
        (1.2, 1.0),
        (1.0, f64::INFINITY),
        (f64::NAN, 1.0),
    ] {
        let whatif = WhatIf {
            errors,
            ..base(Algorithm::Ring)
        };
        let error = whatif.predict(&trace).unwrap_err().to_string();
        assert!(error.contains("the least error is"), "{error}");
    }
}

#[test]
fn a_trace_that_no_file_could_have_is_refused() {
    let with = |change: &dyn Fn(&mut Trace)| {
        let mut trace = two_gradients();
        change(&mut trace);
        let error = base(Algorithm::Ring).predict(&trace).unwrap_err();
        error.to_string()
    };
    for (error, named) in [
        (
            with(&|t| t.gradients[1].wait_us = f64::NAN),
            "gradient 1 comes NaN us",
        ),
        (
            with(&|t| t.gradients[0].wait_us = -1.0),
            "gradient 0 comes -1 us",
        ),
        (
            with(&|t| t.gradients[1].bytes = 6),
            "gradient 1 has 6 bytes",
        ),
        (
            with(&|t| t.gradients[1].bytes = u64::MAX - 3),
            "gradient 1 has",
        ),
        (
            with(&|t| t.batch_ms = Some(f64::INFINITY)),
            "the time of a step in ms is inf",
        ),
        (
            with(&|t| t.forward_ms = Some(-2.0)),
            "forward pass in ms is -2",
        ),
        (with(&|t| t.spread = f64::NAN), "steps is NaN"),
    ] {
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn one_gpu_has_no_overhead_whatever_the_algorithm() {
    for text in [
        "auto",
        "tree",
        "oktopk:0.1",
        "partial:0.5",
        "ps:4",
        "switchml",
        "bytescheduler",
    ] {
        let whatif = WhatIf {
            gpus: 1,
            spread: 0.3,
            latency_us: 50.0,
            operation_us: 50.0,
            packing_bytes_per_second: 1e9,
            ..base(text.parse().unwrap())
        };
        let got = whatif.predict(&two_gradients()).unwrap();
        assert_eq!((got.scaling_factor, got.overhead_ms), (1.0, 0.0), "{text}");
    }
}

/// More bandwidth, fewer bytes and no latency help each algorithm, or change nothing. There is one
/// exception: an operation of ByteScheduler that begins earlier may stand in the way of a gradient
/// that comes then, since it is not interrupted.
#[test]
fn a_faster_network_is_never_slower_for_any_algorithm() {
    let mut exceptions = 0;
    for model in ["resnet50", "vgg16"] {
        let trace = Trace::load(model).unwrap();
        for text in [
            "auto",
            "tree",
            "hierarchical",
            "oktopk:0.02",
            "partial:0.5",
            "ps:4",
            "switchml",
            "bytescheduler",
        ] {
            let slack = if text == "bytescheduler" { 0.02 } else { 0.0 };
            let mut before = 0.0;
            for gbit in [0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 100.0, 400.0, f64::INFINITY] {
                let whatif = WhatIf {
                    gpus: 16,
                    bits_per_second: gbit * 1e9,
                    latency_us: 5.0,
                    algorithm: text.parse().unwrap(),
                    ..WhatIf::default()
                };
                let plain = whatif.predict(&trace).unwrap().scaling_factor;
                let mut compare = |better: f64, than: f64| {
                    let slower = than - better;
                    assert!(
                        slower <= slack + 1e-12,
                        "{model} {text} {gbit}: {better} {than}"
                    );
                    if slower > 1e-12 {
                        println!("{model} {text} {gbit} Gbit/s: slower by {slower:.4}");
                        exceptions += 1;
                    }
                };
                compare(plain, before);
                before = plain;
                let shorter = WhatIf {
                    compression: 2.0,
                    ..whatif.clone()
                };
                let nearer = WhatIf {
                    latency_us: 0.0,
                    ..whatif
                };
                for better in [shorter, nearer] {
                    let got = better.predict(&trace).unwrap().scaling_factor;
                    compare(got, plain);
                }
            }
        }
    }
    println!("{exceptions} exceptions");
    assert!(exceptions < 10);
}
