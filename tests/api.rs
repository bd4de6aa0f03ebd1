//! What ranks in the threads of one process show of the public API: buffers and operations, fusion,
//! groups of operations. One program, so that it is linked once.

#[path = "api/executor.rs"]
mod executor;
#[path = "api/face.rs"]
mod face;
#[path = "api/fusion.rs"]
mod fusion;
#[path = "groups/mod.rs"]
mod groups;
#[path = "api/partial_fusion.rs"]
mod partial_fusion;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "groups/threads.rs"]
mod threads;
