//! Waiting takes the operation.
use linerate::Communicator;

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let operation = communicator.start_barrier().unwrap();
    operation.wait().unwrap();
    operation.wait().unwrap(); //~ E0382
}
