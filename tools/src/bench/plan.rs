//! [`Plan`]: what a bench will do, from the arguments and a few facts about the machine. Pure; every mistake in the
//! arguments is found here, before a rank is started.

use super::args::{BenchArgs, Memory, Operators, Placements};
use super::layout::{self, Placement};
use super::sweep;
use linerate::{Collective, Config, DataType, ReduceOp, collective, limits};

/// What is known before the ranks start.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Settings from the environment.
    pub config: Config,
    /// `WORLD_SIZE`, if a launcher has set it.
    pub launched_ranks: Option<u32>,
    /// `LOCAL_WORLD_SIZE`, if a launcher has set it.
    pub local_ranks: Option<u32>,
    /// Memory that can be had without swapping.
    pub memory_bytes: u64,
    /// Bytes of the last-level cache.
    pub cache_bytes: u64,
}

/// Everything a rank needs to know.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which.
    pub collective: Collective,
    /// Sizes asked for, bytes.
    pub sizes: Vec<u64>,
    /// Types and operators, in the order of the rows.
    pub variants: Vec<(DataType, ReduceOp)>,
    /// Root of rooted collectives.
    pub root: u32,
    /// Ranks of the job.
    pub ranks: u32,
    /// Settings of the communicator. Its algorithm is left to each call.
    pub config: Config,
    /// Algorithm by name.
    pub algorithm: Option<String>,
    /// Whose memory.
    pub memory: Memory,
    /// What is measured, in the order of the columns.
    pub placements: Vec<Placement>,
    /// Bytes of each of the two buffers that all copies are cut from.
    pub arena_bytes: u64,
    /// Whether iterations go from copy to copy.
    pub rotate: bool,
    /// Timed iterations; `None` fits them to a time.
    pub iterations: Option<u32>,
    /// Iterations between the first touch of all copies and the timed ones; `None` is nccl-tests' number.
    pub warmup: Option<u32>,
    /// Whether results are checked.
    pub check: bool,
    /// Seed of the checked data.
    pub seed: u64,
    /// Whether percentile columns are printed.
    pub stats: bool,
    /// Where the document goes.
    pub json: Option<String>,
    /// Least average bus bandwidth, GB/s.
    pub min_bw: Option<f64>,
    /// Greatest 99th percentile, us.
    pub max_p99: Option<f64>,
}

/// What the arguments ask for, or what is wrong with them.
pub fn build_plan(args: &BenchArgs, facts: Facts) -> Result<Plan, String> {
    let ranks = check_ranks(args.ranks, facts.launched_ranks)?;
    let mut config = facts.config;
    if let Some(name) = &args.transport {
        config.transport = name.clone();
    }
    check_transport(&config.transport)?;
    if let Some(text) = &args.timeout {
        config.timeout =
            linerate::config::parse_timeout("--timeout", text).map_err(|e| e.to_string())?;
    }
    if args.collective.is_rooted() && args.root >= ranks {
        return Err(format!(
            "--root is {}: with {ranks} ranks it is 0 to {}",
            args.root,
            ranks - 1
        ));
    }
    if args.iterations == Some(0) {
        return Err("--iters is 0: at least 1".into());
    }
    let placements = check_placements(args)?;
    let sizes = sweep::build_sizes(args)?;
    let variants = check_variants(args)?;
    let local_ranks = facts.local_ranks.unwrap_or(ranks);
    let largest = sizes.iter().copied().max().unwrap_or(0);
    // The bench's own barriers and sums use what the library chooses.
    let of_environment = config.algorithm.take();
    let algorithm = match &args.algo {
        Some(name) if name != "auto" => {
            check_algorithm(args, name, &variants, largest, ranks)?;
            Some(name.clone())
        }
        Some(_) => None,
        // One name for all collectives can exist for some of them only.
        None => of_environment.filter(|name| collective::find(args.collective, name).is_ok()),
    };
    check_memory(largest, placements.len(), local_ranks, facts.memory_bytes)?;
    let rotation_bytes = if args.no_rotate {
        0
    } else {
        (2 * facts.cache_bytes).min(facts.memory_bytes / (8 * u64::from(local_ranks)))
    };
    Ok(Plan {
        collective: args.collective,
        variants,
        root: if args.collective.is_rooted() {
            args.root
        } else {
            0
        },
        ranks,
        config,
        algorithm,
        memory: args.memory,
        placements,
        arena_bytes: rotation_bytes.max(layout::slot_bytes(largest)),
        sizes,
        rotate: !args.no_rotate,
        iterations: args.iterations,
        warmup: args.warmup,
        check: args.check > 0,
        seed: args.seed,
        stats: args.stats,
        json: args.json.clone(),
        min_bw: args.min_bw,
        max_p99: args.max_p99,
    })
}

