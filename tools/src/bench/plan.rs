//! [`Plan`]: what a bench will do, from the arguments and a few facts about the machine. Pure;
//! every mistake in the arguments is found here, before a rank is started.

use super::args::{BenchArgs, Memory, Operators, Placements};
use super::layout::{self, Placement};
use super::link::Link;
use super::{sweep, values};
use linerate::{Collective, Config, DataType, ReduceOp, collective};
use linerate_job::flags::JobArgs;
use linerate_job::settings;

/// Timed and untimed iterations of a simulation. The first iteration exchanges keys of memory;
/// after it, virtual times repeat.
const SIMULATED_ITERATIONS: (u32, u32) = (1, 1);
/// Twice the second-level cache of a core, of the larger kind.
const ROTATION_BYTES_MIN: u64 = 4 << 20;

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
    /// The collective.
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
    /// The modelled network; `None`: a real one.
    pub link: Option<Link>,
    /// Whose memory the buffers are.
    pub memory: Memory,
    /// What is measured, in the order of the columns.
    pub placements: Vec<Placement>,
    /// Bytes of each of the two buffers that all copies are cut from.
    pub arena_bytes: u64,
    /// Whether iterations go from copy to copy.
    pub rotate: bool,
    /// Timed iterations; `None` fits them to a time.
    pub iterations: Option<u32>,
    /// Iterations between the first touch of all copies and the timed ones; `None` is nccl-tests'
    /// number.
    pub warmup: Option<u32>,
    /// Whether results are checked.
    pub check: bool,
    /// Seed of the checked data.
    pub seed: u64,
    /// Whether percentile columns are printed.
    pub stats: bool,
    /// Whether a profile is taken and printed.
    pub profile: bool,
    /// Where the text and the document go.
    pub job: JobArgs,
    /// What fails the run.
    pub bounds: Bounds,
}

/// Results that are not good enough.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Least average bus bandwidth, GB/s.
    pub min_bw: Option<f64>,
    /// Greatest 99th percentile, us.
    pub max_p99: Option<f64>,
}

/// What the arguments ask for, or what is wrong with them.
pub fn build_plan(args: &BenchArgs, facts: Facts) -> Result<Plan, String> {
    let ranks = settings::check_ranks(args.sweep.ranks, facts.launched_ranks)?;
    let mut config = args.sweep.job.change(facts.config)?;
    if args.collective.is_rooted() && args.sweep.root >= ranks {
        return Err(format!(
            "--root is {}: with {ranks} ranks it is 0 to {}",
            args.sweep.root,
            ranks - 1
        ));
    }
    if args.iterations == Some(0) {
        return Err("--iters is 0: at least 1".into());
    }
    let link = check_link(args, &config.transport, (ranks, facts.launched_ranks))?;
    let placements = check_placements(args)?;
    let sizes = sweep::build_sizes(args)?;
    let variants = check_variants(args, ranks)?;
    let local_ranks = facts.local_ranks.unwrap_or(ranks);
    let largest = sizes.iter().copied().max().unwrap_or(0);
    // The bench's own barriers and sums use what the library chooses.
    let of_environment = config.algorithm.take();
    let algorithm = match &args.sweep.algo {
        Some(name) if name != "auto" => {
            check_algorithm(args, name, &variants, largest, ranks)?;
            Some(name.clone())
        }
        Some(_) => None,
        // The environment has one name for all collectives, and this one may lack it.
        None => of_environment.filter(|name| collective::find(args.collective, name).is_ok()),
    };
    // Virtual time has no caches, and a barrier has no buffers.
    let has_caches = link.is_none() && largest > 0;
    let rotate = !args.no_rotate && has_caches;
    let rotated_bytes = if !rotate {
        0
    } else {
        rotation_bytes(facts.cache_bytes, facts.memory_bytes, local_ranks)
    };
    let or_simulated = |asked: Option<u32>, few| asked.or(link.map(|_| few));
    let plan = Plan {
        collective: args.collective,
        variants,
        root: if args.collective.is_rooted() {
            args.sweep.root
        } else {
            0
        },
        ranks,
        config,
        algorithm,
        link,
        memory: args.sweep.memory,
        placements,
        arena_bytes: rotated_bytes.max(layout::slot_bytes(largest)),
        sizes,
        rotate,
        iterations: or_simulated(args.iterations, SIMULATED_ITERATIONS.0),
        warmup: or_simulated(args.warmup, SIMULATED_ITERATIONS.1),
        check: args.check > 0,
        seed: args.seed,
        stats: args.stats,
        profile: args.profile,
        job: args.sweep.job.clone(),
        bounds: Bounds {
            min_bw: args.min_bw,
            max_p99: args.max_p99,
        },
    };
    check_memory(&plan, local_ranks, facts.memory_bytes)?;
    Ok(plan)
}

