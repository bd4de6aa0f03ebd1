//! A slice that is only lent to be read is no output.
use linerate::{Communicator, ReduceOp};

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let gradients = vec![0.0f32; 8];
    communicator.all_reduce(&gradients, ReduceOp::Sum).unwrap(); //~ E0277
}
