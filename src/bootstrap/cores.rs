//! [`Cores`]: the cores that a process may run on. Whether the ranks of a host fit its cores is a
//! question about all of them together: ranks that are bound to one core each have as many cores as
//! ranks, ranks that share one core have one.

use rustix::thread::{CpuSet, sched_getaffinity};

/// One bit for each core that the kernel's calls know.
pub(super) const BYTES: usize = CpuSet::MAX_CPU / 8;

/// A set of cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores(pub(super) [u8; BYTES]);

impl Cores {
    /// Those of the calling thread; none where the kernel has more cores than the call has room
    /// for.
    pub fn own() -> Cores {
        let mut bits = [0; BYTES];
        if let Ok(set) = sched_getaffinity(None) {
            for core in (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)) {
                bits[core / 8] |= 1 << (core % 8);
            }
        }
        Cores(bits)
    }

    /// Those that are in one of two sets.
    pub fn union(self, other: Cores) -> Cores {
        Cores(std::array::from_fn(|index| self.0[index] | other.0[index]))
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_of_ranks_are_counted_once() {
        let of = |core: usize| {
            let mut bits = [0; BYTES];
            bits[core / 8] |= 1 << (core % 8);
            Cores(bits)
        };
        assert_eq!(of(0).union(of(0)).count(), 1);
        assert_eq!(of(0).union(of(9)).count(), 2);
        assert_eq!(of(1023).count(), 1);
    }
}
