//! `linerate sim`: how long a collective, or a step of training, takes on a fabric of up to
//! thousands of GPUs, in virtual time, and what the time goes to.
//!
//! Nothing is measured. The fabric is [`linerate::sim::Fabric`], built in or from a TOML file. Read
//! first: [`run`], then `document.rs`.

mod document;
mod engines;
mod oktopk;
mod print;
mod step;

use crate::trace::TraceFlags;
use clap::{Args, ValueEnum};
use document::{Document, Row};
use engines::Engines;
use linerate::Collective;
use linerate::sim::{Fabric, FabricCall};
use linerate_job::ending::{self, FAILED, USAGE};
use linerate_job::output;
use linerate_job::settings::parse_size;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// Ranks whose communicators fit this machine.
const ENGINE_RANKS_MAX: u32 = 1024;
/// Bytes of a fabric's file, at most.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Rows of one run, at most.
const ROWS_MAX: usize = 1000;

/// What takes the virtual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Schedules alone.
    Schedule,
    /// The communicators of all ranks, up to 1024; local work takes no time.
    Engine,
}

/// What is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// One call.
    Collective(Collective),
    /// A step of training.
    Step,
    /// A sparse allreduce.
    OkTopk,
}

impl FromStr for What {
    type Err = String;

    fn from_str(text: &str) -> Result<What, String> {
        match text {
            "step" => Ok(What::Step),
            "oktopk" => Ok(What::OkTopk),
            _ => match Collective::from_str(text) {
                Ok(collective) => Ok(What::Collective(collective)),
                Err(error) => Err(format!(
                    "{error}; or step, for a step of training, or oktopk, for a sparse allreduce"
                )),
            },
        }
    }
}

/// Say how long a collective or a step of training takes on a fabric, and what limits it
#[derive(Args, Clone, Debug)]
#[command(allow_negative_numbers = true)]
pub struct SimArgs {
    /// A collective (allreduce, allgather, ...); step: the gradients of a trace, fused and reduced;
    /// or oktopk: the exchanges of a sparse allreduce of a vector of f32
    #[arg(value_name = "COLLECTIVE|step|oktopk")]
    pub what: What,
    /// Number of ranks: one for each GPU
    #[arg(long, default_value_t = 64)]
    pub ranks: u32,
    /// p3dn, 100g, 200g, 400g, 8x400g, oversubscribed (built in), or a TOML file
    #[arg(long, default_value = "100g", value_name = "NAME|FILE")]
    pub fabric: String,
    /// Print the fabric as TOML, to be changed and given as a file
    #[arg(long)]
    pub print_fabric: bool,
    /// Smallest size, bytes, with K, M or G (binary); default: the largest
    #[arg(short = 'b', long = "minbytes", value_name = "SIZE", value_parser = parse_size)]
    pub min_bytes: Option<u64>,
    /// Largest size, bytes, with K, M or G (binary). The size is that of the larger side (input or
    /// output) of a rank
    #[arg(short = 'e', long = "maxbytes", value_name = "SIZE", default_value = "64M", value_parser = parse_size)]
    pub max_bytes: u64,
    /// Each size is the one before times this
    #[arg(
        short = 'f',
        long = "stepfactor",
        value_name = "FACTOR",
        default_value_t = 2
    )]
    pub step_factor: u64,
    /// Algorithm; all: each that can run; default: the one that linerate would choose
    #[arg(long, value_name = "NAME|all")]
    pub algo: Option<String>,
    /// Root of broadcast, reduce, gather and scatter
    #[arg(short = 'r', long = "root", value_name = "RANK", default_value_t = 0)]
    pub root: u32,
    /// Bytes of a chunk (K, M, G); default 256K
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub chunk: Option<u64>,
    /// Share of the elements that oktopk keeps
    #[arg(long, default_value_t = 0.01, value_name = "SHARE")]
    pub density: f64,
    /// What takes the virtual time
    #[arg(long, value_enum, default_value = "schedule")]
    pub level: Level,
    #[command(flatten)]
    pub trace: TraceFlags,
    /// Write one JSON document here, - for standard output
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl SimArgs {
    /// Bytes of a chunk.
    fn chunk(&self) -> u64 {
        let as_default = || linerate::Config::default().chunk_bytes as u64;
        self.chunk.unwrap_or_else(as_default)
    }
}

