//! The C interface of linerate: `liblinerate_c` and `include/linerate.h`, which is its manual and
//! is made of the documentation of these files.
//!
//! Every entry takes numbers and addresses, checks them (`pointers.rs`), finds the objects of
//! handles (`objects.rs`, `table.rs`) and calls the library; errors and panics become a status
//! (`status.rs`). What C promises about its memory is the `# Safety` of the entries.
#![allow(unsafe_code)]

mod call;
mod communicator;
mod config;
mod exchange;
mod fusion;
mod memory;
mod named;
mod objects;
mod partial;
mod pointers;
mod queue;
mod sparse;
mod status;
mod table;
mod tagged;
mod tensors;
mod whatif;
mod words;

pub use call::{
    LINERATE_FOREVER, linerate_batch_run, linerate_batch_start, linerate_call, linerate_free,
    linerate_group_run, linerate_group_start, linerate_operation, linerate_run, linerate_start,
    linerate_test, linerate_transfer, linerate_wait,
};
pub use communicator::*;
pub use config::{
    linerate_config, linerate_config_create, linerate_config_free, linerate_config_set,
};
pub use exchange::linerate_exchange;
pub use fusion::{
    linerate_flush_report, linerate_fusion, linerate_fusion_announce, linerate_fusion_create,
    linerate_fusion_end, linerate_fusion_flush, linerate_fusion_free, linerate_fusion_notify,
    linerate_fusion_options, linerate_fusion_wait, linerate_step_report,
};
pub use memory::{
    LINERATE_MEMORY_HOST, linerate_alloc, linerate_deregister, linerate_memory,
    linerate_memory_bytes, linerate_memory_free, linerate_register, linerate_register_memfd,
};
pub use named::*;
pub use partial::*;
pub use queue::{
    linerate_completion, linerate_queue, linerate_queue_create, linerate_queue_fd,
    linerate_queue_free, linerate_queue_running, linerate_queue_wait,
};
pub use sparse::*;
pub use status::*;
pub use tagged::{
    LINERATE_ANY_RANK, linerate_cancel_receive, linerate_message, linerate_message_start,
    linerate_source,
};
pub use tensors::linerate_tensor;
pub use whatif::*;
pub use words::*;

/// Major version of the binary interface, which is also in the name of the library. A program runs
/// with every library of its major version whose minor version is not lower. It is not the version
/// of the crate.
pub const LINERATE_ABI_MAJOR: u32 = 0;
/// Minor version of the binary interface: it grows with each function, constant or field.
pub const LINERATE_ABI_MINOR: u32 = 5;

/// The version of the binary interface of the library that runs: 65536 * major + minor. Threads:
/// any. After fork: as before.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_abi_version() -> u32 {
    LINERATE_ABI_MAJOR << 16 | LINERATE_ABI_MINOR
}
