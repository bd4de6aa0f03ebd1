//! The paragraph: is the network the bottleneck, and what would help most?
//!
//! Every claim has the predicted number behind it.

use super::errors::Known;
use linerate::Result;
use linerate::whatif::{Additions, Algorithm, FlushRule, LimitedBy, Trace, WhatIf};

/// By how much a bandwidth or a compression is tried to be better.
const TIMES: f64 = 4.0;
/// Changes that are named, at most.
const NAMED_MAX: usize = 3;
/// A change that raises the scaling factor by less is not named.
const GAIN_MIN: f64 = 0.001;

/// The paragraph for a number of GPUs and a compression, and these bandwidths in Gbit/s.
pub fn build(
    trace: &Trace,
    whatif: &WhatIf,
    (gbits, known): (&[f64], &Known),
    target: f64,
) -> Result<String> {
    let least = whatif.least_bits_per_second(trace, target)?;
    let least_gbit = least.map_or(f64::INFINITY, |bits| bits / 1e9);
    let whatif = super::at(whatif, chosen(gbits, least_gbit), known);
    let predicted = whatif.predict(trace)?;
    let factor = predicted.scaling_factor;
    let is_bottleneck = match predicted.limited_by {
        LimitedBy::Computation | LimitedBy::Additions => false,
        LimitedBy::Operations | LimitedBy::Slowing => false,
        LimitedBy::Packing | LimitedBy::Stragglers => false,
        LimitedBy::Wire | LimitedBy::InsideServers | LimitedBy::Latency => factor < target,
    };
    let mut text = format!(
        "Your network is {}the bottleneck at {} Gbit/s with {} GPUs{}{}: communication adds {:.2} ms to a step of {:.2} ms, a scaling factor of {factor:.4} ({:.4} to {:.4}).",
        if is_bottleneck { "" } else { "not " },
        whatif.bits_per_second / 1e9,
        whatif.gpus,
        match whatif.compression > 1.0 {
            true => format!(" and a compression of {}", whatif.compression),
            false => String::new(),
        },
        match whatif.algorithm {
            Algorithm::Ring => String::new(),
            _ => format!(" by {}", whatif.algorithm),
        },
        predicted.overhead_ms,
        predicted.batch_ms,
        predicted.low,
        predicted.high,
    );
    if predicted.limited_by != LimitedBy::Computation {
        text += &format!(" Most of that is {}.", what(predicted.limited_by));
    }
    text += &match least {
        Some(_) => {
            let rounded_up = (least_gbit * 10.0).ceil() / 10.0;
            format!(" A factor of {target} needs {rounded_up:.1} Gbit/s.")
        }
        None => format!(" No bandwidth reaches a factor of {target}."),
    };
    let mut changes = Vec::new();
    for (change, changed) in candidates(&whatif) {
        let gained = changed.predict(trace)?.scaling_factor;
        if gained >= factor + GAIN_MIN {
            changes.push((gained, change));
        }
    }
    // Of equal ones the first stays first, so that the text is the same in every run.
    changes.sort_by(|a, b| b.0.total_cmp(&a.0));
    let named = changes.iter().take(NAMED_MAX);
    let named: Vec<String> = named
        .map(|(gained, change)| format!("{change} ({gained:.4})"))
        .collect();
    text += &match named.is_empty() {
        true => " Nothing that was tried would help.".into(),
        false => format!(" What would help most: {}.", named.join(", ")),
    };
    Ok(text)
}

/// The only bandwidth; of several the fastest one that is too slow, or else the slowest.
fn chosen(gbits: &[f64], least_gbit: f64) -> f64 {
    let slow = gbits.iter().copied().filter(|gbit| *gbit < least_gbit);
    let slowest = gbits.iter().copied().fold(f64::INFINITY, f64::min);
    slow.reduce(f64::max).unwrap_or(slowest)
}

fn what(limit: LimitedBy) -> &'static str {
    match limit {
        LimitedBy::Computation => "computing",
        LimitedBy::Wire => "the time of bytes on the links",
        LimitedBy::InsideServers => "the time of bytes on the links inside of servers",
        LimitedBy::Latency => "the latency of messages",
        LimitedBy::Additions => "the time of additions on the GPUs",
        LimitedBy::Operations => "the time of operations besides their bytes",
        LimitedBy::Packing => "packing and compressing gradients",
        LimitedBy::Slowing => "the computation, which communication slows",
        LimitedBy::Stragglers => "waiting for the slowest GPU",
    }
}

/// What is tried, each by itself.
fn candidates(whatif: &WhatIf) -> Vec<(String, WhatIf)> {
    let compression = TIMES * whatif.compression;
    let faster = TIMES * whatif.bits_per_second;
    let mut all = vec![
        (
            format!("{} Gbit/s", faster / 1e9),
            WhatIf {
                bits_per_second: faster,
                ..whatif.clone()
            },
        ),
        (
            format!("a compression of {compression}"),
            WhatIf {
                compression,
                ..whatif.clone()
            },
        ),
        (
            "messages without latency".into(),
            WhatIf {
                latency_us: 0.0,
                ..whatif.clone()
            },
        ),
        (
            "a transport that fills the link".into(),
            WhatIf {
                link_share: 1.0,
                ..whatif.clone()
            },
        ),
        (
            "operations that take no time besides their bytes".into(),
            WhatIf {
                operation_us: 0.0,
                cycle_us: 0.0,
                ..whatif.clone()
            },
        ),
        (
            "a computation that communication does not slow".into(),
            WhatIf {
                slowing: 0.0,
                ..whatif.clone()
            },
        ),
        (
            "packing that takes no time".into(),
            WhatIf {
                packing_bytes_per_second: f64::INFINITY,
                ..whatif.clone()
            },
        ),
        (
            "GPUs that are all equally fast".into(),
            WhatIf {
                spread: 0.0,
                ..whatif.clone()
            },
        ),
        (
            "additions that take no time".into(),
            WhatIf {
                additions: Additions::free(),
                ..whatif.clone()
            },
        ),
    ];
    if whatif.rule == FlushRule::Paper {
        let rule = FlushRule::Linerate;
        all.push((
            "flushes by linerate's rule".into(),
            WhatIf {
                rule,
                ..whatif.clone()
            },
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(gbits: &[f64]) -> String {
        let trace = Trace::load("resnet50").unwrap();
        let known = Known::exact();
        build(&trace, &WhatIf::default(), (gbits, &known), 0.95).unwrap()
    }

    #[test]
    fn a_slow_network_is_the_bottleneck_and_a_fast_one_is_not() {
        let slow = advice(&[10.0]);
        assert!(slow.starts_with("Your network is the bottleneck at 10 Gbit/s with 64 GPUs"));
        assert!(slow.contains("a scaling factor of 0.5397"), "{slow}");
        assert!(slow.contains("40 Gbit/s (0.99"), "{slow}");
        let fast = advice(&[100.0]);
        assert!(fast.starts_with("Your network is not the bottleneck at 100"));
    }

    #[test]
    fn of_several_bandwidths_the_fastest_that_is_too_slow_is_spoken_of() {
        assert_eq!(chosen(&[1.0, 25.0, 10.0, 40.0], 27.0), 25.0);
        assert_eq!(chosen(&[100.0, 40.0], 27.0), 40.0);
        assert_eq!(advice(&[1.0, 10.0, 100.0]), advice(&[10.0]));
    }
}
