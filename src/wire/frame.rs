//! Frames of the `tcp` transport: what a header says, checked before anything is done with it.
//!
//! Every frame begins with a header of [`HEADER_BYTES`]; some are followed by a payload. *Ordered*
//! frames have a place in the one stream of bytes that a rank sends to a peer, over whichever
//! connection; chunks have none.
//!
//! ```text
//! 0 kind   1 flags   2 zero   4 payload bytes   8 position   16 acknowledged   24 matched x 4
//! 32 words x 4       64 key   68 crc
//! ```

/// Bytes of a header.
pub const HEADER_BYTES: usize = 72;

/// A payload has a CRC32C, and so has the header.
const FLAG_CRC: u8 = 1;
/// In an announcement: its bytes come without being asked for. In an answer: the range was good. In
/// a change: it is made only if the word is as expected.
const FLAG_YES: u8 = 2;
/// The sender waits for the acknowledgement.
const FLAG_URGENT: u8 = 4;
const CRC_AT: usize = 68;

/// What a frame may have. Both sides of a connection have equal limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest payload of an ordered frame.
    pub small_bytes_max: u32,
    /// Longest chunk.
    pub chunk_bytes_max: u32,
    /// Longest message, put or get.
    pub total_bytes_max: u64,
    /// Whether every frame must have a CRC; otherwise none may.
    pub has_crc: bool,
}

