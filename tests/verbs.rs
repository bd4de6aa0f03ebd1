//! The `verbs` provider on a real device: faults at every place where a transfer can be cut,
//! memory, and what is left behind.
//!
//! Two ranks in one thread, on one device; `tools/rdma-vm run -- TEST` runs this where there is
//! none, and skips it says which of it was skipped otherwise. Ranks on two hosts, and cables that
//! are pulled: `tools/rdma_vm/check_verbs.py`, which starts [`child_entry`] on both. What every
//! transport must do is in `conformance.rs`, and runs on this one too where a device is.

mod access;
#[path = "verbs/faults.rs"]
mod faults;
#[path = "verbs/hosts.rs"]
mod hosts;
#[path = "verbs/left.rs"]
mod left;
#[path = "verbs/pair.rs"]
mod pair;
#[path = "verbs/paths.rs"]
mod paths;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "verbs/refusals.rs"]
mod refusals;
#[path = "verbs/registered.rs"]
mod registered;
#[path = "verbs/removal.rs"]
mod removal;
#[path = "verbs/seeds.rs"]
mod seeds;
#[path = "verbs/words.rs"]
mod words;

/// What this program does where it is started as a rank.
#[test]
fn child_entry() {
    match std::env::var("LINERATE_TEST_ROLE").as_deref() {
        Ok("sums") => hosts::sum_until_told(),
        Ok("seeded") => seeds::sum_under_faults(),
        _ => {}
    }
}
