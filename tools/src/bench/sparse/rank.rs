//! One rank: runs every algorithm, follows sampled coordinates, and reports if it is rank 0.

use super::document::{Document, Entry, StepTimes, Traffic};
use super::{Plan, vectors};
use crate::bench::statistics::Summary;
use crate::bench::sweep;
use linerate::options::Algorithm;
use linerate::reports::{Counters, PHASES};
use linerate::unstable::prng::Prng;
use linerate::{Buffer, Collective, Communicator, ReduceOp, Result, SparseAllreduce, SparseResult};
use linerate_job::ending::Outcome;
use linerate_job::settings;
use std::time::Instant;

/// Coordinates that are followed.
const SAMPLES: usize = 4096;

/// Numbers that ranks exchange for each phase.
const FIELDS: usize = 4;

/// Runs everything.
pub fn run(plan: &Plan) -> Outcome {
    let comm = settings::join(plan.config.clone())?;
    let buffers = plan.tensors.iter().map(|tensor| {
        let count = tensor.count as usize;
        Ok(comm.alloc(count.max(1))?.range(..count))
    });
    let gradients: Vec<Buffer<f32>> = buffers.collect::<Result<_>>()?;
    vectors::fill(plan, comm.rank(), &gradients)?;
    let mut report = (comm.rank() == 0).then(|| Document::new(plan, comm.transport()));
    if report.is_some() {
        print(plan, &header(plan, (comm.ranks(), comm.transport())));
    }
    let mut wrong = 0;
    for algorithm in &plan.args.algo.0 {
        let entry = measure(plan, &comm, *algorithm, &gradients)?;
        wrong += entry.wrong.unwrap_or(0);
        if let Some(document) = &mut report {
            print(plan, &row(&entry));
            document.results.push(entry);
        }
    }
    let peak = peak_memory_bytes(&comm)?;
    if let Some(document) = &mut report {
        let vector = 4 * plan.count().max(1);
        document.peak_memory_bytes = peak;
        document.peak_memory_vectors = peak as f64 / vector as f64;
        print(plan, &memory_line(document));
    }
    comm.barrier()?;
    let written = match &report {
        Some(document) => plan.args.job.write_json(document),
        None => Ok(()),
    };
    Ok(match (report.is_some(), wrong) {
        (true, 1..) => Err(vec![format!(
            "{wrong} coordinates do not have what the gradients gave, or differ between ranks"
        )]),
        _ => written.map_err(|text| vec![text]),
    })
}

fn measure(
    plan: &Plan,
    comm: &Communicator,
    algorithm: Algorithm,
    gradients: &[Buffer<f32>],
) -> Result<Entry> {
    let mut sparse = SparseAllreduce::new(comm, plan.tensors.clone(), plan.options(algorithm))?;
    let mut samples = Samples::new(plan);
    let (warmup, iterations) = (plan.args.warmup, plan.args.iterations);
    let mut times = Times::default();
    let mut counters = Counters::default();
    let mut last = None;
    for step in 0..warmup + iterations {
        comm.barrier()?;
        let started = Instant::now();
        let result = sparse.run(gradients)?;
        let time_us = started.elapsed().as_secs_f64() * 1e6;
        if plan.args.check == 1 {
            samples.apply(&result)?;
        }
        if step >= warmup {
            times.push(time_us, &result);
            counters.add(&result.counters);
        }
        last = Some(result);
    }
    times.combine(comm)?;
    let last = last.expect("at least one step");
    let steps = u64::from(warmup + iterations);
    let wrong = match plan.args.check {
        1 => Some(samples.count_wrong(comm, &sparse, gradients, steps)?),
        _ => None,
    };
    entry(plan, comm, (algorithm, &last), (&times, counters), wrong)
}