/// Why a header is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum FrameError {
    /// No such frame.
    #[error("a frame of kind {0}, which does not exist")]
    UnknownKind(u8),
    /// Bits that this version does not know.
    #[error("a frame with unknown flags {0:#x}")]
    UnknownFlags(u8),
    /// Bytes that must be zero are not.
    #[error("a frame with bytes where there must be zeros")]
    NotZero,
    /// A payload that is too long for its frame.
    #[error("a frame with {bytes} bytes of payload, at most {bytes_max}")]
    PayloadTooLong {
        /// As claimed.
        bytes: u32,
        /// As allowed.
        bytes_max: u32,
    },
    /// A chunk without bytes.
    #[error("a chunk without bytes")]
    EmptyChunk,
    /// A message, put or get that is longer than any may be.
    #[error("a transfer of {bytes} bytes, at most {bytes_max}")]
    TransferTooLong {
        /// As claimed.
        bytes: u64,
        /// As allowed.
        bytes_max: u64,
    },
    /// A chunk that does not lie inside its transfer.
    #[error("a chunk of {bytes} bytes at {offset} of a transfer of {total} bytes")]
    OutsideTransfer {
        /// Of the chunk.
        offset: u64,
        /// Of the chunk.
        bytes: u32,
        /// Of the transfer.
        total: u64,
    },
    /// One side has integrity checks and the other has not.
    #[error("a frame whose integrity check is {0}: set LINERATE_INTEGRITY alike on all ranks")]
    Integrity(&'static str),
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame {
    /// A short message; its bytes follow.
    Eager {
        /// Matches receives.
        tag: u64,
        /// The sender's.
        header: u64,
        /// Payload.
        bytes: u32,
    },
    /// A long message, whose bytes come as chunks: at once (`is_eager`), or when they are asked
    /// for.
    Announce {
        /// Matches receives.
        tag: u64,
        /// The sender's.
        header: u64,
        /// Length of the message.
        total: u64,
        /// Names it in chunks.
        transfer: u64,
        /// Its chunks do not wait for [`Frame::Pull`].
        is_eager: bool,
    },
    /// The bytes of an announced message are wanted.
    Pull {
        /// Which.
        transfer: u64,
    },
    /// The bytes of an announced message are not wanted.
    Skip {
        /// Which.
        transfer: u64,
    },
    /// A short put; its bytes follow.
    Put {
        /// The receiver's region.
        key: u32,
        /// Where in it.
        offset: u64,
        /// Payload.
        bytes: u32,
    },
    /// The short put at this position of the stream was refused.
    BadPut {
        /// The position of its frame.
        position: u64,
    },
    /// The long put was refused.
    BadTransfer {
        /// Which.
        transfer: u64,
    },
    /// A part of a region of the receiver is wanted.
    Get {
        /// Names the answer.
        id: u64,
        /// The region.
        key: u32,
        /// Where in it.
        offset: u64,
        /// How much.
        total: u64,
    },
    /// A word of a region of the receiver is to be changed; answered as a get of it.
    Change {
        /// Names the answer.
        id: u64,
        /// The region.
        key: u32,
        /// Where in it, a multiple of 8.
        offset: u64,
        /// What must be there; `None`: the operand is added.
        compare: Option<u64>,
        /// The new word, or what is added.
        operand: u64,
    },
    /// The answer to a get or a change, if it is short or refused; its bytes follow.
    Got {
        /// As asked.
        id: u64,
        /// Whether there is such a range.
        is_good: bool,
        /// Payload.
        bytes: u32,
    },
    /// How many chunks of a rail have arrived, and how many bytes of eager messages have met their
    /// receive.
    Ack {
        /// Which rail; 0: none.
        rail: u64,
        /// Chunks that have come on it, ever.
        chunks: u64,
        /// Bytes of long eager messages matched, ever.
        matched_bytes: u64,
    },
    /// The sender takes a rail for dead and does not read it any more. It asks how many chunks have
    /// come on it at the receiver.
    RailDead {
        /// Which.
        rail: u64,
    },
    /// The answer to [`Frame::RailDead`]: the rail is not read any more, and this many chunks had
    /// come.
    RailClosed {
        /// Which.
        rail: u64,
        /// Chunks that had come on it, ever.
        chunks: u64,
    },
    /// It only wakes the receiver.
    Nothing,
    /// The sender leaves in good order: nothing follows.
    Goodbye {
        /// What the sender's user says with it.
        word: u64,
    },
    /// A part of a message.
    Chunk {
        /// Of which.
        transfer: u64,
        /// Where in it.
        offset: u64,
        /// Length of the message.
        total: u64,
        /// Payload.
        bytes: u32,
    },
    /// A part of a put.
    PutChunk {
        /// Of which.
        transfer: u64,
        /// The receiver's region.
        key: u32,
        /// Where the put begins in it.
        base: u64,
        /// Length of the put.
        total: u64,
        /// Where in the put.
        offset: u64,
        /// Payload.
        bytes: u32,
    },
    /// A part of the answer to a get.
    GetChunk {
        /// As asked.
        id: u64,
        /// Where in it.
        offset: u64,
        /// Length of the answer.
        total: u64,
        /// Payload.
        bytes: u32,
    },
}

impl Frame {
    /// Bytes that follow the header.
    pub fn payload_bytes(&self) -> u32 {
        match *self {
            Frame::Eager { bytes, .. }
            | Frame::Put { bytes, .. }
            | Frame::Got { bytes, .. }
            | Frame::Chunk { bytes, .. }
            | Frame::PutChunk { bytes, .. }
            | Frame::GetChunk { bytes, .. } => bytes,
            _ => 0,
        }
    }

    /// Whether it is part of a long transfer, and so has no place in the ordered stream.
    pub fn is_chunk(&self) -> bool {
        matches!(
            self,
            Frame::Chunk { .. } | Frame::PutChunk { .. } | Frame::GetChunk { .. }
        )
    }

    /// Its kind, flag, words and key.
    fn parts(&self) -> (u8, bool, [u64; 4], u32) {
        match *self {
            Frame::Eager { tag, header, .. } => (1, false, [tag, header, 0, 0], 0),
            Frame::Announce {
                tag,
                header,
                total,
                transfer,
                is_eager,
            } => (2, is_eager, [tag, header, total, transfer], 0),
            Frame::Pull { transfer } => (3, false, [transfer, 0, 0, 0], 0),
            Frame::Skip { transfer } => (4, false, [transfer, 0, 0, 0], 0),
            Frame::Put { key, offset, .. } => (5, false, [offset, 0, 0, 0], key),
            Frame::BadPut { position } => (6, false, [position, 0, 0, 0], 0),
            Frame::BadTransfer { transfer } => (7, false, [transfer, 0, 0, 0], 0),
            Frame::Get {
                id,
                key,
                offset,
                total,
            } => (8, false, [id, offset, total, 0], key),
            Frame::Got { id, is_good, .. } => (9, is_good, [id, 0, 0, 0], 0),
            Frame::Ack {
                rail,
                chunks,
                matched_bytes,
            } => (10, false, [rail, chunks, matched_bytes, 0], 0),
            Frame::RailDead { rail } => (11, false, [rail, 0, 0, 0], 0),
            Frame::RailClosed { rail, chunks } => (12, false, [rail, chunks, 0, 0], 0),
            Frame::Nothing => (13, false, [0; 4], 0),
            Frame::Goodbye { word } => (14, false, [word, 0, 0, 0], 0),
            Frame::Chunk {
                transfer,
                offset,
                total,
                ..
            } => (15, false, [transfer, offset, total, 0], 0),
            Frame::PutChunk {
                transfer,
                key,
                base,
                total,
                offset,
                ..
            } => (16, false, [transfer, base, total, offset], key),
            Frame::GetChunk {
                id, offset, total, ..
            } => (17, false, [id, offset, total, 0], 0),
            Frame::Change {
                id,
                key,
                offset,
                compare,
                operand,
            } => {
                let words = [id, offset, operand, compare.unwrap_or(0)];
                (18, compare.is_some(), words, key)
            }
        }
    }
}

/// A header: what a frame says, and the fields that every frame has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameHeader {
    /// Where the frame begins in the sender's stream; 0 for chunks.
    pub position: u64,
    /// How much of the receiver's stream has arrived at the sender; 0 for chunks.
    pub acknowledged: u64,
    /// Messages of the receiver that were matched at the sender, per class of tags, modulo 2^16.
    pub matched: [u16; 4],
    /// The sender waits for the acknowledgement.
    pub is_urgent: bool,
    /// CRC32C of the header (with this field zero) and the payload.
    pub crc: Option<u32>,
    /// What it says.
    pub frame: Frame,
}

