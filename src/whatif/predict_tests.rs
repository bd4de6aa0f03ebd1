//! Predictions beside the published ones, and beside the formula in whole numbers.

use super::model::{LimitedBy, Members, WhatIf};
use super::trace::{Gradient, Trace};
use crate::cost::Additions;
use crate::fusion::FusionOptions;
use crate::prng::Prng;
use crate::types::DataType;
use std::time::Duration;

const EXPECTED: &str = include_str!("../../tests/data/training_bottleneck/whatif_expected.csv");

fn factor(trace: &Trace, whatif: &WhatIf) -> f64 {
    whatif.predict(trace).unwrap().scaling_factor
}

#[test]
fn every_row_of_the_published_model_is_met() {
    let mut rows = 0;
    for line in EXPECTED.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        let whatif = WhatIf {
            gpus: number(1) as u32,
            bits_per_second: number(2) * 1e9,
            compression: number(3),
            ..WhatIf::default()
        };
        let got = whatif.predict(&Trace::load(fields[0]).unwrap()).unwrap();
        let numbers = [got.backward_ms, got.overhead_ms, got.scaling_factor];
        for (at, got) in (4..).zip(numbers) {
            assert!((got - number(at)).abs() <= 1e-6, "{line}: {got}");
        }
        rows += 1;
    }
    assert_eq!(rows, 90);
}

#[test]
fn all_three_models_scale_as_the_published_model_says() {
    let gbits = [1.0, 10.0, 25.0, 40.0, 100.0];
    for (model, at_gbits, at_compressions) in [
        (
            "resnet50",
            [0.0760, 0.5397, 0.9103, 0.9943, 0.9946],
            [0.8169, 0.9944, 0.9946],
        ),
        (
            "resnet101",
            [0.0660, 0.4998, 0.8897, 0.9968, 0.9968],
            [0.7873, 0.9968, 0.9968],
        ),
        (
            "vgg16",
            [0.0221, 0.2013, 0.4387, 0.6221, 0.9935],
            [0.3666, 0.7228, 0.9935],
        ),
    ] {
        let trace = Trace::load(model).unwrap();
        let near = |gbit: f64, compression: f64, expected: f64| {
            let whatif = WhatIf {
                bits_per_second: gbit * 1e9,
                compression,
                ..WhatIf::default()
            };
            let got = factor(&trace, &whatif);
            assert!(
                (got - expected).abs() <= 5.1e-5,
                "{model} {gbit} {compression}: {got}"
            );
        };
        for (gbit, expected) in gbits.into_iter().zip(at_gbits) {
            near(gbit, 1.0, expected);
        }
        for (compression, expected) in [2.0, 5.0, 10.0].into_iter().zip(at_compressions) {
            near(10.0, compression, expected);
        }
    }
}

#[test]
fn ablations_of_the_paper_and_servers_in_place_of_gpus() {
    let near = |trace: &str, whatif: WhatIf, expected: f64| {
        let got = factor(&Trace::load(trace).unwrap(), &whatif);
        assert!(
            (got - expected).abs() <= 5.1e-4,
            "{trace}: {got}, {expected}"
        );
    };
    let fusion = |bytes_max, ms| FusionOptions {
        bytes_max,
        age_max: Duration::from_millis(ms),
        ..FusionOptions::default()
    };
    for (trace, each, once, late) in [
        ("resnet50", 0.699, 0.8836, 0.974),
        ("resnet101", 0.608, 0.8678, 0.997),
        ("vgg16", 0.928, 0.6842, 0.996),
    ] {
        for (fusion, expected) in [
            (fusion(1, 5), each),
            (fusion(1 << 40, 3_600_000), once),
            (fusion(64 << 20, 50), late),
        ] {
            near(
                trace,
                WhatIf {
                    fusion,
                    ..WhatIf::default()
                },
                expected,
            );
        }
    }
    for (gbit, expected) in [(1.0, 0.144), (10.0, 0.849)] {
        let members = Members::Servers {
            gpus_per_server: 8,
            inside_bits_per_second: f64::INFINITY,
        };
        let servers = WhatIf {
            gpus: 16,
            members,
            bits_per_second: gbit * 1e9,
            ..WhatIf::default()
        };
        near("resnet50", servers, expected);
    }
}

fn random_trace(prng: &mut Prng) -> Trace {
    let gradient = |_| {
        let bits = prng.below(26);
        Gradient {
            name: "g".into(),
            wait_us: (prng.below(8000) * prng.below(3)) as f64,
            bytes: 4 * prng.below(1 << bits),
            dtype: DataType::F32,
        }
    };
    let gradients = (0..30).map(gradient).collect();
    Trace {
        name: "random".into(),
        gradients,
        ..Trace::default()
    }
}

