//! The communicators that a simulation shows are borrowed from it while it moves.
use linerate::Simulation;

fn run(simulation: &mut Simulation) {
    let first = &simulation.communicators()[0];
    simulation.run(|_| true).unwrap(); //~ E0502
    first.rank();
}

fn main() {
    let _ = run;
}
