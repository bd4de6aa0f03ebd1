//! Frames survive the wire, and what breaks the limits is refused by name.

use super::*;
use crate::prng::Prng;
use std::collections::BTreeSet;

const LIMITS: Limits = Limits {
    small_bytes_max: 8192,
    chunk_bytes_max: 1 << 18,
    total_bytes_max: 1 << 48,
    has_crc: false,
};

/// One frame of every kind, inside the limits.
fn frames() -> Vec<Frame> {
    let (transfer, id, key, offset, total, bytes) = (7, 8, 9, 10, 4_000, 100);
    let (tag, header, rail, chunks) = (u64::MAX, 1 << 63, 3, 12);
    vec![
        Frame::Eager { tag, header, bytes },
        Frame::Announce {
            tag,
            header,
            total,
            transfer,
            is_eager: true,
        },
        Frame::Pull { transfer },
        Frame::Skip { transfer },
        Frame::Put { key, offset, bytes },
        Frame::BadPut { position: 5 },
        Frame::BadTransfer { transfer },
        Frame::Get {
            id,
            key,
            offset,
            total,
        },
        Frame::Got {
            id,
            is_good: true,
            bytes,
        },
        Frame::Ack {
            rail,
            chunks,
            matched_bytes: 1,
        },
        Frame::RailDead { rail },
        Frame::RailClosed { rail, chunks },
        Frame::Nothing,
        Frame::Goodbye { word: u64::MAX },
        Frame::Chunk {
            transfer,
            offset,
            total,
            bytes,
        },
        Frame::PutChunk {
            transfer,
            key,
            base: 1 << 40,
            total,
            offset,
            bytes,
        },
        Frame::Change {
            id: 9,
            key: 2,
            offset: 8,
            compare: Some(u64::MAX),
            operand: 1,
        },
        Frame::Change {
            id: 9,
            key: 2,
            offset: 8,
            compare: None,
            operand: u64::MAX,
        },
        Frame::GetChunk {
            id,
            offset,
            total,
            bytes,
        },
    ]
}

fn header(frame: Frame) -> FrameHeader {
    FrameHeader {
        position: 0x0102_0304_0506_0708,
        acknowledged: 77,
        matched: [1, 2, 3, u16::MAX],
        is_urgent: true,
        crc: None,
        frame,
    }
}

#[test]
fn every_frame_is_read_as_it_was_written() {
    for frame in frames() {
        let header = header(frame);
        assert_eq!(FrameHeader::parse(&header.emit(), &LIMITS), Ok(header));
        let with_crc = FrameHeader {
            crc: Some(0xdead_beef),
            ..header
        };
        let limits = Limits {
            has_crc: true,
            ..LIMITS
        };
        assert_eq!(FrameHeader::parse(&with_crc.emit(), &limits), Ok(with_crc));
        assert!(FrameHeader::parse(&with_crc.emit(), &LIMITS).is_err());
        assert!(FrameHeader::parse(&header.emit(), &limits).is_err());
    }
}

#[test]
fn a_claim_of_two_to_the_63_bytes_is_refused_by_its_number() {
    let claim = header(Frame::Announce {
        tag: 0,
        header: 0,
        total: 1 << 63,
        transfer: 1,
        is_eager: true,
    });
    let error = FrameHeader::parse(&claim.emit(), &LIMITS).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&(1u64 << 63).to_string()), "{text}");
}

#[test]
fn lengths_are_good_up_to_their_limit_and_not_beyond() {
    let parse = |frame| FrameHeader::parse(&header(frame).emit(), &LIMITS);
    let eager = |bytes| Frame::Eager {
        tag: 0,
        header: 0,
        bytes,
    };
    assert!(parse(eager(8192)).is_ok() && parse(eager(8193)).is_err());
    let chunk = |offset, total, bytes| Frame::Chunk {
        transfer: 1,
        offset,
        total,
        bytes,
    };
    assert!(parse(chunk(0, 1 << 18, 1 << 18)).is_ok());
    assert!(parse(chunk(0, 1 << 19, (1 << 18) + 1)).is_err());
    assert!(parse(chunk(90, 100, 10)).is_ok() && parse(chunk(91, 100, 10)).is_err());
    assert!(parse(chunk(u64::MAX, 100, 10)).is_err() && parse(chunk(0, 100, 0)).is_err());
    assert!(parse(chunk(0, 1 << 48, 1)).is_ok() && parse(chunk(0, (1 << 48) + 1, 1)).is_err());
}

