//! One rank of the experiment: all runs of all kinds, one after another.

use super::plan::{self, Trial};
use super::train::{Learner, Run, train};
use super::{EagerSgdArgs, Workload, print};
use linerate::unstable::prng::mix;
use linerate::{Communicator, Config};
use linerate_job::progress::Progress;
use linerate_job::settings;

/// One kind and its runs.
#[derive(Debug)]
pub struct Outcome {
    pub trial: Trial,
    pub runs: Vec<Run>,
}

/// Runs this rank; rank 0 prints.
pub fn run_rank(args: &EagerSgdArgs, config: Config) -> Result<(), String> {
    let text = |error: linerate::Error| error.to_string();
    let comm = settings::join(config).map_err(text)?;
    let outcomes = run_all(args, &comm).map_err(text)?;
    if comm.rank() == 0 {
        print::print(args, Some((comm.ranks(), comm.transport())), &outcomes)?;
    }
    Ok(())
}

fn run_all(args: &EagerSgdArgs, comm: &Communicator) -> linerate::Result<Vec<Outcome>> {
    let trials_of = |workload: &Workload| plan::trials(*workload, comm.ranks(), args.staleness);
    let trials: Vec<Trial> = args.workload.iter().flat_map(trials_of).collect();
    let count = trials.len() * args.runs as usize;
    let mut progress = Progress::new("runs", count, comm.rank() == 0);
    let mut learner = None;
    let mut outcomes = Vec::new();
    for trial in trials {
        // Trials of one task share a learner: the hyperplane's samples take a second to make.
        let learner = match &mut learner {
            Some((task, learner)) if *task == trial.task => learner,
            _ => {
                let place = (comm.rank(), comm.ranks());
                let made = (trial.task, Learner::new(trial.task, place, args.seed));
                &mut learner.insert(made).1
            }
        };
        let mut runs = Vec::new();
        for run in 0..args.runs {
            let seed = mix(args.seed ^ mix(u64::from(run)));
            runs.push(train(
                comm,
                learner,
                &trial,
                (args.steps, args.scale),
                seed,
            )?);
            progress.advance(trial.scheme.name());
        }
        outcomes.push(Outcome { trial, runs });
    }
    progress.finish();
    Ok(outcomes)
}
