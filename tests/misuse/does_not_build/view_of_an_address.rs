//! A view is made of an address only where somebody promises that the memory stays.
use linerate::transport::View;

fn main() {
    let mut bytes = [0u8; 8];
    let _ = View::new(bytes.as_mut_ptr(), 8); //~ E0133
}
