//! The two words of a shard that say which version of its weights lies where, and how a worker
//! notices that what it has read is not of one version.
//!
//! The weights of two versions lie beside each other, and the next one takes the place of the older
//! of them. A worker reads the version, then the weights in its place, and then the last version
//! that the shard has begun to write. If that is the next one at most, nobody has written there
//! meanwhile. Source: H.-J. Boehm, "Can Seqlocks Get Along with Programming Language Memory
//! Models?" (MSPC 2012), with a place for each parity.
//!
//! The fences are sequentially consistent, because less does not order streaming stores, by which
//! the shard may write.
//!
//! `tests/loom.rs` compiles this file against a model of memory and finds a failure as soon as one
//! fence is missing.

use crate::kernel;
use crate::memory::View;
use crate::sync::{Ordering, fence};

/// The word with the version of the weights, and the word with the last version that the shard has
/// begun to write: bytes from the first one on.
const VERSION_AT: usize = 0;
const BEGUN_AT: usize = 8;

/// The shard, of which these are the words, writes weights of this version from now on.
pub fn begin(words: &View, version: u64) {
    kernel::word(words, BEGUN_AT).store(version, Ordering::Relaxed);
    // Who reads a weight of the new version in the place of an older one then sees that it is being
    // written.
    fence(Ordering::SeqCst);
}

/// It has written them.
pub fn end(words: &View, version: u64) {
    // The weights are there before the version that names them.
    fence(Ordering::SeqCst);
    kernel::word(words, VERSION_AT).store(version, Ordering::Relaxed);
}

/// A worker has read the version, and reads weights from now on.
pub fn read_weights_after() {
    fence(Ordering::SeqCst);
}

/// A worker has read weights, and reads the last version that was begun from now on.
pub fn read_begun_after() {
    fence(Ordering::SeqCst);
}

/// Whether weights that were read as those of `version` are that, if `begun` was read afterwards.
pub fn is_whole(version: u64, begun: u64) -> bool {
    begun <= version + 1
}
