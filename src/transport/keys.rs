//! [`RegionKeys`]: keys of registered regions, none of which is given twice.

use crate::error::{Error, Result};
use crate::memory::RegionKey;

/// The next key.
#[derive(Debug)]
pub(super) struct RegionKeys(u32);

impl RegionKeys {
    pub fn new() -> RegionKeys {
        RegionKeys(1)
    }

    /// Gives a key that no region has had.
    pub fn take(&mut self) -> Result<RegionKey> {
        if self.0 == u32::MAX {
            return Err(Error::Exhausted {
                what: "a registration".into(),
                limit: format!("{} keys were used, and keys are never reused", u32::MAX - 1),
                remedy: "register larger regions and keep them".into(),
            });
        }
        self.0 += 1;
        Ok(RegionKey(self.0 - 1))
    }
}

/// What was registered under this key, or the error that nothing is (any more).
pub(super) fn known<T>(key: RegionKey, found: Option<T>) -> Result<T> {
    found.ok_or_else(|| Error::invalid(format!("region {} is not registered", key.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_before_they_begin_anew() {
        let mut keys = RegionKeys(u32::MAX - 1);
        assert_eq!(keys.take().unwrap(), RegionKey(u32::MAX - 1));
        for _ in 0..2 {
            let text = keys.take().unwrap_err().to_string();
            assert!(text.contains("never reused"), "{text}");
        }
        assert_eq!(RegionKeys::new().take().unwrap(), RegionKey(1));
    }
}
