//! The `linerate` command.

mod replay;

use clap::Parser;

/// Kernel-bypass collectives: measure, launch, replay.
#[derive(Parser)]
#[command(name = "linerate", version)]
enum Command {
    Replay(replay::ReplayArgs),
}

fn main() {
    let code = match Command::parse() {
        Command::Replay(args) => replay::run(&args, |_ranks| {
            eprintln!("linerate: launch is not wired up yet");
            1
        }),
    };
    std::process::exit(code);
}
