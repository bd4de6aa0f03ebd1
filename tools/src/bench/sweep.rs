//! Sizes of a sweep, elements per rank, bandwidths: nccl-tests' arithmetic (its
//! `doc/PERFORMANCE.md`).

use super::args::BenchArgs;
use linerate::Collective;

/// Rows of one sweep: a step of one byte over a large range is a mistake.
const SIZES_MAX: usize = 10_000;
/// What follows size 0 in a sweep by factor: one element of 8 bytes.
const AFTER_ZERO_BYTES: u64 = 8;

/// The sizes of the sweep; one of 0 for a barrier.
pub fn build_sizes(args: &BenchArgs) -> Result<Vec<u64>, String> {
    if args.collective == Collective::Barrier {
        return Ok(vec![0]);
    }
    let bounds = (args.sweep.min_bytes, args.sweep.max_bytes);
    match args.step_bytes {
        Some(0) => Err("--stepbytes is 0: at least 1".into()),
        Some(step) => sizes_by(bounds, |size| size.checked_add(step)),
        None => sizes_by_factor(bounds, args.sweep.step_factor),
    }
}

/// The sizes from the smallest to the largest, each the one before times a factor.
pub fn sizes_by_factor(bounds: (u64, u64), factor: u64) -> Result<Vec<u64>, String> {
    if factor < 2 {
        return Err(format!(
            "--stepfactor is {factor}: at least 2 (or --stepbytes for equal steps)"
        ));
    }
    sizes_by(bounds, |size| match size {
        0 => Some(AFTER_ZERO_BYTES),
        _ => size.checked_mul(factor),
    })
}

fn sizes_by(
    (least, most): (u64, u64),
    after: impl Fn(u64) -> Option<u64>,
) -> Result<Vec<u64>, String> {
    if least > most {
        return Err(format!("--minbytes {least} is above --maxbytes {most}"));
    }
    let sizes: Vec<u64> = std::iter::successors(Some(least), |&size| after(size))
        .take_while(|&size| size <= most)
        .take(SIZES_MAX + 1)
        .collect();
    if sizes.len() > SIZES_MAX {
        return Err(format!(
            "--stepbytes gives more than {SIZES_MAX} sizes: a larger step"
        ));
    }
    Ok(sizes)
}

/// Elements per rank, which are the `count` of the call. Where one side has a part per rank, a size
/// is that of the whole side. Rounds down, to 0 if a part is less than an element.
pub fn count_of(collective: Collective, size: u64, element_bytes: u64, ranks: u32) -> u64 {
    size / element_bytes / parts(collective, ranks)
}

/// Bytes that a row prints: those of the larger side.
pub fn bytes_of(collective: Collective, count: u64, element_bytes: u64, ranks: u32) -> u64 {
    count * element_bytes * parts(collective, ranks)
}

fn parts(collective: Collective, ranks: u32) -> u64 {
    match collective {
        Collective::AllReduce
        | Collective::Broadcast
        | Collective::Reduce
        | Collective::SendRecv
        | Collective::Barrier => 1,
        Collective::ReduceScatter
        | Collective::ReduceScatterV
        | Collective::AllGather
        | Collective::AllGatherV
        | Collective::Gather
        | Collective::GatherV
        | Collective::Scatter
        | Collective::ScatterV
        | Collective::AllToAll
        | Collective::AllToAllV => u64::from(ranks),
    }
}

/// Bytes over time, GB/s of 1e9 bytes.
pub fn algorithm_bandwidth(bytes: u64, time_us: f64) -> f64 {
    if time_us > 0.0 {
        bytes as f64 / time_us / 1e3
    } else {
        0.0
    }
}

/// What the algorithm's bandwidth is multiplied with to be comparable with a link's.
pub fn bus_factor(collective: Collective, ranks: u32) -> f64 {
    let ranks = f64::from(ranks);
    match collective {
        Collective::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Collective::ReduceScatter
        | Collective::ReduceScatterV
        | Collective::AllGather
        | Collective::AllGatherV
        | Collective::AllToAll
        | Collective::AllToAllV => (ranks - 1.0) / ranks,
        Collective::Broadcast
        | Collective::Reduce
        | Collective::Gather
        | Collective::GatherV
        | Collective::Scatter
        | Collective::ScatterV
        | Collective::Barrier
        | Collective::SendRecv => 1.0,
    }
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::*;

    fn sizes(line: &str) -> Result<Vec<u64>, String> {
        build_sizes(&parse(line).unwrap())
    }

    #[test]
    fn a_factor_multiplies_up_to_the_largest_size() {
        assert_eq!(sizes("allreduce -b 8 -e 64").unwrap(), [8, 16, 32, 64]);
        assert_eq!(sizes("allreduce -b 8 -e 65 -f 3").unwrap(), [8, 24]);
        assert_eq!(sizes("allreduce -b 8 -e 8").unwrap(), [8]);
        assert_eq!(sizes("allreduce").unwrap().len(), 26);
    }

    #[test]
    fn a_step_adds() {
        assert_eq!(sizes("reduce -b 4 -e 15 -i 4").unwrap(), [4, 8, 12]);
    }

    #[test]
    fn a_sweep_may_begin_with_nothing() {
        assert_eq!(sizes("reduce -b 0 -e 16").unwrap(), [0, 8, 16]);
        assert_eq!(sizes("reduce -b 0 -e 0").unwrap(), [0]);
    }

    #[test]
    fn a_barrier_has_one_row() {
        assert_eq!(sizes("barrier -b 8 -e 1M").unwrap(), [0]);
    }

    #[test]
    fn a_sweep_without_end_is_refused() {
        for (line, expected) in [
            ("reduce -b 16 -e 8", "above --maxbytes"),
            ("reduce -f 1", "at least 2"),
            ("reduce -f 0", "at least 2"),
            ("reduce -i 0", "at least 1"),
            ("reduce -i 1", "larger step"),
        ] {
            let text = sizes(line).unwrap_err();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn a_size_is_that_of_the_larger_side() {
        assert_eq!(count_of(Collective::AllReduce, 64, 4, 3), 16);
        assert_eq!(count_of(Collective::AllGather, 64, 4, 3), 5);
        assert_eq!(bytes_of(Collective::AllGather, 5, 4, 3), 60);
        assert_eq!(count_of(Collective::Scatter, 8, 4, 3), 0);
        assert_eq!(count_of(Collective::AllReduce, 7, 8, 2), 0);
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(bus_factor(Collective::AllReduce, 4), 1.5);
        assert_eq!(bus_factor(Collective::AllReduce, 1), 0.0);
        assert_eq!(bus_factor(Collective::ReduceScatter, 4), 0.75);
        assert_eq!(bus_factor(Collective::AllGatherV, 4), 0.75);
        assert_eq!(bus_factor(Collective::AllToAllV, 2), 0.5);
        assert_eq!(bus_factor(Collective::Broadcast, 4), 1.0);
        assert_eq!(bus_factor(Collective::SendRecv, 4), 1.0);
    }

    #[test]
    fn a_gigabyte_has_a_thousand_million_bytes() {
        assert_eq!(algorithm_bandwidth(1_000_000_000, 1e6), 1.0);
        assert_eq!(algorithm_bandwidth(0, 0.0), 0.0);
    }
}
