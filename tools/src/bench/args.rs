//! The command line of `bench`: what clap can check alone. What depends on several arguments is in
//! `plan.rs`.

use super::link::LinkArgs;
use clap::{Args, ValueEnum};
use linerate::{Collective, DataType, ReduceOp};
use linerate_job::binding::Bind;
use linerate_job::flags::JobArgs;
use linerate_job::settings::{parse_positive, parse_size};
use std::str::FromStr;

/// What `bench` and `explain` both take: which sizes and types, on which ranks, in which memory.
/// Short ones mean what they mean in nccl-tests.
#[derive(Args, Clone, Debug)]
pub struct SweepArgs {
    /// Smallest size, bytes, with K, M or G (binary). The size is that of the larger side (input or
    /// output) of a rank
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", default_value = "8", value_parser = parse_size)]
    pub min_bytes: u64,

    /// Largest size, bytes, with K, M or G (binary)
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "256M", value_parser = parse_size)]
    pub max_bytes: u64,

    /// Each size is the one before times this
    #[arg(
        short = 'f',
        long = "stepfactor",
        value_name = "FACTOR",
        default_value_t = 2
    )]
    pub step_factor: u64,

    /// Element type: f64 f32 f16 bf16 f8e4m3 f8e5m2 i8 u8 i16 u16 i32 u32 i64 u64 bool c64 c128,
    /// names of nccl-tests or torch, or all
    #[arg(
        short = 'd',
        long = "datatype",
        value_name = "TYPE",
        default_value = "f32"
    )]
    pub datatype: Types,

    /// Operator: sum prod min max avg premulsum[:FACTOR] bitand bitor bitxor, or all that the type
    /// has
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum")]
    pub op: Operators,

    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: u32,

    /// Local ranks to spawn; default 2. Under a launcher it must equal WORLD_SIZE
    #[arg(long, value_name = "N")]
    pub ranks: Option<u32>,

    /// cores: each rank gets its own share of the cores; where ranks are more, each core gets
    /// equally many. none: the kernel places them. Under a launcher that launcher decides
    #[arg(long, value_enum, default_value_t = Bind::Cores)]
    pub bind: Bind,

    #[command(flatten)]
    pub job: JobArgs,

    /// Algorithm by name; default LINERATE_ALGO, else what the library chooses
    #[arg(long, value_name = "NAME")]
    pub algo: Option<String>,

    /// Whose memory the buffers are: registered by the library, or the caller's own, which is
    /// staged
    #[arg(long, value_enum, default_value_t = Memory::Registered)]
    pub memory: Memory,
}

/// Arguments of `linerate bench`.
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct BenchArgs {
    /// allreduce, reduce-scatter, reduce-scatterv, all-gather, all-gatherv, broadcast, reduce,
    /// gather, gatherv, scatter, scatterv, all-to-all, all-to-allv, barrier or sendrecv
    #[arg(value_name = "COLLECTIVE", value_parser = Collective::from_str)]
    pub collective: Collective,

    #[command(flatten)]
    pub sweep: SweepArgs,

    /// Each size is the one before plus this, instead of a factor
    #[arg(short = 'i', long = "stepbytes", value_name = "SIZE", conflicts_with = "step_factor", value_parser = parse_size)]
    pub step_bytes: Option<u64>,

    /// Timed iterations per row; default: as many as fit in half a second, from 10 to 1000
    #[arg(short = 'n', long = "iters", value_name = "COUNT")]
    pub iterations: Option<u32>,

    /// Iterations before the timed ones, after one on each buffer of the rotation; default 5
    #[arg(short = 'w', long = "warmup", value_name = "COUNT")]
    pub warmup: Option<u32>,

    /// 1: check every element of one run per row before it is timed; 0: do not
    #[arg(
        short = 'c',
        long = "check",
        value_name = "0|1",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=1)
    )]
    pub check: u8,

    /// Which columns are measured
    #[arg(long, value_enum, default_value_t = Placements::Both)]
    pub placement: Placements,

    #[command(flatten)]
    pub link: LinkArgs,

    /// Seed of the checked data
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Print min, p90, p99, max and standard deviation too
    #[arg(long)]
    pub stats: bool,

    /// Print after the rows where the time of an operation goes, on each rank, and run each row
    /// once more for that
    #[arg(long)]
    pub profile: bool,

    /// Keep one buffer instead of rotating over more than the caches hold, as MPI benchmarks do
    #[arg(long)]
    pub no_rotate: bool,

    /// Fail if the average bus bandwidth is below this
    #[arg(long, value_name = "GB/s", value_parser = parse_positive)]
    pub min_bw: Option<f64>,

    /// Fail if the 99th percentile of any row is above this
    #[arg(long, value_name = "US", value_parser = parse_positive)]
    pub max_p99: Option<f64>,
}