fn entry(
    plan: &Plan,
    comm: &Communicator,
    (asked, last): (Algorithm, &SparseResult),
    (times, counters): (&Times, Counters),
    wrong: Option<u64>,
) -> Result<Entry> {
    let mut reported = Reported {
        ran: last.algorithm,
        selected_local: last.selected_local,
        selected_global: last.selected_global,
        reduced: last.reduced,
        ..Reported::new(asked, comm.ranks())
    };
    reported.add(&words_of(&counters));
    comm.all_reduce(&mut reported.most, ReduceOp::Max)?;
    comm.all_reduce(&mut reported.sum, ReduceOp::Sum)?;
    Ok(build_entry(plan, &reported, times, wrong))
}

/// What all ranks together report of an algorithm: numbers of each phase and of all phases, summed
/// over the timed steps.
pub struct Reported {
    asked: Algorithm,
    ranks: u32,
    pub ran: Algorithm,
    pub selected_local: u64,
    pub selected_global: u64,
    pub reduced: Option<u64>,
    /// The greatest of any rank, number by number.
    most: Vec<u64>,
    sum: Vec<u64>,
    /// By rank, where all ranks are in this process.
    each: Vec<Counters>,
}

impl Reported {
    pub fn new(asked: Algorithm, ranks: u32) -> Reported {
        let none = vec![0; (PHASES.len() + 1) * FIELDS];
        Reported {
            asked,
            ranks,
            ran: asked,
            selected_local: 0,
            selected_global: 0,
            reduced: None,
            most: none.clone(),
            sum: none,
            each: Vec::new(),
        }
    }

    fn add(&mut self, own: &[u64]) {
        for (most, own) in self.most.iter_mut().zip(own) {
            *most = (*most).max(*own);
        }
        (self.sum.iter_mut().zip(own)).for_each(|(sum, own)| *sum += own);
    }

    /// What a step sent in a phase, as the mean of `steps` steps. The index after the last phase
    /// means all phases.
    fn traffic(&self, phase: usize, steps: u64) -> Traffic {
        let at = phase * FIELDS;
        let most = |field: usize| self.most[at + field] / steps;
        Traffic {
            words_sent_max: most(0),
            words_received_max: most(1),
            words_received_mean: (self.sum[at + 1] / steps) as f64 / f64::from(self.ranks),
            control_words: most(2),
            messages: most(3),
        }
    }

    /// Adds a step of all ranks, where they are in this process.
    pub fn all(&mut self, is_timed: bool, of: impl Fn(usize) -> Counters) {
        if !is_timed {
            return;
        }
        self.each.resize(self.ranks as usize, Counters::default());
        for (rank, sum) in self.each.iter_mut().enumerate() {
            sum.add(&of(rank));
        }
        let words: Vec<Vec<u64>> = self.each.iter().map(words_of).collect();
        self.most.fill(0);
        self.sum.fill(0);
        words.iter().for_each(|own| self.add(own));
    }
}

/// The numbers of each phase, and of all.
fn words_of(counters: &Counters) -> Vec<u64> {
    let phases = PHASES.iter().map(|phase| *counters.of(*phase));
    let numbers = phases.chain([counters.total()]).map(|traffic| {
        [
            traffic.data_words_sent,
            traffic.data_words_received,
            traffic.control_words,
            traffic.messages,
        ]
    });
    numbers.flatten().collect()
}

/// An entry of the document, of one step.
pub fn build_entry(plan: &Plan, reported: &Reported, times: &Times, wrong: Option<u64>) -> Entry {
    let steps = u64::from(plan.args.iterations);
    let phases = PHASES.iter().enumerate();
    let phases = phases.map(|(at, phase)| (phase.name(), reported.traffic(at, steps)));
    let (count, times) = (plan.count(), times.summarise());
    let algbw = sweep::algorithm_bandwidth(4 * count, times.time_us.p50);
    Entry {
        collective: "sparse-allreduce",
        bytes: 4 * count,
        count,
        dtype: "f32",
        op: "sum",
        algorithm: reported.asked.name(),
        ran: reported.ran.name(),
        memory: "registered",
        in_place: false,
        iterations: plan.args.iterations,
        times,
        algbw,
        busbw: algbw * sweep::bus_factor(Collective::AllReduce, reported.ranks),
        wrong,
        traffic: reported.traffic(PHASES.len(), steps),
        phases: phases.collect(),
        selected_local: reported.selected_local,
        selected_global: reported.selected_global,
        reduced: reported.reduced,
    }
}

