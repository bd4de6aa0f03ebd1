//! A started operation may outlive every borrow of a slice, so it takes buffers alone.
use linerate::{Communicator, ReduceOp};

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let mut gradients = vec![0.0f32; 8];
    communicator.start_all_reduce(&mut gradients, ReduceOp::Sum).unwrap(); //~ E0308
}