impl FrameHeader {
    /// The bytes to send.
    pub fn emit(&self) -> [u8; HEADER_BYTES] {
        let (kind, is_yes, words, key) = self.frame.parts();
        let mut out = [0; HEADER_BYTES];
        out[0] = kind;
        out[1] = if is_yes { FLAG_YES } else { 0 }
            | if self.is_urgent { FLAG_URGENT } else { 0 }
            | if self.crc.is_some() { FLAG_CRC } else { 0 };
        out[4..8].copy_from_slice(&self.frame.payload_bytes().to_le_bytes());
        out[8..16].copy_from_slice(&self.position.to_le_bytes());
        out[16..24].copy_from_slice(&self.acknowledged.to_le_bytes());
        for (place, count) in (24..).step_by(2).zip(self.matched) {
            out[place..place + 2].copy_from_slice(&count.to_le_bytes());
        }
        for (place, word) in (32..).step_by(8).zip(words) {
            out[place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        out[64..68].copy_from_slice(&key.to_le_bytes());
        out[CRC_AT..].copy_from_slice(&self.crc.unwrap_or(0).to_le_bytes());
        out
    }

    /// The header of these bytes, if it keeps to the limits.
    pub fn parse(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<FrameHeader, FrameError> {
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (kind, flags, payload) = (bytes[0], bytes[1], word(4));
        if flags & !(FLAG_CRC | FLAG_YES | FLAG_URGENT) != 0 {
            return Err(FrameError::UnknownFlags(flags));
        }
        let has_crc = flags & FLAG_CRC != 0;
        if has_crc != limits.has_crc {
            let text = if has_crc { "not expected" } else { "missing" };
            return Err(FrameError::Integrity(text));
        }
        let words = [long(32), long(40), long(48), long(56)];
        let frame = parse_frame(kind, flags & FLAG_YES != 0, payload, words, word(64))?;
        let header = FrameHeader {
            position: long(8),
            acknowledged: long(16),
            matched: std::array::from_fn(|i| {
                u16::from_le_bytes([bytes[24 + 2 * i], bytes[25 + 2 * i]])
            }),
            is_urgent: flags & FLAG_URGENT != 0,
            crc: has_crc.then(|| word(CRC_AT)),
            frame,
        };
        // Fields that the frame does not use must be zero, so emitting it again gives these bytes.
        if header.emit() != *bytes {
            return Err(FrameError::NotZero);
        }
        check_lengths(&frame, limits)?;
        Ok(header)
    }

    /// The CRC of a header, to go on with over its payload.
    pub fn crc_of_header(&self) -> u32 {
        let plain = FrameHeader {
            crc: self.crc.map(|_| 0),
            ..*self
        };
        crc32c::crc32c(&plain.emit())
    }
}

fn parse_frame(
    kind: u8,
    is_yes: bool,
    bytes: u32,
    [a, b, c, d]: [u64; 4],
    key: u32,
) -> Result<Frame, FrameError> {
    Ok(match kind {
        1 => Frame::Eager {
            tag: a,
            header: b,
            bytes,
        },
        2 => Frame::Announce {
            tag: a,
            header: b,
            total: c,
            transfer: d,
            is_eager: is_yes,
        },
        3 => Frame::Pull { transfer: a },
        4 => Frame::Skip { transfer: a },
        5 => Frame::Put {
            key,
            offset: a,
            bytes,
        },
        6 => Frame::BadPut { position: a },
        7 => Frame::BadTransfer { transfer: a },
        8 => Frame::Get {
            id: a,
            key,
            offset: b,
            total: c,
        },
        9 => Frame::Got {
            id: a,
            is_good: is_yes,
            bytes,
        },
        10 => Frame::Ack {
            rail: a,
            chunks: b,
            matched_bytes: c,
        },
        11 => Frame::RailDead { rail: a },
        12 => Frame::RailClosed { rail: a, chunks: b },
        13 => Frame::Nothing,
        14 => Frame::Goodbye { word: a },
        15 => Frame::Chunk {
            transfer: a,
            offset: b,
            total: c,
            bytes,
        },
        16 => Frame::PutChunk {
            transfer: a,
            key,
            base: b,
            total: c,
            offset: d,
            bytes,
        },
        17 => Frame::GetChunk {
            id: a,
            offset: b,
            total: c,
            bytes,
        },
        18 => Frame::Change {
            id: a,
            key,
            offset: b,
            compare: is_yes.then_some(d),
            operand: c,
        },
        other => return Err(FrameError::UnknownKind(other)),
    })
}

fn check_lengths(frame: &Frame, limits: &Limits) -> Result<(), FrameError> {
    let bytes = frame.payload_bytes();
    let bytes_max = match frame.is_chunk() {
        true => limits.chunk_bytes_max,
        false => limits.small_bytes_max,
    };
    if bytes > bytes_max {
        return Err(FrameError::PayloadTooLong { bytes, bytes_max });
    }
    let (offset, total) = match *frame {
        Frame::Announce { total, .. } | Frame::Get { total, .. } => (0, total),
        Frame::Chunk { offset, total, .. }
        | Frame::PutChunk { offset, total, .. }
        | Frame::GetChunk { offset, total, .. } => (offset, total),
        _ => return Ok(()),
    };
    if total > limits.total_bytes_max {
        return Err(FrameError::TransferTooLong {
            bytes: total,
            bytes_max: limits.total_bytes_max,
        });
    }
    if frame.is_chunk() && bytes == 0 {
        return Err(FrameError::EmptyChunk);
    }
    // No overflow: `offset` is compared with the total before it is subtracted.
    if offset > total || u64::from(bytes) > total - offset {
        return Err(FrameError::OutsideTransfer {
            offset,
            bytes,
            total,
        });
    }
    Ok(())
}

#[cfg(test)]
#[path = "frame_tests.rs"]
mod tests;