/// Whose memory the buffers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Memory {
    /// From `Communicator::alloc`.
    Registered,
    /// Plain memory of the process.
    Caller,
}

impl Memory {
    /// As flags and documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            Memory::Registered => "registered",
            Memory::Caller => "caller",
        }
    }
}

/// Which placements are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placements {
    /// Input and output share memory as NCCL lays them out.
    InPlace,
    /// Input and output are apart.
    OutOfPlace,
    /// One after the other.
    Both,
}

/// The types of `-d`.
#[derive(Clone, Debug, PartialEq)]
pub struct Types(pub Vec<DataType>);

impl FromStr for Types {
    type Err = String;

    fn from_str(text: &str) -> Result<Types, String> {
        if text == "all" {
            return Ok(Types(DataType::ALL.to_vec()));
        }
        match text.parse() {
            Ok(dtype) => Ok(Types(vec![dtype])),
            Err(reason) => Err(format!("{reason}, or all")),
        }
    }
}

/// The operators of `-o`.
#[derive(Clone, Debug, PartialEq)]
pub enum Operators {
    /// Every one that is defined for the type.
    All,
    /// This one.
    One(ReduceOp),
}

impl FromStr for Operators {
    type Err = String;

    fn from_str(text: &str) -> Result<Operators, String> {
        if text == "all" {
            return Ok(Operators::All);
        }
        match text.parse::<ReduceOp>() {
            Ok(op) => Ok(Operators::One(op)),
            Err(reason) => Err(format!("{reason}, or all")),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        args: BenchArgs,
    }

    /// The arguments after `linerate bench`.
    pub fn parse(line: &str) -> Result<BenchArgs, String> {
        Alone::try_parse_from(std::iter::once("bench").chain(line.split_whitespace()))
            .map(|alone| alone.args)
            .map_err(|e| e.to_string())
    }

    #[test]
    fn the_letters_are_those_of_nccl_tests() {
        let args = parse("allreduce -b 1K -e 1M -f 4 -n 20 -w 3 -c 0 -d half -o max -r 1").unwrap();
        assert_eq!(
            (args.sweep.min_bytes, args.sweep.max_bytes),
            (1 << 10, 1 << 20)
        );
        assert_eq!((args.sweep.step_factor, args.iterations), (4, Some(20)));
        assert_eq!((args.warmup, args.check, args.sweep.root), (Some(3), 0, 1));
        assert_eq!(args.sweep.datatype, Types(vec![DataType::F16]));
        assert_eq!(args.sweep.op, Operators::One(ReduceOp::Max));
    }

    #[test]
    fn all_means_every_type() {
        assert_eq!(parse("reduce -d all").unwrap().sweep.datatype.0.len(), 17);
        assert_eq!(parse("reduce -o all").unwrap().sweep.op, Operators::All);
    }

    #[test]
    fn a_wrong_word_is_answered_with_the_right_ones() {
        for (line, expected) in [
            ("allreduc", "all-gatherv"),
            ("allreduce -d f33", "bf16"),
            ("allreduce -o plus", "premulsum"),
            ("allreduce -b 8Q", "64K"),
            ("allreduce --memory mine", "caller"),
            ("allreduce --placement here", "out-of-place"),
            ("allreduce -c 2", "0..=1"),
            ("allreduce -f 2 -i 8", "cannot be used with"),
            ("allreduce --min-bw -1", "above 0"),
            ("allreduce -f -1", "invalid value '-1'"),
            ("allreduce -b -8", "such as 64K"),
            ("allreduce --link-gbit 0", "from 0.001"),
            ("allreduce --max-p99 fast", "above 0"),
        ] {
            let text = parse(line).unwrap_err();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }
}
