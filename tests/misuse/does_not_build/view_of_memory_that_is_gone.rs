//! A view may outlive its region, so that using it takes a promise.
use linerate::transport::{Region, View};

fn main() {
    let view: View = Region::private(4096).unwrap().view();
    view.store(0, 1u32); //~ E0133
}