fn check_ranks(asked: Option<u32>, launched: Option<u32>) -> Result<u32, String> {
    let ranks = match (asked, launched) {
        (Some(asked), Some(launched)) if asked != launched => {
            return Err(format!(
                "--ranks is {asked}, but a launcher has set WORLD_SIZE to {launched}: leave --ranks away"
            ));
        }
        (_, Some(launched)) => launched,
        (asked, None) => asked.unwrap_or(2),
    };
    if ranks == 0 || ranks > limits::RANKS_MAX {
        return Err(format!(
            "--ranks is {ranks}: from 1 to {}",
            limits::RANKS_MAX
        ));
    }
    Ok(ranks)
}

fn check_transport(name: &str) -> Result<(), String> {
    let (kind, detail) = match name.split_once(':') {
        Some((kind, detail)) => (kind, Some(detail)),
        None => (name, None),
    };
    let takes_detail = matches!(kind, "verbs" | "ofi");
    let is_known = takes_detail || matches!(kind, "auto" | "shm" | "tcp" | "sim");
    if is_known && (detail.is_none() || (takes_detail && detail != Some(""))) {
        return Ok(());
    }
    Err(format!(
        "unknown transport '{name}': one of auto shm tcp verbs[:device] ofi[:provider] sim"
    ))
}

/// Why a transport that exists by name cannot be used by `bench`, if so.
pub fn unavailable_reason(name: &str) -> Option<String> {
    let kind = name.split(':').next().unwrap_or(name);
    let why = match kind {
        "tcp" | "verbs" | "ofi" => "not part of this build; --transport shm is",
        "sim" => {
            "its time is virtual and all its ranks live in one process, so there is nothing to measure here; --transport shm is real"
        }
        _ => return None,
    };
    Some(format!("transport {kind} is unavailable: {why}"))
}

fn check_placements(args: &BenchArgs) -> Result<Vec<Placement>, String> {
    let has_in_place = layout::has_in_place(args.collective);
    match args.placement {
        Placements::OutOfPlace => Ok(vec![Placement::OutOfPlace]),
        Placements::Both if has_in_place => Ok(vec![Placement::OutOfPlace, Placement::InPlace]),
        Placements::Both => Ok(vec![Placement::OutOfPlace]),
        Placements::InPlace if has_in_place => Ok(vec![Placement::InPlace]),
        Placements::InPlace => Err(format!(
            "{} has no in-place form: --placement out-of-place",
            args.collective
        )),
    }
}

fn check_variants(args: &BenchArgs) -> Result<Vec<(DataType, ReduceOp)>, String> {
    let types = match args.collective {
        Collective::Barrier => &[DataType::U8][..],
        _ => &args.datatype.0,
    };
    if !args.collective.is_reducing() {
        return Ok(types.iter().map(|&dtype| (dtype, ReduceOp::Sum)).collect());
    }
    let ops: &[ReduceOp] = match &args.op {
        Operators::One(op) => std::slice::from_ref(op),
        Operators::All => &[
            ReduceOp::Sum,
            ReduceOp::Prod,
            ReduceOp::Min,
            ReduceOp::Max,
            ReduceOp::Avg,
            ReduceOp::PremulSum(2.0),
            ReduceOp::BitAnd,
        ],
    };
    let pairs = types
        .iter()
        .flat_map(|&d| ops.iter().map(move |&op| (d, op)));
    let variants: Vec<_> = pairs.filter(|(d, op)| op.is_defined_for(*d)).collect();
    if variants.is_empty() {
        let (needs, examples) = match ops[0] {
            ReduceOp::BitAnd => ("integers", "i8 u8 i32 u32 i64 u64"),
            _ => ("floats", "f64 f32 f16 bf16"),
        };
        return Err(format!(
            "--op {} is not defined for {}: it needs {needs}, --datatype {examples}",
            ops[0], types[0]
        ));
    }
    Ok(variants)
}

/// Refuses a name that does not exist for the collective, or that cannot do one of the rows.
fn check_algorithm(
    args: &BenchArgs,
    name: &str,
    variants: &[(DataType, ReduceOp)],
    largest: u64,
    ranks: u32,
) -> Result<(), String> {
    let algorithm =
        collective::find(args.collective, name).map_err(|error| format!("--algo: {error}"))?;
    let needs = algorithm.needs;
    if needs.registered && args.memory == Memory::Caller {
        return Err(format!(
            "--algo {name} needs registered memory: --memory registered, or another algorithm"
        ));
    }
    if needs.plain && variants.iter().any(|(_, op)| op.factor().is_some()) {
        return Err(format!(
            "--algo {name} has no premultiplied sums: another --op, or another algorithm"
        ));
    }
    let most = limits::LINE_PAYLOAD_BYTES as u64;
    let count = sweep::count_of(args.collective, largest, 1, ranks);
    if needs.payload_max && count > most {
        return Err(format!(
            "--algo {name} carries at most {most} bytes per rank: --maxbytes {}",
            sweep::bytes_of(args.collective, most, 1, ranks)
        ));
    }
    Ok(())
}

