//! Buffers hold types for which every pattern of bits is a value.
use linerate::Buffer;

fn main() {
    let _ = Buffer::from_vec(vec![true, false]); //~ E0277
}
