//! A rank may send any byte, and a `bool` has two: `Bool` is the element.
use linerate::elements::Bool;
use linerate::{Buffer, Communicator, Result};

fn main() -> Result<()> {
    let communicator = Communicator::from_env()?;
    let truth: Buffer<Bool> = communicator.alloc(8)?;
    let _ = communicator.alloc::<bool>(8)?; //~ E0277
    drop(truth);
    Ok(())
}
