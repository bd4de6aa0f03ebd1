//! An address becomes a buffer only where somebody promises that the memory stays.
use linerate::Communicator;

fn main() {
    let communicator = Communicator::from_env().unwrap();
    let mut gradients = vec![0.0f32; 8];
    communicator.adopt(gradients.as_mut_ptr(), 8).unwrap(); //~ E0133
}