impl Plan {
    /// Whether buffers have lengths and no bytes, which is enough for virtual time without a check.
    pub fn is_size_only(&self) -> bool {
        self.link.is_some() && !self.check
    }
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

fn check_variants(args: &BenchArgs, ranks: u32) -> Result<Vec<(DataType, ReduceOp)>, String> {
    let types = match args.collective {
        Collective::Barrier => &[DataType::U8][..],
        _ => &args.sweep.datatype.0,
    };
    if !args.collective.is_reducing() {
        return Ok(types.iter().map(|&dtype| (dtype, ReduceOp::Sum)).collect());
    }
    let ops: &[ReduceOp] = match &args.sweep.op {
        Operators::One(op) => {
            check_factor(*op, types, ranks, args.check > 0)?;
            std::slice::from_ref(op)
        }
        Operators::All => &values::OPERATORS,
    };
    let pairs = types
        .iter()
        .flat_map(|&d| ops.iter().map(move |&op| (d, op)));
    let variants: Vec<_> = pairs.filter(|(d, op)| op.is_defined_for(*d)).collect();
    if variants.is_empty() {
        let fitting = (DataType::ALL.into_iter()).filter(|dtype| ops[0].is_defined_for(*dtype));
        let names: Vec<_> = fitting.map(DataType::name).collect();
        return Err(format!(
            "--op {} is not defined for {}: it is for --datatype {}",
            ops[0],
            types[0],
            names.join(" ")
        ));
    }
    Ok(variants)
}

/// Bytes over which the buffers of a rank rotate. Those of all ranks together exceed the last-level
/// cache, and those of each rank the caches of its core. Up to 8 ranks have twice the last-level
/// cache each. More ranks have no more together, because most of the start of many ranks is spent
/// on getting pages.
fn rotation_bytes(cache_bytes: u64, memory_bytes: u64, local_ranks: u32) -> u64 {
    let local_ranks = u64::from(local_ranks);
    (2 * cache_bytes)
        .min((16 * cache_bytes / local_ranks).max(ROTATION_BYTES_MIN))
        .min(memory_bytes / (8 * local_ranks))
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
    if needs.registered && args.sweep.memory == Memory::Caller {
        return Err(format!(
            "--algo {name} needs registered memory: --memory registered, or another algorithm"
        ));
    }
    if needs.plain && variants.iter().any(|(_, op)| op.factor().is_some()) {
        return Err(format!(
            "--algo {name} has no premultiplied sums: another --op, or another algorithm"
        ));
    }
    let most = collective::LINE_PAYLOAD_BYTES as u64;
    let count = sweep::count_of(args.collective, largest, 1, ranks);
    if needs.payload_max && count > most {
        return Err(format!(
            "--algo {name} carries at most {most} bytes per rank: --maxbytes {}",
            sweep::bytes_of(args.collective, most, 1, ranks)
        ));
    }
    Ok(())
}

/// Memory for the arenas of all ranks; those of a simulation without a check have no bytes.
fn check_memory(plan: &Plan, local_ranks: u32, available: u64) -> Result<(), String> {
    if plan.is_size_only() {
        return Ok(());
    }
    let largest = plan.sizes.iter().copied().max().unwrap_or(0);
    let arenas = plan.placements.len() as u64;
    let needed = layout::slot_bytes(largest)
        .saturating_mul(arenas)
        .saturating_mul(u64::from(local_ranks));
    let what = format!("--maxbytes {largest} ({local_ranks} ranks, {arenas} buffers each)");
    let advice = match plan.link {
        Some(_) => "lower --maxbytes or --ranks, or --check 0: buffers then have no bytes",
        None => "lower --maxbytes or --ranks",
    };
    settings::check_memory(&what, needed, available, advice)
}

/// The modelled network. Unchecked buffers have no bytes there, so they cannot be the caller's
/// memory.
fn check_link(
    args: &BenchArgs,
    transport: &str,
    (ranks, launched): (u32, Option<u32>),
) -> Result<Option<Link>, String> {
    let link = args.link.link(transport, ranks, launched.is_some())?;
    if link.is_some() && args.sweep.memory == Memory::Caller && args.check == 0 {
        return Err("--transport sim --check 0 has buffers without bytes: --memory registered, or --check 1".into());
    }
    if link.is_some() && args.profile {
        return Err("--transport sim has no local work, where --profile says where time goes: leave one of them away".into());
    }
    Ok(link)
}

/// A factor with which checked sums stay finite in every type.
fn check_factor(
    op: ReduceOp,
    types: &[DataType],
    ranks: u32,
    is_checked: bool,
) -> Result<(), String> {
    let Some(factor) = op.factor() else {
        return Ok(());
    };
    if !factor.is_finite() {
        return Err(format!(
            "--op {op}: the factor is a finite number, such as 0.5"
        ));
    }
    let sum = values::largest_sum(factor, ranks);
    let overflows = |dtype: &&DataType| op.is_defined_for(**dtype) && sum > largest_value(**dtype);
    match types.iter().find(overflows) {
        Some(dtype) if is_checked => Err(format!(
            "--op {op}: checked sums of {ranks} ranks reach {sum:e}, above {:e}, the largest {dtype}: a smaller factor, \
             or --check 0",
            largest_value(*dtype)
        )),
        _ => Ok(()),
    }
}

fn largest_value(dtype: DataType) -> f64 {
    match dtype {
        DataType::F16 => f64::from(half::f16::MAX),
        DataType::Bf16 => f64::from(half::bf16::MAX),
        DataType::F8E4M3 => 448.0,
        DataType::F8E5M2 => 57344.0,
        DataType::F32 | DataType::C64 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::args::tests::parse;
    use super::*;

    /// Facts of a host with 16 GiB of memory, outside of any launcher.
    pub fn facts() -> Facts {
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
    fn many_ranks_leave_the_cache_together_and_take_no_more_memory_for_it() {
        let (cache, memory) = (32 << 20, 1 << 40);
        assert_eq!(rotation_bytes(cache, memory, 8), 2 * cache);
        assert_eq!(rotation_bytes(cache, memory, 64), cache / 4);
        assert_eq!(rotation_bytes(cache, memory, 4096), ROTATION_BYTES_MIN);
        assert_eq!(rotation_bytes(cache, 1 << 30, 64), 2 << 20);
    }

    #[test]
    fn without_rotation_one_buffer_is_enough() {
        assert_eq!(
            plan("allreduce -e 1M --no-rotate").unwrap().arena_bytes,
            1 << 20
        );
        let barrier = plan("barrier").unwrap();
        assert_eq!((barrier.rotate, barrier.arena_bytes), (false, 64));
    }

    #[test]
    fn a_mistake_is_answered_with_what_is_allowed() {
        for (line, expected) in [
            ("allreduce -o bitand -d f32", "i8 u8 i32"),
            ("allreduce -o premulsum -d i32", "f64 f32 f16 bf16"),
            ("broadcast -r 2", "0 to 1"),
            ("allreduce --ranks 0", "1 to 16384"),
            ("allreduce --ranks 16385", "1 to 16384"),
            ("allreduce --transport ib", "verbs[:device]"),
            ("allreduce --transport shm:0", "verbs[:device]"),
            ("allreduce --transport verbs:", "verbs[:device]"),
            ("allreduce --timeout 0", "--timeout"),
            ("allreduce -n 0", "at least 1"),
            ("allreduce -e 64G", "lower --maxbytes"),
            ("allreduce -e 1T", "MemAvailable"),
            ("allreduce -o premulsum:nan", "finite"),
            ("allreduce -o premulsum:1e300", "--check 0"),
            ("allreduce -o premulsum:1e5 -d all", "largest f16"),
            ("allreduce --link-gbit 10", "--transport sim"),
            ("allreduce --transport sim --ranks 1025", "1 to 1024"),
            (
                "allreduce --transport sim -c 0 --memory caller",
                "--check 1",
            ),
            ("all-to-allv --placement in-place", "out-of-place"),
            ("allreduce --transport sim --profile", "no local work"),
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
        let (floats, integers, truth, complex) = (6 * 6, 8 * 8, 7, 2 * 3);
        assert_eq!(variants.len(), floats + integers + truth + complex);
        assert_eq!(
            plan("allreduce -d all -o bitand").unwrap().variants.len(),
            9
        );
        assert_eq!(plan("broadcast -d all -o all").unwrap().variants.len(), 17);
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
    fn a_simulation_needs_no_memory_unless_it_is_checked() {
        let plan = |line: &str| plan(&format!("allreduce --transport sim --ranks 1024 {line}"));
        let unchecked = plan("-c 0").unwrap();
        assert!(unchecked.is_size_only() && !unchecked.rotate);
        assert_eq!((unchecked.iterations, unchecked.warmup), (Some(1), Some(1)));
        assert_eq!(unchecked.arena_bytes, 256 << 20);
        let text = plan("").unwrap_err();
        assert!(text.contains("--check 0"), "{text}");
        assert!(!plan("-e 1M").unwrap().is_size_only());
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
