//! What a slot of a ring holds: one record, a header of 48 bytes and what follows it.
//!
//! Check, parse, emit; what is done with a record is in `peer/receiving.rs`. Numbers are
//! little-endian. Counters that a rank tells in passing (what it has consumed and matched) are
//! written when the record is posted, so that they only grow in the order in which the peer sees
//! them, also where a record is posted again.

use crate::limits::INLINE_BYTES_MAX;
use crate::transport::TAG_CLASSES;
use crate::transport::requests::REQUESTS_MAX;

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;
/// Bytes from one slot to the next: a header and the longest payload, rounded up to cache lines.
pub const SLOT_BYTES: usize = (HEADER_BYTES + INLINE_BYTES_MAX).next_multiple_of(64);
/// Rails over which one peer's traffic is spread, at most: keys for all of them fit in a record.
pub const RAILS_MAX: usize = 8;

// The number of an atomic operation stands where other records have a length.
const _: () = assert!(REQUESTS_MAX <= INLINE_BYTES_MAX as u64);
const _: () = assert!(HEADER_BYTES + KEYS_BYTES <= SLOT_BYTES);
const _: () = assert!(TAG_CLASSES == 4, "four counters have places in the header");

/// Remote keys of one piece of memory, by rail.
pub type RailKeys = [u64; RAILS_MAX];
/// Bytes of keys, which follow the header of a record that has some.
pub const KEYS_BYTES: usize = 8 * RAILS_MAX;

/// A record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// A message of this many bytes, which follow.
    Message { tag: u64, header: u64, bytes: u32 },
    /// This many bytes for a region of the receiver, which it copies there: a line that must not be
    /// seen half written.
    Put { key: u32, offset: u64, bytes: u32 },
    /// A long message that waits for its grant.
    Offer {
        tag: u64,
        header: u64,
        transfer: u32,
        total: u64,
        /// The pieces in which it will be written.
        pieces: u32,
    },
    /// Where a long message is to be written.
    Grant {
        transfer: u32,
        address: u64,
        keys: RailKeys,
    },
    /// A long message that nobody wants (any more).
    Skip { transfer: u32 },
    /// Memory of the sender that may be read and written.
    Region {
        key: u32,
        address: u64,
        bytes: u64,
        keys: RailKeys,
    },
    /// Memory of the sender that may not be used any more.
    Forget { key: u32 },
    /// Nothing that was posted to this memory, of the receiver, is under way any more.
    Forgotten { key: u32 },
    /// Only the counters.
    Nothing,
    /// The put with this position of the receiver's, the low bits, has named no region.
    BadPut { position: u32 },
    /// A long put of this many pieces is being written.
    PutOffer { transfer: u32, pieces: u32 },
    /// Not all of its pieces are known to have come: are they to be written again?
    PutAgain { transfer: u32, pieces: u32 },
    /// They are.
    Go { transfer: u32 },
    /// It is given up: no more than this many pieces of it come.
    PutOver { transfer: u32, pieces: u32 },
    /// All pieces of a long put have come.
    PutDone { transfer: u32 },
    /// The pieces of a granted message did not all come: where is it to be written now?
    Again { transfer: u32 },
    /// Wants to know a region of the receiver.
    Ask { key: u32 },
    /// The receiver's processor is to change a word of a region: it adds `operand`, or puts it in
    /// place of a word that equals `compare`. `id`, below [`REQUESTS_MAX`], names the answer.
    Change {
        id: u32,
        key: u32,
        offset: u64,
        compare: Option<u64>,
        operand: u64,
    },
    /// The answer: what was there; none where there is no such word.
    Changed { id: u32, before: Option<u64> },
}

/// What every record tells in passing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// Positions of the peer's ring consumed, the low bits.
    pub consumed: u32,
    /// Messages matched, by class.
    pub matched: [u16; TAG_CLASSES],
}

/// Where the counters are in a header.
pub const TOLD_AT: usize = 4;
/// How long they are.
pub const TOLD_BYTES: usize = 12;

impl Told {
    /// As bytes.
    pub fn emit(&self) -> [u8; TOLD_BYTES] {
        let mut out = [0; TOLD_BYTES];
        out[..4].copy_from_slice(&self.consumed.to_le_bytes());
        for (place, count) in out[4..].chunks_exact_mut(2).zip(self.matched) {
            place.copy_from_slice(&count.to_le_bytes());
        }
        out
    }

    /// From the header of a record.
    pub fn parse(header: &[u8; HEADER_BYTES]) -> Told {
        let at = |i: usize| u16::from_le_bytes([header[i], header[i + 1]]);
        Told {
            consumed: word(header, TOLD_AT),
            matched: std::array::from_fn(|class| at(TOLD_AT + 4 + 2 * class)),
        }
    }
}