/// Times of steps, us.
#[derive(Default)]
pub struct Times {
    whole: Vec<f64>,
    select: Vec<f64>,
    communicate: Vec<f64>,
    apply: Vec<f64>,
}

impl Times {
    fn push(&mut self, time_us: f64, result: &SparseResult) {
        let us = |time: std::time::Duration| time.as_secs_f64() * 1e6;
        self.whole.push(time_us);
        self.select.push(us(result.times.select));
        self.communicate.push(us(result.times.communicate));
        self.apply.push(us(result.times.apply));
    }

    fn summarise(&self) -> StepTimes {
        StepTimes {
            time_us: Summary::of(&self.whole),
            select_us: Summary::of(&self.select),
            communicate_us: Summary::of(&self.communicate),
            apply_us: Summary::of(&self.apply),
        }
    }

    /// Adds a step of which only the communication takes time.
    pub fn push_communication(&mut self, is_timed: bool, seconds: f64) {
        if is_timed {
            self.whole.push(1e6 * seconds);
            self.communicate.push(1e6 * seconds);
            self.select.push(0.0);
            self.apply.push(0.0);
        }
    }

    /// Takes the times of the slowest rank, step by step, and for the communication those of the
    /// rank that began it last.
    fn combine(&mut self, comm: &Communicator) -> Result<()> {
        comm.all_reduce(&mut self.whole, ReduceOp::Max)?;
        comm.all_reduce(&mut self.select, ReduceOp::Max)?;
        comm.all_reduce(&mut self.communicate, ReduceOp::Min)?;
        comm.all_reduce(&mut self.apply, ReduceOp::Max)
    }
}

/// The most memory that a process has had resident, by the kernel's count, of the rank with the
/// most. It includes shared memory of other ranks that this one has touched.
fn peak_memory_bytes(comm: &Communicator) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    let mut peak = [1024 * kib.unwrap_or(0)];
    comm.all_reduce(&mut peak, ReduceOp::Max)?;
    Ok(peak[0])
}

fn memory_line(document: &Document) -> String {
    format!(
        "# peak memory of a rank: {:.1} MiB, {:.2} times a vector (gradient and residual are two)\n",
        document.peak_memory_bytes as f64 / (1 << 20) as f64,
        document.peak_memory_vectors
    )
}

/// Coordinates drawn by the seed, the same on all ranks, with what was applied to them.
struct Samples {
    indices: Vec<u64>,
    applied: Vec<f64>,
}

impl Samples {
    fn new(plan: &Plan) -> Samples {
        let mut prng = Prng::new(plan.args.seed);
        let mut indices: Vec<u64> = (0..SAMPLES).map(|_| prng.below(plan.count())).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.retain(|index| *index < plan.count());
        Samples {
            applied: vec![0.0; indices.len()],
            indices,
        }
    }

    fn apply(&mut self, result: &SparseResult) -> Result<()> {
        let (indices, values) = result.entries();
        for (index, applied) in self.indices.iter().zip(&mut self.applied) {
            if let Some(dense) = result.dense() {
                let mut value = [0f32];
                dense.read(*index as usize, &mut value)?;
                *applied += f64::from(value[0]);
            } else if let Ok(at) = indices.binary_search(index) {
                *applied += f64::from(values[at]);
            }
        }
        Ok(())
    }

