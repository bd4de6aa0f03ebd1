//! The word by which a sender takes back memory that a receiver may still read, without asking it:
//! messages that lie in its regions or in its address space, and regions that the receiver has
//! mapped.
//!
//! The sender stores the number from which on its messages are valid, and its memory changes only
//! after that. The receiver looks at the word after its last read, and before anybody acts on what
//! it read. So it acts on no bytes that were changed.
//!
//! `tests/loom.rs` compiles this file against a model of memory and finds a failure as soon as one
//! ordering is weaker.

use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};

/// Takes back all memory of messages before number `valid_from`, which is not 0, and all regions.
/// The caller lets nobody change them before this returns.
pub fn take_back(word: View, valid_from: u64) {
    // Publishes what this rank has said, such as the cause of its failure, to a rank that sees this
    // in `valid_from`.
    kernel::word(&word, 0).store(valid_from, Ordering::Release);
    // Pairs with the fence in `valid_from`: everything that is stored to the memory comes after the
    // word. The fence is sequentially consistent, because less does not order streaming stores,
    // which the memory's owner may use.
    fence(Ordering::SeqCst);
}

/// The number of the sender's first message that is valid; 0: it has taken nothing back. Asked
/// after the last read of its memory. On x86 it is one plain load.
pub fn valid_from(word: View) -> u64 {
    // Pairs with the fence in `take_back`: a rank that has read changed bytes sees the word that
    // was stored before them.
    fence(Ordering::Acquire);
    // Pairs with the release store in `take_back`: the news of the failure lies in the ring.
    kernel::word(&word, 0).load(Ordering::Acquire)
}
