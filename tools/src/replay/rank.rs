//! One rank of a replay: fills gradients, announces them at their times, checks every sum.

use super::alone::Alone;
use super::print::{self, Results};
use super::summary::{self, Seen, Step};
use super::{Compute, FAILED, GOOD, Memory, Mode, Prepared, ReplayArgs};
use crate::system;
use linerate::transport::Time;
use linerate::whatif::{FlushRule, Gradient, Trace};
use linerate::{Buffer, Communicator, Fusion, FusionOptions, Result};
use linerate_job::progress::Progress;
use linerate_job::settings;
use std::time::Duration;

/// Steps before the measured ones: they map memory, fill caches and agree on the order.
const WARM_UP_STEPS: u32 = 1;

/// Elements that are filled or checked at a time.
const CHUNK: usize = 1 << 16;

/// The values repeat with this period. It is a prime, so that no chunk, block or page boundary is a
/// multiple of it.
const PERIOD: usize = 251;

/// Runs this rank and gives the exit code.
pub fn run_rank(args: &ReplayArgs, prepared: &Prepared) -> std::result::Result<u8, String> {
    let text = |error: linerate::Error| error.to_string();
    let trace = &prepared.trace;
    let comm = settings::join(prepared.config.clone()).map_err(text)?;
    let steps = replay(args, trace, &prepared.options, &comm).map_err(text)?;
    let wrong: u64 = steps.iter().map(|step| step.wrong).sum();
    if comm.rank() == 0 {
        let results = Results {
            args,
            trace,
            ranks: comm.ranks(),
            transport: comm.transport(),
            wrong,
            // The warm-up is checked like every step, and not measured.
            steps: &steps[WARM_UP_STEPS as usize..],
        };
        print::print_results(&results)?;
    }
    Ok(if wrong == 0 { GOOD } else { FAILED })
}

/// All steps, with the warm-up, on one communicator.
pub fn replay(
    args: &ReplayArgs,
    trace: &Trace,
    options: &FusionOptions,
    comm: &Communicator,
) -> Result<Vec<Step>> {
    let specs = trace.tensors();
    let fusion = match args.mode {
        Mode::Linerate => Fusion::new(comm, options.clone(), specs)?,
        Mode::Paper => {
            let plan = trace.plan(FlushRule::Paper, options)?.into_iter();
            let plan: Vec<_> = plan.map(|flush| flush.tensors).collect();
            Fusion::with_plan(comm, options.clone(), specs, &plan)?
        }
    };
    let mut runner = Runner {
        args,
        trace,
        comm,
        fusion,
        tensors: allocate(args, trace, comm)?,
        values: Values::new(args.seed, comm.rank(), comm.ranks()),
        packed: None,
    };
    let count = args.steps + WARM_UP_STEPS;
    let mut progress = Progress::new("steps", count as usize, comm.rank() == 0);
    let mut steps = Vec::with_capacity(count as usize);
    let mut first = None;
    for index in 0..count {
        steps.push(runner.run_step(index, &mut first)?);
        progress.advance(String::new());
    }
    progress.finish();
    Ok(steps)
}

/// One buffer per gradient, all parts of one allocation.
fn allocate(args: &ReplayArgs, trace: &Trace, comm: &Communicator) -> Result<Vec<Buffer<f32>>> {
    let total = (trace.bytes() as usize / size_of::<f32>()).max(1);
    let all = match args.memory {
        Memory::Registered => comm.alloc(total)?,
        Memory::Caller => Buffer::from_vec(vec![0f32; total]),
    };
    let mut start = 0;
    let tensor = |gradient: &Gradient| {
        let end = start + gradient.bytes as usize / size_of::<f32>();
        let part = all.range(start..end);
        start = end;
        part
    };
    Ok(trace.gradients.iter().map(tensor).collect())
}

/// What a rank needs to run steps.
pub struct Runner<'a> {
    pub args: &'a ReplayArgs,
    pub trace: &'a Trace,
    pub comm: &'a Communicator,
    pub fusion: Fusion,
    pub tensors: Vec<Buffer<f32>>,
    pub values: Values,
    /// Memory into which a flush that runs by itself is packed.
    pub packed: Option<Buffer<f32>>,
}

