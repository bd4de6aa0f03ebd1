//! [`Message`]: bytes for a peer, which may lie in somebody else's memory.

use crate::kernel;
use crate::memory::View;
use std::any::Any;
use std::sync::Arc;

/// Bytes for a peer, or how many there would be.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Message {
    /// The bytes; none in a message that is size-only or whose bytes lie elsewhere.
    pub data: Vec<u8>,
    /// Where they lie instead, which spares a copy. Bytes that have come lie there until the
    /// machine's next request, bytes to send until they have been sent.
    pub seen: Option<Box<Seen>>,
    /// Number of bytes.
    pub bytes: u64,
    /// How many of them are no entries: sizes and states.
    pub header_bytes: u64,
}

/// Bytes in somebody else's memory, which lives as long as this.
#[derive(Clone, Debug)]
pub struct Seen {
    view: View,
    held: Arc<dyn Any + Send + Sync>,
}

impl Seen {
    /// The bytes of a view, which is valid as long as `held` is.
    pub fn new(view: View, held: Arc<dyn Any + Send + Sync>) -> Seen {
        Seen { view, held }
    }

    /// A part of these bytes.
    pub(super) fn part(&self, start: usize, bytes: usize) -> Seen {
        Seen::new(self.view.part(start, bytes), self.held.clone())
    }

    /// The bytes.
    pub fn view(&self) -> View {
        self.view
    }
}

impl PartialEq for Seen {
    fn eq(&self, other: &Seen) -> bool {
        self.view == other.view
    }
}

impl Message {
    /// A message of entries.
    pub fn of(data: Vec<u8>) -> Message {
        Message {
            bytes: data.len() as u64,
            data,
            ..Message::default()
        }
    }

    /// A message whose bytes are those of a view, which is valid as long as `held` is.
    pub fn seen(view: View, held: Arc<dyn Any + Send + Sync>) -> Message {
        Message::lying(Seen::new(view, held))
    }

    /// A message whose bytes lie there.
    pub(super) fn lying(seen: Seen) -> Message {
        Message {
            bytes: seen.view.len_bytes() as u64,
            seen: Some(Box::new(seen)),
            ..Message::default()
        }
    }

    /// Bytes that are there; none in a size-only message.
    pub fn len_bytes(&self) -> usize {
        match &self.seen {
            Some(seen) => seen.view.len_bytes(),
            None => self.data.len(),
        }
    }

    /// Copies the bytes from `start` on.
    ///
    /// # Panics
    /// If they do not lie inside.
    #[inline]
    pub fn read(&self, start: usize, target: &mut [u8]) {
        match &self.seen {
            Some(seen) => kernel::read(seen.view, start, target),
            None => target.copy_from_slice(&self.data[start..start + target.len()]),
        }
    }

    /// The word of 8 bytes with this index.
    pub(super) fn word(&self, index: usize) -> u64 {
        let mut word = [0; 8];
        self.read(8 * index, &mut word);
        u64::from_le_bytes(word)
    }

    /// The `bytes` bytes from `start` on, as far as they are there.
    pub(super) fn part(&self, start: u64, bytes: u64) -> Message {
        let there = self.len_bytes();
        let start = there.min(start as usize);
        let length = (there - start).min(bytes as usize);
        let part = match &self.seen {
            Some(seen) => Message::lying(seen.part(start, length)),
            None => Message::of(self.data[start..start + length].to_vec()),
        };
        Message { bytes, ..part }
    }

    /// A message without its bytes.
    pub fn size_only(bytes: u64) -> Message {
        Message {
            bytes,
            ..Message::default()
        }
    }
}