/// The published formula once more, in whole numbers: picoseconds, and rates at which a byte
/// takes a whole number of them.
#[test]
fn random_traces_agree_with_the_formula_in_whole_numbers() {
    let mut prng = Prng::new(25);
    for _ in 0..10_000 {
        let trace = random_trace(&mut prng);
        let (gpus, byte_ps) = (1 << prng.below(8), 80 * (1 + prng.below(100)));
        let (mut now, mut age, mut bytes, mut free) = (0u128, 0u128, 0u128, 0u128);
        let mut flush = |now: u128, bytes: u128| {
            // Twice the bytes times (N - 1) / N: exact in units of 1 / N picoseconds.
            let time = 2 * bytes * (gpus - 1) * u128::from(byte_ps);
            free = free.max(now * gpus) + time;
        };
        for gradient in &trace.gradients {
            let wait = gradient.wait_us as u128 * 1_000_000;
            (now, age, bytes) = (now + wait, age + wait, bytes + u128::from(gradient.bytes));
            if age >= 5_000_000_000 || bytes >= 64 << 20 {
                flush(now, bytes);
                (age, bytes) = (0, 0);
            }
        }
        if bytes > 0 {
            flush(now, bytes);
        }
        let expected_ms = free.max(now * gpus) as f64 / gpus as f64 / 1e9;
        let whatif = WhatIf {
            gpus: gpus as u32,
            bits_per_second: 8e12 / byte_ps as f64,
            additions: Additions::free(),
            ..WhatIf::default()
        };
        let got = whatif.predict(&trace).unwrap().sync_ms;
        assert!(
            (got - expected_ms).abs() <= 1e-9 * expected_ms.max(1.0),
            "{got}, {expected_ms}"
        );
    }
}

#[test]
fn a_faster_network_is_never_slower_and_more_gpus_are_never_faster() {
    let mut prng = Prng::new(7);
    for _ in 0..300 {
        let trace = random_trace(&mut prng);
        let base = WhatIf {
            bits_per_second: 1e8 * (1 + prng.below(1000)) as f64,
            gpus: 2 + prng.below(64) as u32,
            latency_us: prng.below(20) as f64,
            ..WhatIf::default()
        };
        let at = |whatif: WhatIf| factor(&trace, &whatif);
        let now = at(base.clone());
        let better = [
            WhatIf {
                bits_per_second: 2.0 * base.bits_per_second,
                ..base.clone()
            },
            WhatIf {
                bits_per_second: f64::INFINITY,
                ..base.clone()
            },
            WhatIf {
                compression: 3.0,
                ..base.clone()
            },
            WhatIf {
                latency_us: 0.0,
                ..base.clone()
            },
            WhatIf {
                additions: Additions::free(),
                ..base.clone()
            },
        ];
        for better in better {
            assert!(at(better) >= now);
        }
        let share = WhatIf {
            link_share: 0.5,
            ..base.clone()
        };
        let more = WhatIf {
            gpus: 2 * base.gpus,
            ..base.clone()
        };
        assert!(at(share) <= now && at(more) <= now);
    }
}

#[test]
fn one_gpu_and_no_gradients_scale_perfectly() {
    let trace = Trace::load("resnet50").unwrap();
    let alone = WhatIf {
        gpus: 1,
        bits_per_second: 1.0,
        ..WhatIf::default()
    };
    let got = alone.predict(&trace).unwrap();
    assert_eq!((got.scaling_factor, got.overhead_ms), (1.0, 0.0));
    assert_eq!(got.limited_by, LimitedBy::Computation);
    let nothing = Trace {
        gradients: Vec::new(),
        batch_ms: None,
        ..trace
    };
    assert_eq!(factor(&nothing, &WhatIf::default()), 1.0);
}

#[test]
fn what_limits_is_named() {
    let trace = Trace::load("vgg16").unwrap();
    let limit = |whatif: WhatIf| whatif.predict(&trace).unwrap().limited_by;
    let base = WhatIf::default();
    let slow = WhatIf {
        bits_per_second: 1e9,
        ..base.clone()
    };
    assert_eq!(limit(slow), LimitedBy::Wire);
    assert_eq!(limit(base.clone()), LimitedBy::Computation);
    let far = WhatIf {
        latency_us: 1000.0,
        ..base.clone()
    };
    assert_eq!(limit(far), LimitedBy::Latency);
    let additions = Additions::measured(vec![(0.0, 0.0), (1e6, 0.1)]).unwrap();
    assert_eq!(
        limit(WhatIf {
            additions,
            ..base.clone()
        }),
        LimitedBy::Additions
    );
    let members = Members::Servers {
        gpus_per_server: 8,
        inside_bits_per_second: 1e9,
    };
    assert_eq!(limit(WhatIf { members, ..base }), LimitedBy::InsideServers);
}

