//! An RDMA device as a library: the functions of libibverbs, between processes of one machine,
//! without root and without a driver.
//!
//! A program that loads libibverbs loads this instead (`LINERATE_IBVERBS_LIB` for linerate; else
//! `LD_LIBRARY_PATH`) and finds devices with reliable connections, datagrams, shared receive
//! queues, completion channels and asynchronous events. `SOFT_VERBS` sets their wire, limits and
//! failures (`settings.rs`, `faults.rs`).
//!
//! # How it moves bytes
//!
//! A device has no thread. Each process has memory that its peers map (`arena.rs`): its keys, queue
//! pairs, receives and completions. A process that posts a request looks the peer's key up there,
//! moves the bytes by `process_vm_writev` or `process_vm_readv`, or where they lie in a memfd by
//! mapping that (`shared.rs`), takes the peer's receive and leaves its completion. Each completion
//! has a time: when a wire of the chosen rate and latency, which all processes of a host share,
//! would have brought it (`network.rs`). It cannot be polled earlier, and then it wakes a process
//! that sleeps on the channel (`channel.rs`).
//!
//! # What differs from a device
//!
//! * Bytes are in the peer's memory when the request is posted, or by `land` later. A program that
//!   polls memory in place of completions sees them before the wire would have brought them.
//! * The processor copies. `bytes=none` leaves long messages where they are.
//! * No congestion, no loss of packets, no InfiniBand addresses, no unreliable connections.
#![allow(unsafe_code)]

mod arena;
mod channel;
mod datagram;
mod faults;
mod lock;
mod moving;
mod network;
mod pair;
mod ports;
mod process;
mod profile;
mod receives;
mod request;
mod settings;
mod shared;
mod socket;
pub mod verbs;
mod waker;
