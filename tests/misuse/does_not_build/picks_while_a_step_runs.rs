//! What a sparse allreduce shows of its picks is of one step: the next one takes it back.
use linerate::{Buffer, SparseAllreduce};

fn step(sparse: &mut SparseAllreduce, gradient: &[Buffer<f32>]) {
    let picks = sparse.picks_of(0);
    sparse.run(gradient).unwrap(); //~ E0502
    picks.count();
}

fn main() {
    let _ = step;
}
