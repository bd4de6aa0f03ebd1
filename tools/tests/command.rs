//! The `linerate` command from outside. One program, so that it is linked once; each file tests one
//! command, or one thing that several commands have in common.

#[path = "command/commands.rs"]
mod commands;
#[path = "command/doctor.rs"]
mod doctor;
#[path = "command/experiments.rs"]
mod experiments;
#[path = "command/explain.rs"]
mod explain;
#[path = "command/faults.rs"]
mod faults;
#[path = "command/hosts.rs"]
mod hosts;
#[path = "command/launchers.rs"]
mod launchers;
#[path = "command/oktopk.rs"]
mod oktopk;
#[path = "command/outputs.rs"]
mod outputs;
#[path = "command/perf.rs"]
mod perf;
#[path = "command/profile.rs"]
mod profile;
#[path = "command/push_pull.rs"]
mod push_pull;
#[path = "command/refusals.rs"]
mod refusals;
#[path = "command/replay_plan.rs"]
mod replay_plan;
#[path = "command/report.rs"]
mod report;
#[path = "command/sim.rs"]
mod sim;
#[path = "command/simulated_bench.rs"]
mod simulated_bench;
#[path = "command/slurm.rs"]
mod slurm;
#[path = "command/sparse.rs"]
mod sparse;
#[path = "command/start.rs"]
mod start;
#[path = "command/tls.rs"]
mod tls;
#[path = "command/whatif.rs"]
mod whatif;
