//! [`Staged`]: calls that some rank makes on memory that is not registered, so that nobody tries
//! again what failed just now.
//!
//! No rank knows of the others' memory before the call, and to find out costs a meeting: a third to
//! all of a short operation. But all learn it from the same round, and a training step repeats its
//! calls. So a call that was repeated by staging is staged at once the next [`CALLS_STAGED`] times,
//! and then tried again.
//!
//! Every rank must hold the same at the start of every round, or two would run different
//! algorithms. It is changed by starts, whose order is that of the calls, and by the end of a round
//! that is repeated, before which no rank starts a later one.

use super::signature::Signature;

/// How often a call is staged before its memory is asked for again: what is found out in vain then
/// costs a hundredth.
const CALLS_STAGED: u32 = 64;

/// Calls remembered. Two of one place forget each other.
const PLACES: usize = 64;

/// What has been found out.
#[derive(Debug)]
pub struct Staged {
    /// A call, by what all ranks say of it, and how often it will still be staged.
    places: [(Signature, u32); PLACES],
    /// Nothing has been found out yet.
    is_empty: bool,
}

impl Staged {
    /// Of no call anything is known.
    pub fn new() -> Staged {
        Staged {
            places: [(Signature(0), 0); PLACES],
            is_empty: true,
        }
    }

    /// Some rank's memory was not registered.
    pub fn note(&mut self, signature: Signature) {
        self.places[place_of(signature)] = (signature, CALLS_STAGED);
        self.is_empty = false;
    }

    /// Whether the next call like this is staged at once.
    #[inline]
    pub fn holds(&self, signature: Signature) -> bool {
        !self.is_empty && {
            let (known, left) = self.places[place_of(signature)];
            known == signature && left > 0
        }
    }

    /// The next call like this starts, and is staged at once.
    pub fn count(&mut self, signature: Signature) {
        debug_assert!(self.holds(signature));
        self.places[place_of(signature)].1 -= 1;
    }
}

fn place_of(signature: Signature) -> usize {
    crate::prng::mix(signature.0) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_staged_for_a_while_and_then_tried_again() {
        let (mut staged, call, other) = (Staged::new(), Signature(7), Signature(8));
        assert!(!staged.holds(call));
        staged.note(call);
        for _ in 0..CALLS_STAGED {
            assert!(staged.holds(call) && !staged.holds(other));
            staged.count(call);
        }
        assert!(!staged.holds(call));
    }
}
