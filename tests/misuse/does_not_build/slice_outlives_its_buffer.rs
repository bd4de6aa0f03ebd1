//! A slice of a buffer must not outlive the buffer's handle.
use linerate::{Buffer, BufferRef};

fn slice() -> BufferRef<'static, f32> {
    let buffer = Buffer::from_vec(vec![0.0f32; 8]);
    buffer.as_slice().unwrap() //~ E0515
}

fn main() {
    slice();
}
