//! Nobody lends memory to a call by hand: what can be lent is named by the library.
use linerate::{Input, Lend};

struct Wild;

impl Lend for Wild {} //~ E0046
impl Input<f32> for Wild {}

fn main() {}