/// Checks the arguments, simulates and prints.
pub fn run(args: &SimArgs) -> ExitCode {
    let fabric = match fabric(&args.fabric) {
        Ok(fabric) => fabric,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    if args.print_fabric {
        return end(toml::to_string(&fabric)
            .map_err(|cause| cause.to_string())
            .and_then(|text| output::print_text(&text)));
    }
    let document = match simulate(args, &fabric) {
        Ok(document) => document,
        Err(reason) => return ending::fail(USAGE, &reason),
    };
    let text = print::text(&document);
    end(output::end(&text, args.json.as_deref(), &document))
}

fn end(ended: Result<(), String>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => ending::fail(FAILED, &reason),
    }
}

/// The fabric that is built in under this name, or else that of the file.
fn fabric(name: &str) -> Result<Fabric, String> {
    if Fabric::NAMES.contains(&name) {
        return Fabric::named(name).map_err(|error| error.to_string());
    }
    let names = Fabric::NAMES.join(", ");
    let wrong =
        |cause: &dyn std::fmt::Display| format!("--fabric '{name}': {cause}; built in are {names}");
    let mut text = String::new();
    // Devices and pipes do not tell their size.
    let read =
        File::open(name).and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text));
    if read.map_err(|cause| wrong(&cause))? as u64 > FILE_BYTES_MAX {
        return Err(wrong(&format!("more than {FILE_BYTES_MAX} bytes")));
    }
    let wrong = |cause| format!("--fabric {name}: {cause}");
    let table: toml::Table = toml::from_str(&text).map_err(wrong)?;
    let fabric: Fabric = toml::from_str(&text).map_err(wrong)?;
    // A fabric without a name has that of its file, and not that of the default.
    let name = match table.contains_key("name") {
        true => fabric.name.clone(),
        false => name.into(),
    };
    Ok(Fabric { name, ..fabric })
}

fn simulate(args: &SimArgs, fabric: &Fabric) -> Result<Document, String> {
    if let Some(target) = &args.json {
        output::check_target("--json", target)?;
    }
    let text = |error: linerate::Error| error.to_string();
    fabric.options(args.ranks, 0).map_err(text)?;
    if args.level == Level::Engine && args.ranks > ENGINE_RANKS_MAX {
        return Err(format!(
            "--ranks is {}: --level engine takes 1 to {ENGINE_RANKS_MAX}, and --level schedule more",
            args.ranks
        ));
    }
    let mut document = Document::new(args, fabric);
    let collective = match args.what {
        What::Collective(collective) => collective,
        What::Step => {
            document.step = Some(step::Step::new(args, fabric)?);
            return Ok(document);
        }
        What::OkTopk => return oktopk::run(args, fabric, document),
    };
    let calls = calls(args, fabric, collective)?;
    let mut engines = match args.level {
        Level::Engine => Some(Engines::new(fabric, args.ranks, args.chunk()).map_err(text)?),
        Level::Schedule => None,
    };
    for call in calls {
        let times = fabric.run(&call).map_err(text)?;
        let ns = match &mut engines {
            Some(engines) => engines.time_ns(&call, times.algorithm).map_err(text)?,
            None => times.ns,
        };
        document.results.push(Row::new(&call, &times, ns));
    }
    Ok(document)
}

/// Every size with every algorithm that is asked for.
fn calls(args: &SimArgs, fabric: &Fabric, of: Collective) -> Result<Vec<FabricCall>, String> {
    let (least, most) = (args.min_bytes.unwrap_or(args.max_bytes), args.max_bytes);
    if least > most {
        return Err(format!("-b is {least} and -e {most}: -b is at most -e"));
    }
    if args.step_factor < 2 && least < most {
        return Err(format!("-f is {}: at least 2", args.step_factor));
    }
    let mut sizes = vec![least];
    while let Some(next) = sizes
        .last()
        .and_then(|size| size.checked_mul(args.step_factor))
    {
        if next > most || next == 0 || sizes.len() >= ROWS_MAX {
            break;
        }
        sizes.push(next);
    }
    let mut calls = Vec::new();
    for bytes in sizes {
        let call = FabricCall {
            root: args.root,
            chunk_bytes: args.chunk(),
            ..FabricCall::new(of, args.ranks, bytes)
        };
        let names = match args.algo.as_deref() {
            Some("all") => {
                let all = fabric.candidates(of, args.ranks, bytes, args.chunk());
                let all = all.map_err(|error| error.to_string())?;
                all.into_iter().map(|(name, _)| Some(name.into())).collect()
            }
            Some(name) => vec![Some(name.into())],
            None => vec![None],
        };
        calls.extend(names.into_iter().map(|algorithm| FabricCall {
            algorithm,
            ..call.clone()
        }));
    }
    Ok(calls)
}
