//! The `verbs` provider: RDMA. What can be known of devices without opening them.

pub mod achievable;
pub mod choose;
pub mod gid;
pub mod sysfs;
#[cfg(test)]
mod sysfs_tests;