#[test]
fn what_is_out_of_range_is_named_with_its_value() {
    let trace = Trace::load("resnet50").unwrap();
    let base = WhatIf::default;
    let servers = |gpus_per_server, inside_bits_per_second| Members::Servers {
        gpus_per_server,
        inside_bits_per_second,
    };
    for (whatif, named) in [
        (
            WhatIf {
                bits_per_second: 0.0,
                ..base()
            },
            "the bandwidth is 0",
        ),
        (
            WhatIf {
                bits_per_second: f64::NAN,
                ..base()
            },
            "the bandwidth is NaN",
        ),
        (
            WhatIf {
                compression: 0.5,
                ..base()
            },
            "the compression is 0.5",
        ),
        (
            WhatIf {
                latency_us: -1.0,
                ..base()
            },
            "the latency in us is -1",
        ),
        (
            WhatIf {
                link_share: 1.5,
                ..base()
            },
            "the share of the link is 1.5",
        ),
        (WhatIf { gpus: 0, ..base() }, "the number of GPUs is 0"),
        (
            WhatIf {
                members: servers(7, 1e9),
                ..base()
            },
            "a divisor of the 64 GPUs",
        ),
        (
            WhatIf {
                members: servers(0, 1e9),
                ..base()
            },
            "per server is 0",
        ),
        (
            WhatIf {
                members: servers(8, -1.0),
                ..base()
            },
            "inside a server is -1",
        ),
    ] {
        let error = whatif.predict(&trace).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

/// Four gradients of 1 MB, ready at 10, 20, 30 and 40 ms; each takes 4 ms on a link of 2 GPUs.
fn four_flushes() -> (Trace, WhatIf) {
    let gradient = |name: &str| Gradient {
        name: name.into(),
        wait_us: 10_000.0,
        bytes: 1_000_000,
        dtype: DataType::F32,
    };
    let trace = Trace {
        gradients: ["a", "b", "c", "d"].map(gradient).into(),
        batch_ms: Some(60.0),
        steps: 1,
        ..Trace::default()
    };
    let whatif = WhatIf {
        gpus: 2,
        bits_per_second: 2e9,
        additions: Additions::free(),
        fusion: FusionOptions {
            bytes_max: 1,
            ..FusionOptions::default()
        },
        ..WhatIf::default()
    };
    (trace, whatif)
}

#[test]
fn overheads_are_added_where_they_arise() {
    let (trace, base) = four_flushes();
    let sync = |whatif: &WhatIf| whatif.predict(&trace).unwrap().sync_ms;
    let near = |got: f64, expected: f64| assert!((got - expected).abs() < 1e-9, "{got}");
    near(sync(&base), 44.0);
    let operation = WhatIf {
        operation_us: 500.0,
        ..base.clone()
    };
    near(sync(&operation), 44.5);
    let cycle = WhatIf {
        cycle_us: 3000.0,
        ..base.clone()
    };
    near(sync(&cycle), 45.5);
    // Three flushes run for 4 ms during the computation, which gets half of that done.
    let slowing = WhatIf {
        slowing: 1.0,
        ..base.clone()
    };
    near(sync(&slowing), 50.0);
    let limited = |whatif: WhatIf| whatif.predict(&trace).unwrap().limited_by;
    assert_eq!(limited(slowing), LimitedBy::Slowing);
    let operation_us = 5000.0;
    let operation = WhatIf {
        operation_us,
        ..base
    };
    assert_eq!(limited(operation), LimitedBy::Operations);
}

#[test]
fn a_larger_overhead_is_never_faster_and_one_gpu_has_none() {
    let trace = Trace::load("resnet50").unwrap();
    let base = WhatIf {
        gpus: 8,
        bits_per_second: 40e9,
        ..WhatIf::default()
    };
    let of = |kind: usize, size: f64, gpus: u32| {
        let mut whatif = WhatIf {
            gpus,
            ..base.clone()
        };
        match kind {
            0 => whatif.operation_us = size * 5000.0,
            1 => whatif.cycle_us = size * 20_000.0,
            _ => whatif.slowing = size,
        }
        factor(&trace, &whatif)
    };
    for kind in 0..3 {
        for step in 0..100 {
            let (less, more) = (f64::from(step) / 100.0, f64::from(step + 1) / 100.0);
            assert!(of(kind, more, 8) <= of(kind, less, 8), "{kind} {step}");
        }
        assert!(of(kind, 1.0, 8) < of(kind, 0.0, 8), "{kind}");
        assert_eq!(of(kind, 1.0, 1), 1.0);
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let whatif = WhatIf {
            slowing: bad,
            ..base.clone()
        };
        let error = whatif.predict(&trace).unwrap_err().to_string();
        assert!(error.contains("the slowing is"), "{error}");
    }
}
