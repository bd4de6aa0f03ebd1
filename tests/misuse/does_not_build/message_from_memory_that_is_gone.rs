//! A transport reads a view later, so that posting it takes a promise.
use linerate::transport::{Region, Transport};

fn send(transport: &mut dyn Transport) {
    let view = Region::private(4096).unwrap().view();
    transport.post_send(0, 1, 0, view, 2).unwrap(); //~ E0133
}

fn main() {
    let _ = send;
}