/// The kind of an error, without its values.
fn kind_of(error: FrameError) -> &'static str {
    match error {
        FrameError::UnknownKind(_) => "kind",
        FrameError::UnknownFlags(_) => "flags",
        FrameError::NotZero => "zero",
        FrameError::PayloadTooLong { .. } => "payload",
        FrameError::EmptyChunk => "empty",
        FrameError::TransferTooLong { .. } => "transfer",
        FrameError::OutsideTransfer { .. } => "outside",
        FrameError::Integrity(_) => "integrity",
    }
}

/// A valid frame with one to three of its bytes, words or bits changed.
fn mutated(random: &mut Prng, frames: &[Frame]) -> [u8; HEADER_BYTES] {
    let mut bytes = header(frames[random.below(frames.len() as u64) as usize]).emit();
    for _ in 0..=random.below(3) {
        let at = random.below(HEADER_BYTES as u64) as usize;
        match random.below(5) {
            0 => bytes[at] = random.next_u64() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
            3 => bytes[0] = random.below(20) as u8,
            // A whole field: lengths, words.
            _ => {
                let at = [4, 32, 40, 48, 56][random.below(5) as usize];
                let value = [0, 1, u64::MAX, 1 << 63, 1 << 48, 8193][random.below(6) as usize];
                let len = if at == 4 { 4 } else { 8 };
                bytes[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
            }
        }
    }
    bytes
}

#[test]
fn a_million_mutated_frames_are_read_or_refused_and_every_refusal_is_reached() {
    let frames = frames();
    let mut random = Prng::new(0x11ae_7a7e);
    let (mut reached, mut read) = (BTreeSet::new(), 0);
    for _ in 0..1_000_000 {
        let bytes = mutated(&mut random, &frames);
        match FrameHeader::parse(&bytes, &LIMITS) {
            Ok(header) => {
                read += 1;
                check_read(&header, &bytes).expect("whatever is read keeps to the limits");
            }
            Err(error) => {
                reached.insert(kind_of(error));
            }
        }
    }
    assert_eq!(reached.len(), 8, "{reached:?}");
    assert!(read > 10_000, "{read} of a million were good");
}

/// What holds for every header that is read, checked without the parser's own arithmetic.
fn check_read(header: &FrameHeader, bytes: &[u8; HEADER_BYTES]) -> Result<(), String> {
    if header.emit() != *bytes {
        return Err("it reads as something else".into());
    }
    let payload = u128::from(header.frame.payload_bytes());
    let (offset, total) = match header.frame {
        Frame::Chunk { offset, total, .. }
        | Frame::PutChunk { offset, total, .. }
        | Frame::GetChunk { offset, total, .. } => (u128::from(offset), u128::from(total)),
        Frame::Announce { total, .. } | Frame::Get { total, .. } => (0, u128::from(total)),
        _ if payload <= 8192 => return Ok(()),
        _ => return Err("a long payload".into()),
    };
    let is_inside = offset + payload <= total && total <= 1 << 48 && payload <= 1 << 18;
    is_inside.then_some(()).ok_or(format!("{header:?}"))
}

/// The canary: a parser that forgets one check must be found by the same mutations.
#[test]
fn a_parser_without_the_check_of_lengths_is_found_out() {
    let frames = frames();
    let mut random = Prng::new(0x11ae_7a7e);
    let careless = Limits {
        small_bytes_max: u32::MAX,
        chunk_bytes_max: u32::MAX,
        ..LIMITS
    };
    let is_found = (0..1_000_000).any(|_| {
        let bytes = mutated(&mut random, &frames);
        FrameHeader::parse(&bytes, &careless)
            .is_ok_and(|header| check_read(&header, &bytes).is_err())
    });
    assert!(is_found);
}
