//! A builder and a group borrow their communicator.
use linerate::{Collective, CollectiveBuilder, Communicator, DataType, Group};

fn sum() -> CollectiveBuilder<'static> {
    let communicator = Communicator::from_env().unwrap();
    communicator.collective(Collective::AllReduce, DataType::F32, 8) //~ E0515
}

fn group() -> Group<'static> {
    let communicator = Communicator::from_env().unwrap();
    communicator.group() //~ E0515
}

fn main() {
    sum();
    group();
}
