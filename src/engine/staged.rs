//! [`Staged`]: the calls that some rank has made on memory that is not registered. Ranks look here,
//! so that they do not try in vain to reach the buffers of such a call again.
//!
//! No rank knows before a call whether the others' memory is registered, and to find out takes an
//! exchange of signals: a third to all of the time of a short operation. But all ranks learn it
//! from the same round, and a training step repeats its calls. So if ranks had to repeat a call,
//! they stage the next [`CALLS_STAGED`] calls like it without a trial, and then try again.
//!
//! At the start of a round this state must be the same on every rank, or two ranks would run
//! different algorithms. Two events change it. One is the start of a round, and rounds start in the
//! order of the calls. The other is the end of a round that is to be repeated, and no rank starts a
//! later round before that.

use super::signature::Signature;

/// How often a call is staged before ranks try to reach its buffers again: the trials then cost
/// about a hundredth of the time.
const CALLS_STAGED: u32 = 64;

/// Calls remembered. A call replaces an earlier one that has its place.
const PLACES: usize = 64;

/// The calls that are to be staged.
#[derive(Debug)]
pub struct Staged {
    /// The signature of a call, and how often the call will still be staged.
    places: [(Signature, u32); PLACES],
    /// No call has had to be staged yet.
    is_empty: bool,
}

impl Staged {
    /// No call is known.
    pub fn new() -> Staged {
        Staged {
            places: [(Signature(0), 0); PLACES],
            is_empty: true,
        }
    }

    /// Some rank's memory was not registered in a call with this signature.
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

    /// Counts a call like this, which starts now and is staged.
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
