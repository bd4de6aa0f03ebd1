//! A sparse allreduce belongs to one thread at a time.
use linerate::{Buffer, SparseAllreduce};

fn steps(sparse: &mut SparseAllreduce, gradient: &[Buffer<f32>]) {
    std::thread::scope(|scope| {
        scope.spawn(|| sparse.run(gradient));
        scope.spawn(|| sparse.run(gradient)); //~ E0499
    });
}

fn main() {
    let _ = steps;
}
