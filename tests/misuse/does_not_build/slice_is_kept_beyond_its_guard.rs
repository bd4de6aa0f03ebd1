//! Elements of a guard must not be kept after the guard.
use linerate::Buffer;

fn main() {
    let buffer = Buffer::from_vec(vec![0.0f32; 8]);
    let mut guard = buffer.as_mut_slice().unwrap();
    let element = &mut guard[0];
    drop(guard); //~ E0505
    *element = 1.0;
}