fn check_memory(
    largest: u64,
    arenas: usize,
    local_ranks: u32,
    available: u64,
) -> Result<(), String> {
    let needed = largest
        .saturating_mul(arenas as u64)
        .saturating_mul(u64::from(local_ranks));
    if needed <= available {
        return Ok(());
    }
    Err(format!(
        "--maxbytes {largest} needs {} MiB ({local_ranks} ranks, {arenas} buffers each), and {} MiB are available: \
         lower --maxbytes or --ranks",
        needed >> 20,
        available >> 20
    ))
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::parse;
    use super::*;

    fn facts() -> Facts {
        Facts {
            config: Config::default(),
            launched_ranks: None,
            local_ranks: None,
            memory_bytes: 16 << 30,
            cache_bytes: 32 << 20,
        }
    }

    fn plan(line: &str) -> Result<Plan, String> {
        build_plan(&parse(line).unwrap(), facts())
    }

    #[test]
    fn defaults_are_two_ranks_both_placements_and_a_rotation_over_twice_the_cache() {
        let plan = plan("allreduce -e 1M").unwrap();
        assert_eq!(plan.ranks, 2);
        assert_eq!(plan.placements, [Placement::OutOfPlace, Placement::InPlace]);
        assert_eq!(plan.arena_bytes, 64 << 20);
        assert_eq!(plan.variants, [(DataType::F32, ReduceOp::Sum)]);
    }

    #[test]
    fn without_rotation_one_buffer_is_enough() {
        assert_eq!(
            plan("allreduce -e 1M --no-rotate").unwrap().arena_bytes,
            1 << 20
        );
    }

    #[test]
    fn a_mistake_is_answered_with_what_is_allowed() {
        for (line, expected) in [
            ("allreduce -o bitand -d f32", "i8 u8 i32"),
            ("allreduce -o premulsum -d i32", "f64 f32 f16 bf16"),
            ("broadcast -r 2", "0 to 1"),
            ("allreduce --ranks 0", "1 to 4096"),
            ("allreduce --ranks 5000", "1 to 4096"),
            ("allreduce --transport ib", "verbs[:device]"),
            ("allreduce --transport shm:0", "verbs[:device]"),
            ("allreduce --transport verbs:", "verbs[:device]"),
            ("allreduce --timeout 0", "--timeout"),
            ("allreduce -n 0", "at least 1"),
            ("allreduce -e 64G", "lower --maxbytes"),
            ("all-to-allv --placement in-place", "out-of-place"),
            ("allreduce --algo carrier-pigeon", "it has line"),
            ("allreduce --algo line", "--maxbytes 48"),
            (
                "allreduce --algo direct --memory caller",
                "--memory registered",
            ),
            ("allreduce --algo direct -o premulsum", "another --op"),
            ("sendrecv --algo ring", "it has none"),
        ] {
            let text = plan(line).unwrap_err();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }

    #[test]
    fn a_root_matters_only_where_there_is_one() {
        assert_eq!(plan("allreduce -r 9").unwrap().root, 0);
        assert_eq!(plan("reduce -r 1").unwrap().root, 1);
    }

    #[test]
    fn every_operator_means_those_the_type_has() {
        let variants = plan("allreduce -d all -o all").unwrap().variants;
        assert_eq!(variants.len(), 4 * 6 + 6 * 6);
        assert_eq!(
            plan("allreduce -d all -o bitand").unwrap().variants.len(),
            6
        );
        assert_eq!(plan("broadcast -d all -o all").unwrap().variants.len(), 10);
    }

    #[test]
    fn under_a_launcher_its_number_of_ranks_counts() {
        let launched = |line: &str| {
            let facts = Facts {
                launched_ranks: Some(3),
                ..facts()
            };
            build_plan(&parse(line).unwrap(), facts)
        };
        assert_eq!(launched("allreduce").unwrap().ranks, 3);
        assert_eq!(launched("allreduce --ranks 3").unwrap().ranks, 3);
        let text = launched("allreduce --ranks 2").unwrap_err();
        assert!(text.contains("WORLD_SIZE"), "{text}");
    }

    #[test]
    fn transports_that_are_not_built_say_so() {
        for name in ["tcp", "verbs:mlx5_0", "ofi:efa"] {
            let text = unavailable_reason(name).unwrap();
            assert!(text.contains("not part of this build"), "{text}");
            assert!(plan(&format!("allreduce --transport {name}")).is_ok());
        }
        assert!(unavailable_reason("sim").is_some());
        assert!(unavailable_reason("shm").is_none() && unavailable_reason("auto").is_none());
    }

    #[test]
    fn the_environment_gives_what_no_flag_does() {
        let config = Config {
            algorithm: Some("ring".into()),
            transport: "shm".into(),
            ..Config::default()
        };
        let with = |line: &str| {
            let config = config.clone();
            build_plan(&parse(line).unwrap(), Facts { config, ..facts() }).unwrap()
        };
        assert_eq!(with("allreduce").algorithm.as_deref(), Some("ring"));
        let tree = with("allreduce --algo tree");
        assert_eq!(tree.algorithm.as_deref(), Some("tree"));
        // Not every collective has every algorithm.
        assert_eq!(with("barrier").algorithm, None);
        assert_eq!(with("allreduce --algo auto").algorithm, None);
        assert_eq!(with("allreduce").config.transport, "shm");
    }
}
