//! Nobody declares an element type that has another size than it says.
use linerate::{DataType, Element};

#[derive(Clone, Copy, Debug, PartialEq)]
struct Small(u8);

impl Element for Small { //~ E0277
    const DTYPE: DataType = DataType::F64;
}

fn main() {}