impl Runner<'_> {
    /// One step: fill, barrier, the backward pass at its times, wait, check, the last flush by
    /// itself, and an exchange of the times.
    fn run_step(&mut self, index: u32, first: &mut Option<Time>) -> Result<Step> {
        for (tensor, buffer) in self.tensors.iter().enumerate() {
            self.values.fill(buffer, tensor, index)?;
        }
        let computed_alone = self.compute_alone()?;
        let waited_before = system::waited_for_processor();
        let processor_before = system::processor_time();
        self.comm.barrier()?;
        let origin = self.fusion.now();
        let mut ready_us = 0.0;
        let mut ready = Vec::with_capacity(self.tensors.len());
        for (tensor, gradient) in self.trace.gradients.iter().enumerate() {
            ready_us += gradient.wait_us;
            let wait = Duration::from_secs_f64(gradient.wait_us / 1e6);
            self.compute(wait, origin.after(Duration::from_secs_f64(ready_us / 1e6)));
            ready.push(self.fusion.now());
            self.fusion.announce(tensor, &self.tensors[tensor])?;
        }
        let report = self.fusion.wait()?;
        let processor = system::processor_time().saturating_sub(processor_before);
        let waited = system::waited_for_processor().zip(waited_before);
        let wrong: u64 = (self.tensors.iter().enumerate())
            .map(|(tensor, buffer)| self.values.count_wrong(buffer, tensor, index))
            .sum::<Result<_>>()?;
        let alone = match report.flushes.last() {
            Some(flush) => self.run_alone(flush, index)?,
            None => Alone::default(),
        };
        let first = *first.get_or_insert(origin);
        let seen = Seen {
            alone,
            waited: waited.map_or(Duration::ZERO, |(after, before)| {
                after.saturating_sub(before)
            }),
            wrong,
            processor,
            computed_alone,
        };
        let words = summary::encode(&report, &ready, origin, first, seen);
        let words = self.gather(&words)?;
        Ok(summary::decode(&words, &report, ready.len()))
    }

    /// How long the computation takes that others can delay, while all ranks compute and none
    /// communicates; zero where nothing can delay it.
    fn compute_alone(&self) -> Result<Duration> {
        if self.args.compute != Compute::Work {
            return Ok(Duration::ZERO);
        }
        self.comm.barrier()?;
        let origin = self.fusion.now();
        self.compute(
            Duration::from_secs_f64(self.trace.backward_us() / 1e6),
            origin,
        );
        Ok(self.fusion.now().since(origin))
    }

    /// What stands for a computation of `wait`, whose gradient is `ready` in the trace.
    pub fn compute(&self, wait: Duration, ready: Time) {
        match self.args.compute {
            Compute::Sleep => {
                let rest = ready.since(self.fusion.now());
                if !rest.is_zero() {
                    std::thread::sleep(rest);
                }
            }
            Compute::Spin => {
                while self.fusion.now() < ready {
                    std::hint::spin_loop();
                }
            }
            Compute::Work => {
                let end = system::processor_time_of_thread() + wait;
                while system::processor_time_of_thread() < end {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// The words of all ranks, one rank after another.
    fn gather(&self, own: &[u64]) -> Result<Vec<u64>> {
        let mut all = vec![0; own.len() * self.comm.ranks() as usize];
        self.comm.all_gather(own, &mut all)?;
        Ok(all)
    }
}

/// The gradients' values: small integers that depend on seed, rank, tensor, element and step, so
/// that every sum is exact in f32 for any number of ranks and order, and stale or misplaced data
/// shows.
pub struct Values {
    seed: u64,
    /// This rank's values for the elements 0.. of phase 0; longer than a chunk by a period.
    own: Vec<f32>,
    /// The sums of all ranks' values, in the same order.
    sums: Vec<f32>,
}

impl Values {
    fn new(seed: u64, rank: u32, ranks: u32) -> Values {
        let of_rank = |rank: u32| (rank % 8) as f32;
        let of_ranks: f32 = (0..ranks).map(of_rank).sum();
        let base = (0..CHUNK + PERIOD).map(|element| (element % PERIOD + 1) as f32);
        // 16,384 ranks x (251 + 7) is below 2^24, where f32 stops counting.
        Values {
            seed,
            own: base.clone().map(|base| base + of_rank(rank)).collect(),
            sums: base.map(|base| base * ranks as f32 + of_ranks).collect(),
        }
    }

    fn phase(&self, tensor: usize, step: u32, element: usize) -> usize {
        let tensor_and_step =
            tensor * 31 + step as usize * 7 + (self.seed % PERIOD as u64) as usize;
        (tensor_and_step + element) % PERIOD
    }

    pub fn fill(&self, buffer: &Buffer<f32>, tensor: usize, step: u32) -> Result<()> {
        let count = buffer.len();
        for start in (0..count).step_by(CHUNK) {
            let phase = self.phase(tensor, step, start);
            buffer.write(start, &self.own[phase..][..CHUNK.min(count - start)])?;
        }
        Ok(())
    }

    pub fn count_wrong(&self, buffer: &Buffer<f32>, tensor: usize, step: u32) -> Result<u64> {
        let all = buffer.as_slice()?;
        let mut wrong = 0;
        for (index, values) in all.chunks(CHUNK).enumerate() {
            let start = index * CHUNK;
            let expected = &self.sums[self.phase(tensor, step, start)..][..values.len()];
            if values != expected {
                let differs = |(a, b): &(&f32, &f32)| a != b;
                wrong += values.iter().zip(expected).filter(differs).count() as u64;
            }
        }
        Ok(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correct_sums_count_as_right_and_each_changed_element_as_wrong() {
        let count = CHUNK + 1000;
        let buffer = Buffer::from_vec(vec![0f32; count]);
        let mut sums = vec![0f32; count];
        for rank in 0..3 {
            Values::new(9, rank, 3).fill(&buffer, 5, 2).unwrap();
            for (sum, value) in sums.iter_mut().zip(buffer.to_vec().unwrap()) {
                *sum += value;
            }
        }
        buffer.write(0, &sums).unwrap();
        let values = Values::new(9, 1, 3);
        assert_eq!(values.count_wrong(&buffer, 5, 2).unwrap(), 0);
        assert_eq!(
            values.count_wrong(&buffer, 5, 3).unwrap(),
            count as u64,
            "another step"
        );
        assert_eq!(
            values.count_wrong(&buffer, 6, 2).unwrap(),
            count as u64,
            "another tensor"
        );
        buffer.write(CHUNK, &[-1.0, -1.0]).unwrap();
        assert_eq!(values.count_wrong(&buffer, 5, 2).unwrap(), 2);
        let empty = buffer.range(..0);
        values.fill(&empty, 0, 0).unwrap();
        assert_eq!(values.count_wrong(&empty, 0, 0).unwrap(), 0);
    }

    #[test]
    fn two_ranks_replay_in_both_modes_without_a_wrong_value() {
        use clap::Parser;
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            args: ReplayArgs,
        }
        let trace = Trace::load("resnet50").unwrap();
        let gradients = trace.gradients[40..].to_vec();
        let trace = Trace { gradients, ..trace }.scaled(0.2);
        for (mode, memory) in [("linerate", "registered"), ("paper", "caller")] {
            let flags = ["replay", "--steps", "2", "--mode", mode, "--memory", memory];
            let args = Line::parse_from(flags).args;
            let options = args.fusion_options().unwrap();
            let job = format!("replay-{mode}-{}", std::process::id());
            let run = |rank| {
                let comm = Communicator::join(rank, 2, &job, linerate::Config::default()).unwrap();
                replay(&args, &trace, &options, &comm).unwrap()
            };
            let steps = std::thread::scope(|scope| {
                let other = scope.spawn(|| run(1));
                let steps = run(0);
                other.join().unwrap();
                steps
            });
            assert_eq!(steps.len(), 3);
            for step in steps {
                assert_eq!((step.wrong, step.ranks.len()), (0, 2));
                let bytes: u64 = step.slowest.flushes.iter().map(|f| f.bytes).sum();
                assert_eq!(bytes, trace.bytes());
            }
        }
    }
}
