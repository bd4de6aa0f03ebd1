//! An [`Entry`] of the order as a number of 32 bits, which the first shard puts into the words of
//! the others.

use crate::staleness::Entry;

/// The kinds, in the upper bits; the lower ones are the number of the worker.
const PUSH: u32 = 0;
const END_OF_ROUND: u32 = 1 << 28;
const REQUEST: u32 = 2 << 28;
const EVICT: u32 = 3 << 28;
const REPLACE: u32 = 4 << 28;
const KIND: u32 = 7 << 28;

/// Of a push.
const IS_LAST: u32 = 1 << 26;
const IS_SKIPPED: u32 = 1 << 27;

const WORKER: u32 = IS_LAST - 1;

/// The number of an entry.
pub fn value_of(entry: Entry) -> u32 {
    match entry {
        Entry::Push {
            worker,
            is_last,
            is_skipped,
        } => {
            let last = if is_last { IS_LAST } else { 0 };
            let skipped = if is_skipped { IS_SKIPPED } else { 0 };
            PUSH | last | skipped | worker
        }
        Entry::EndOfRound => END_OF_ROUND,
        Entry::Request(worker) => REQUEST | worker,
        Entry::Evict(worker) => EVICT | worker,
        Entry::Replace(worker) => REPLACE | worker,
    }
}

/// The entry that a number stands for, of which the worker is below `workers`.
pub fn entry_of(value: u32, workers: usize) -> Option<Entry> {
    let worker = value & WORKER;
    let entry = match value & KIND {
        PUSH => Entry::Push {
            worker,
            is_last: value & IS_LAST != 0,
            is_skipped: value & IS_SKIPPED != 0,
        },
        END_OF_ROUND => Entry::EndOfRound,
        REQUEST => Entry::Request(worker),
        EVICT => Entry::Evict(worker),
        REPLACE => Entry::Replace(worker),
        _ => return None,
    };
    ((worker as usize) < workers).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::RANKS_MAX;

    #[test]
    fn entries_survive_their_numbers_and_others_are_refused() {
        let workers = RANKS_MAX as usize;
        for worker in [0, 1, RANKS_MAX - 1] {
            for (is_last, is_skipped) in [(false, false), (true, false), (true, true)] {
                let push = Entry::Push {
                    worker,
                    is_last,
                    is_skipped,
                };
                assert_eq!(entry_of(value_of(push), workers), Some(push));
            }
            let of_worker = [Entry::Request, Entry::Evict, Entry::Replace];
            for entry in of_worker.map(|kind| kind(worker)) {
                assert_eq!(entry_of(value_of(entry), workers), Some(entry));
                assert_eq!(entry_of(value_of(entry), worker as usize), None);
            }
        }
        let end = Entry::EndOfRound;
        assert_eq!(entry_of(value_of(end), workers), Some(end));
        assert_eq!(entry_of(u32::MAX, workers), None);
    }
}
