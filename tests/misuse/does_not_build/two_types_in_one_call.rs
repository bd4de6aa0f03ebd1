//! Input and output have one element type.
use linerate::{Communicator, ReduceOp};

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let input = communicator.alloc::<f32>(8).unwrap();
    let output = communicator.alloc::<u8>(8).unwrap();
    communicator.start_all_reduce_into(&input, &output, ReduceOp::Sum).unwrap(); //~ E0308
}
