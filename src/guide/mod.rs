//! Guides: one page for each task, with programs that are compiled.
//!
//! | I want to | read |
//! |---|---|
//! | write a training loop | [`training`] |
//! | start a job, protect it, and act on its errors | [`operating`] |
//! | look up a `LINERATE_` variable | [`settings`] |
//! | measure, launch or diagnose with the `linerate` command | [`commands`] |
//! | make a job faster | [`tuning`] |
//! | know whether the network is the bottleneck, and what another one would do | [`network`] |
//! | use RDMA NICs, or RDMA without a NIC | [`verbs`] |
//! | not wait for slow ranks | [`partial`] |
//! | train with a parameter server | [`server`] |
//! | send only the largest entries of a gradient | [`sparse`] |
//! | see which results of papers were reproduced | [`papers`] |
//! | know what was tested, and where | [`verified`] |
//!
//! This module has no code. Read [`Communicator`](crate::Communicator) first if you want the
//! reference instead.

pub mod operating {
    #![doc = include_str!("operating.md")]
}

pub mod settings {
    #![doc = include_str!("settings.md")]
}

pub mod commands {
    #![doc = include_str!("commands.md")]
}

pub mod network {
    #![doc = include_str!("network.md")]
}

pub mod verbs {
    #![doc = include_str!("verbs.md")]
}

pub mod ofi {
    #![doc = include_str!("ofi.md")]
}

pub mod partial {
    #![doc = include_str!("partial.md")]
    //!
    //! # A program
    //!
    //! Rank 0 is slow in this program (`examples/partial.rs`), and the others do not wait for it.
    //!
    //! ```no_run
    #![doc = include_str!("../../examples/partial.rs")]
    //! ```
}

pub mod server {
    #![doc = include_str!("server.md")]
}

pub mod sparse {
    #![doc = include_str!("sparse.md")]
    //!
    //! # A program
    //!
    //! Each step of this program (`examples/sparse.rs`) sums 100 of 10,000 entries.
    //!
    //! ```no_run
    #![doc = include_str!("../../examples/sparse.rs")]
    //! ```
}

pub mod training {
    #![doc = include_str!("training.md")]
    //!
    //! # Data-parallel training
    //!
    //! `examples/train.rs` trains softmax regression on images of digits. Every rank has its share
    //! of the images. All ranks begin with the weights of rank 0, because the program broadcasts
    //! them. Each epoch sums the gradients and the numbers of images, and divides by their total,
    //! so that shares of different size weigh what they should.
    //!
    //! ```no_run
    #![doc = include_str!("../../examples/train.rs")]
    //! ```
    //!
    //! # Overlap of computation and communication
    //!
    //! `examples/overlap.rs` announces each gradient to a [`Fusion`](crate::Fusion) when it is
    //! computed, last layer first. The fusion buffer packs gradients together and reduces them
    //! while the backward pass goes on. `wait` returns when every gradient of the step is reduced,
    //! with a report of what was flushed when.
    //!
    //! ```no_run
    #![doc = include_str!("../../examples/overlap.rs")]
    //! ```
    //!
    //! # Recovery
    //!
    //! In `examples/recover.rs` a rank dies in the middle of the job. Every survivor gets an error,
    //! and `rebuild` makes a communicator of the survivors. One survivor may have finished a step
    //! whose end another one did not see, so all of them take the weights of the rank that is
    //! furthest. The step that failed is repeated from gradients that are unchanged.
    //!
    //! ```no_run
    #![doc = include_str!("../../examples/recover.rs")]
    //! ```
    //!
    //! Two more programs have guides of their own: [partial](crate::guide::partial) and
    //! [sparse](crate::guide::sparse).
}

pub mod tuning {
    #![doc = include_str!("tuning.md")]
}

pub mod papers {
    #![doc = include_str!("papers.md")]
}

pub mod verified {
    #![doc = include_str!("verified.md")]
}