impl Record {
    /// The header, without the counters.
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let (kind, words, id, bytes) = match *self {
            Record::Message { tag, header, bytes } => (1, [tag, header, 0], 0, bytes),
            Record::Put { key, offset, bytes } => (2, [offset, 0, 0], key, bytes),
            Record::Offer {
                tag,
                header,
                transfer,
                total,
                pieces,
            } => (3, [tag, header, total], transfer, pieces),
            Record::Grant {
                transfer, address, ..
            } => (4, [address, 0, 0], transfer, KEYS_BYTES as u32),
            Record::Skip { transfer } => (5, [0; 3], transfer, 0),
            Record::Region {
                key,
                address,
                bytes,
                ..
            } => (6, [address, bytes, 0], key, KEYS_BYTES as u32),
            Record::Forget { key } => (7, [0; 3], key, 0),
            Record::BadPut { position } => (8, [0; 3], position, 0),
            Record::Nothing => (9, [0; 3], 0, 0),
            Record::PutOffer { transfer, pieces } => (14, [0; 3], transfer, pieces),
            Record::PutAgain { transfer, pieces } => (18, [0; 3], transfer, pieces),
            Record::PutOver { transfer, pieces } => (19, [0; 3], transfer, pieces),
            Record::Forgotten { key } => (20, [0; 3], key, 0),
            Record::Go { transfer } => (15, [0; 3], transfer, 0),
            Record::PutDone { transfer } => (16, [0; 3], transfer, 0),
            Record::Again { transfer } => (17, [0; 3], transfer, 0),
            Record::Ask { key } => (10, [0; 3], key, 0),
            Record::Change {
                id,
                key,
                offset,
                compare,
                operand,
            } => {
                let kind = 11 + u8::from(compare.is_some());
                (kind, [offset, operand, compare.unwrap_or(0)], key, id)
            }
            Record::Changed { id, before } => {
                let words = [before.unwrap_or(0), 0, 0];
                (13, words, u32::from(before.is_some()), id)
            }
        };
        let mut out = [0; HEADER_BYTES];
        out[0] = kind;
        for (place, word) in out[16..40].chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[40..44].copy_from_slice(&id.to_le_bytes());
        out[44..].copy_from_slice(&bytes.to_le_bytes());
        out
    }

    /// What follows the header, if that is part of the record itself and no payload of a user.
    pub fn tail(&self) -> Option<[u8; KEYS_BYTES]> {
        let (Record::Grant { keys, .. } | Record::Region { keys, .. }) = self else {
            return None;
        };
        let mut out = [0; KEYS_BYTES];
        for (place, key) in out.chunks_exact_mut(8).zip(keys) {
            place.copy_from_slice(&key.to_le_bytes());
        }
        Some(out)
    }

    /// Bytes after the header.
    pub fn tail_bytes(&self) -> usize {
        match self {
            Record::Message { bytes, .. } | Record::Put { bytes, .. } => *bytes as usize,
            Record::Grant { .. } | Record::Region { .. } => KEYS_BYTES,
            _ => 0,
        }
    }

    /// From what lies in a slot, whose keys are read where it has some. The error says what breaks
    /// the rules.
    pub fn parse(
        header: &[u8; HEADER_BYTES],
        read_keys: impl Fn() -> [u8; KEYS_BYTES],
    ) -> Result<Record, String> {
        let (a, b, c) = (long(header, 16), long(header, 24), long(header, 32));
        let (id, bytes) = (word(header, 40), word(header, 44));
        if matches!(header[0], 1 | 2) && bytes as usize > INLINE_BYTES_MAX {
            return Err(format!(
                "a record of {bytes} bytes in a slot of {INLINE_BYTES_MAX}"
            ));
        }
        let keys = || {
            let bytes = read_keys();
            std::array::from_fn(|rail| long(&bytes, 8 * rail))
        };
        Ok(match header[0] {
            1 => Record::Message {
                tag: a,
                header: b,
                bytes,
            },
            2 => Record::Put {
                key: id,
                offset: a,
                bytes,
            },
            3 => Record::Offer {
                tag: a,
                header: b,
                transfer: id,
                total: c,
                pieces: bytes,
            },
            4 => Record::Grant {
                transfer: id,
                address: a,
                keys: keys(),
            },
            5 => Record::Skip { transfer: id },
            6 => Record::Region {
                key: id,
                address: a,
                bytes: b,
                keys: keys(),
            },
            7 => Record::Forget { key: id },
            8 => Record::BadPut { position: id },
            9 => Record::Nothing,
            10 => Record::Ask { key: id },
            kind @ (11 | 12) => Record::Change {
                id: bytes,
                key: id,
                offset: a,
                compare: (kind == 12).then_some(c),
                operand: b,
            },
            13 => Record::Changed {
                id: bytes,
                before: (id == 1).then_some(a),
            },
            14 => Record::PutOffer {
                transfer: id,
                pieces: bytes,
            },
            15 => Record::Go { transfer: id },
            16 => Record::PutDone { transfer: id },
            17 => Record::Again { transfer: id },
            18 => Record::PutAgain {
                transfer: id,
                pieces: bytes,
            },
            19 => Record::PutOver {
                transfer: id,
                pieces: bytes,
            },
            20 => Record::Forgotten { key: id },
            kind => return Err(format!("a record of kind {kind}")),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

/// What a write says by its 32 bits: 1 for the kind, 12 for its sender as the receiver has numbered
/// it, 19 for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// The slot of this position, the low bits, holds a record.
    Slot(u32),
    /// A piece of the transfer with this number has come.
    Piece(u32),
}

/// Bits of an immediate's value.
const VALUE_BITS: u32 = 19;
/// Those that are set in the greatest value.
pub const VALUE_MASK: u32 = (1 << VALUE_BITS) - 1;
/// Senders that a receiver can number.
pub const SENDERS_MAX: u32 = 1 << (31 - VALUE_BITS);

impl Immediate {
    /// As 32 bits, from this sender.
    #[inline]
    pub fn emit(self, sender: u32) -> u32 {
        let (kind, value) = match self {
            Immediate::Slot(position) => (0, position),
            Immediate::Piece(transfer) => (1, transfer),
        };
        kind << 31 | sender << VALUE_BITS | value & VALUE_MASK
    }

    /// From 32 bits: the sender, and what it says.
    #[inline]
    pub fn parse(bits: u32) -> (u32, Immediate) {
        let (sender, value) = (bits >> VALUE_BITS & (SENDERS_MAX - 1), bits & VALUE_MASK);
        let what = match bits >> 31 {
            0 => Immediate::Slot(value),
            _ => Immediate::Piece(value),
        };
        (sender, what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let keys = [1, 2, 3, 4, 5, 6, 7, u64::MAX];
        let records = [
            Record::Message {
                tag: u64::MAX,
                header: 1 << 63,
                bytes: 4096,
            },
            Record::Put {
                key: 3,
                offset: 1 << 40,
                bytes: 64,
            },
            Record::Offer {
                tag: 5,
                header: 6,
                transfer: VALUE_MASK,
                total: 1 << 47,
                pieces: 1 << 20,
            },
            Record::Grant {
                transfer: 9,
                address: 0x7fff_1234_5678,
                keys,
            },
            Record::Skip { transfer: 9 },
            Record::Region {
                key: 2,
                address: u64::MAX,
                bytes: 0,
                keys,
            },
            Record::Forget { key: u32::MAX },
            Record::Nothing,
            Record::BadPut { position: 17 },
            Record::PutOffer {
                transfer: 3,
                pieces: u32::MAX,
            },
            Record::PutAgain {
                transfer: 3,
                pieces: 1,
            },
            Record::PutOver {
                transfer: 3,
                pieces: 2,
            },
            Record::Forgotten { key: 9 },
            Record::Go { transfer: 3 },
            Record::PutDone { transfer: 3 },
            Record::Again { transfer: 3 },
            Record::Ask { key: 7 },
            Record::Change {
                id: REQUESTS_MAX as u32,
                key: 7,
                offset: 8,
                compare: None,
                operand: u64::MAX,
            },
            Record::Change {
                id: 0,
                key: 7,
                offset: 8,
                compare: Some(0),
                operand: 1,
            },
            Record::Changed {
                id: 3,
                before: Some(0),
            },
            Record::Changed {
                id: 3,
                before: None,
            },
        ];
        for record in records {
            let tail = record.tail().unwrap_or([0; KEYS_BYTES]);
            assert_eq!(Record::parse(&record.emit(), || tail), Ok(record));
        }
    }

    #[test]
    fn counters_are_told_in_passing() {
        let told = Told {
            consumed: VALUE_MASK,
            matched: [1, 2, u16::MAX, 4],
        };
        let mut header = Record::Nothing.emit();
        header[TOLD_AT..TOLD_AT + TOLD_BYTES].copy_from_slice(&told.emit());
        assert_eq!(Told::parse(&header), told);
        let none = || [0; KEYS_BYTES];
        assert_eq!(Record::parse(&header, none), Ok(Record::Nothing));
    }

    #[test]
    fn bytes_that_are_no_record_are_refused() {
        let none = || [0; KEYS_BYTES];
        assert!(Record::parse(&[0; HEADER_BYTES], none).is_err());
        assert!(Record::parse(&[0xff; HEADER_BYTES], none).is_err());
        let long = Record::Message {
            tag: 0,
            header: 0,
            bytes: 4097,
        };
        let text = Record::parse(&long.emit(), none).unwrap_err();
        assert!(text.contains("4097"), "{text}");
    }

    #[test]
    fn immediates_come_back() {
        for sender in [0, 7, SENDERS_MAX - 1] {
            for what in [
                Immediate::Slot(0),
                Immediate::Slot(VALUE_MASK),
                Immediate::Piece(16),
            ] {
                assert_eq!(Immediate::parse(what.emit(sender)), (sender, what));
            }
        }
        let wrapped = Immediate::Slot(VALUE_MASK + 3).emit(1);
        assert_eq!(Immediate::parse(wrapped), (1, Immediate::Slot(2)));
    }
}