    /// Coordinates where applied and kept are not what was given, up to rounding, or where ranks
    /// differ.
    fn count_wrong(
        &self,
        comm: &Communicator,
        sparse: &SparseAllreduce,
        gradients: &[Buffer<f32>],
        steps: u64,
    ) -> Result<u64> {
        let mut kept = Vec::with_capacity(self.indices.len());
        let mut given = Vec::with_capacity(self.indices.len());
        for index in &self.indices {
            let (mut tensor, mut at) = (0, *index);
            while at >= sparse.tensors()[tensor].count {
                at -= sparse.tensors()[tensor].count;
                tensor += 1;
            }
            let read = |buffer: &Buffer<f32>| {
                let mut value = [0f32];
                buffer.read(at as usize, &mut value)?;
                Ok(f64::from(value[0]))
            };
            let residual = sparse.residual(&sparse.tensors()[tensor].name);
            kept.push(residual.map_or(Ok(f64::NAN), read)?);
            given.push(read(&gradients[tensor])? * steps as f64);
        }
        let (mut low, mut high) = (self.applied.clone(), self.applied.clone());
        // Gradients may cancel in their sum, so the tolerance is a share of the sum of their
        // magnitudes.
        let mut size: Vec<f64> = given.iter().map(|g| g.abs()).collect();
        comm.all_reduce(&mut kept, ReduceOp::Sum)?;
        comm.all_reduce(&mut given, ReduceOp::Sum)?;
        comm.all_reduce(&mut size, ReduceOp::Sum)?;
        comm.all_reduce(&mut low, ReduceOp::Min)?;
        comm.all_reduce(&mut high, ReduceOp::Max)?;
        let is_right = |i: &usize| {
            let difference = (self.applied[*i] + kept[*i] - given[*i]).abs();
            low[*i] == high[*i] && difference <= 1e-4 * size[*i] + 1e-6
        };
        Ok((0..self.indices.len()).filter(|i| !is_right(i)).count() as u64)
    }
}

pub fn header(plan: &Plan, (ranks, transport): (u32, &str)) -> String {
    let args = &plan.args;
    format!(
        "# sparse-allreduce of {} f32 in {} tensors, density {}, {:?}, {:?}, {} ranks over {}\n\
         # words (4 bytes) a step; a time is that of the slowest rank, with the selection; comm: of the rank that began it last\n\
         {:>17} {:>12} {:>10} {:>10} {:>10} {:>12} {:>12} {:>13} {:>13} {:>10} {:>10} {:>11} {:>6}\n",
        plan.count(),
        plan.tensors.len(),
        args.density,
        args.mode,
        args.distribution,
        ranks,
        transport,
        "algorithm",
        "p50 us",
        "select",
        "comm",
        "apply",
        "sent max",
        "received max",
        "received mean",
        "control words",
        "local",
        "global",
        "busbw GB/s",
        "wrong",
    )
}

pub fn row(entry: &Entry) -> String {
    let (times, traffic) = (&entry.times, &entry.traffic);
    format!(
        "{:>17} {:>12.1} {:>10.1} {:>10.1} {:>10.1} {:>12} {:>12} {:>13.0} {:>13} {:>10} {:>10} {:>11.3} {:>6}\n",
        match entry.algorithm == entry.ran {
            true => entry.algorithm.to_owned(),
            false => format!("{}: {}", entry.algorithm, entry.ran),
        },
        times.time_us.p50,
        times.select_us.p50,
        times.communicate_us.p50,
        times.apply_us.p50,
        traffic.words_sent_max,
        traffic.words_received_max,
        traffic.words_received_mean,
        traffic.control_words,
        entry.selected_local,
        entry.selected_global,
        entry.busbw,
        entry.wrong.map_or("-".into(), |wrong| wrong.to_string()),
    )
}

/// Prints to stdout, or to stderr where the document goes to stdout.
pub fn print(plan: &Plan, text: &str) {
    // Nobody can be told that the output is closed.
    let _ = plan.args.job.print(text);
}
