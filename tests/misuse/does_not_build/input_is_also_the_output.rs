//! A blocking call does not take a slice to read and to write at once.
use linerate::{Communicator, ReduceOp};

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let mut gradients = vec![0.0f32; 8];
    communicator.all_reduce_into(&gradients, &mut gradients, ReduceOp::Sum).unwrap(); //~ E0502
}
