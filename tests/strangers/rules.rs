//! Ranks that have the secret and break the rules: the peer is failed by what it did, and nothing
//! else happens.

use super::hostile::{self, Hostile};
use super::pair::{HANG, Rank};
use super::{SECRET, settings};
use crate::prng::Prng;
use linerate::unstable::wire::{Frame, HEADER_BYTES};
use std::time::Instant;

/// A real rank 1 whose rank 0 is hostile.
fn victim() -> (Rank, Hostile) {
    let mut rank = Rank::new(1, &settings());
    rank.transport.connect(0, &hostile::address()).unwrap();
    let hostile = Hostile::connect(&mut rank, SECRET, 1);
    (rank, hostile)
}

fn failure_after(frames: &[Frame]) -> String {
    let (mut rank, mut hostile) = victim();
    for &frame in frames {
        hostile.send_frame(frame, &mut rank);
    }
    let start = Instant::now();
    loop {
        rank.step();
        if let Some(cause) = rank.failure() {
            return cause.to_string();
        }
        assert!(start.elapsed() < HANG, "{frames:?} is taken");
    }
}

fn announce(total: u64, transfer: u64) -> Frame {
    Frame::Announce {
        tag: transfer,
        header: 0,
        total,
        transfer,
        is_eager: true,
    }
}

fn chunk(transfer: u64, offset: u64, total: u64, bytes: u32) -> Frame {
    Frame::Chunk {
        transfer,
        offset,
        total,
        bytes,
    }
}

#[test]
fn a_claim_of_two_to_the_63_bytes_fails_the_peer_by_its_number() {
    let (two_to_63, most) = (1u64 << 63, 1u64 << 48);
    for frame in [announce(two_to_63, 1), chunk(1, 0, two_to_63, 100)] {
        let cause = failure_after(&[frame]);
        assert!(cause.contains(&two_to_63.to_string()), "{cause}");
        assert!(cause.contains(&most.to_string()), "{cause}");
    }
    let huge = Frame::Eager {
        tag: 0,
        header: 0,
        bytes: u32::MAX,
    };
    let (mut rank, mut hostile) = victim();
    let bytes = hostile.header(huge).emit();
    hostile.send(&bytes, &mut rank);
    while rank.failure().is_none() {
        rank.step();
    }
    assert!(rank.failure().unwrap().contains("4294967295"));
}

#[test]
fn whoever_breaks_a_rule_is_failed_with_what_it_did() {
    let eager = Frame::Eager {
        tag: 5,
        header: 0,
        bytes: 10,
    };
    let flood: Vec<Frame> = (1..=200).map(|n| chunk(n, 0, 1 << 18, 1 << 18)).collect();
    for (frames, words) in [
        (vec![eager; 65], "more than 64 messages"),
        (
            (1..=65).map(|n| announce(1 << 40, n)).collect(),
            "more than 64 messages",
        ),
        (
            vec![announce(9000, 1), announce(9000, 1)],
            "announced transfer 1 twice",
        ),
        (vec![announce(9000, 1), chunk(1, 0, 9001, 5)], "9001"),
        (vec![chunk(1, 0, 100, 60), chunk(1, 0, 100, 60)], "twice"),
        (flood, "without a receive"),
        (vec![Frame::Pull { transfer: 4 }], "transfer 4"),
        (vec![Frame::Skip { transfer: 4 }], "transfer 4"),
        (vec![Frame::RailClosed { rail: 8, chunks: 1 }], "rail 8"),
        (
            vec![Frame::Ack {
                rail: 2,
                chunks: 3,
                matched_bytes: 0,
            }],
            "acknowledges 3 chunks",
        ),
        (
            vec![Frame::Ack {
                rail: 0,
                chunks: 0,
                matched_bytes: 9,
            }],
            "matched 9 bytes",
        ),
        (
            vec![Frame::Got {
                id: 3,
                is_good: true,
                bytes: 5,
            }],
            "get 3",
        ),
        (
            vec![Frame::GetChunk {
                id: 3,
                offset: 0,
                total: 50,
                bytes: 5,
            }],
            "get 3",
        ),
        (vec![Frame::Goodbye { word: 5 }], "it has left with word 5"),
    ] {
        let cause = failure_after(&frames);
        assert!(cause.contains(words), "{:?}: {cause}", frames[0]);
    }
}

/// A chunk's bytes come after its transfer has ended and another, shorter one has its number.
#[test]
fn a_transfer_that_is_another_one_when_its_chunk_has_come_fails_the_peer() {
    for is_received in [true, false] {
        let (mut rank, mut hostile) = victim();
        let mut beside = Hostile::connect(&mut rank, SECRET, 2);
        if is_received {
            rank.post_receives(&[1, 2], 300_000);
        }
        let late = chunk(1, 290_000, 300_000, 1000);
        let bytes = [&beside.header(late).emit()[..], &[3; 1000]].concat();
        beside.send(&bytes[..bytes.len() - 100], &mut rank);
        hostile.send_frame(announce(300_000, 1), &mut rank);
        for at in [0, 150_000] {
            hostile.send_frame(chunk(1, at, 300_000, 150_000), &mut rank);
        }
        if !is_received {
            rank.post_receives(&[1], 300_000);
        }
        (0..100).for_each(|_| rank.step());
        let mut again = announce(2000, 1);
        if let Frame::Announce { tag, .. } = &mut again {
            *tag = 2;
        }
        hostile.send_frame(again, &mut rank);
        (0..100).for_each(|_| rank.step());
        assert_eq!(rank.failure(), None);
        beside.send(&bytes[bytes.len() - 100..], &mut rank);
        let start = Instant::now();
        while rank.failure().is_none() {
            assert!(start.elapsed() < HANG, "the chunk is taken");
            rank.step();
        }
        let cause = rank.failure().unwrap();
        let words = "transfer 1 has 300000 bytes and that it has 2000";
        assert!(cause.contains(words), "{cause}");
    }
}

/// Any frame, most of them with small numbers, so that some fit together.
fn any_frame(random: &mut Prng) -> Frame {
    let mut small = || random.below(4);
    let (transfer, id, tag, key) = (small(), small(), small(), small() as u32);
    let (rail, chunks) = (small(), small());
    let total = [0, 1, 100, 9000, 300_000, u64::MAX][random.below(6) as usize];
    let offset = random.below(total.clamp(1, 1 << 20));
    let bytes = (random.below(3000) as u32).min(total as u32);
    let header = random.next_u64();
    match random.below(17) {
        0 => Frame::Eager { tag, header, bytes },
        1 => Frame::Announce {
            tag,
            header,
            total,
            transfer,
            is_eager: random.below(2) == 0,
        },
        2 => Frame::Pull { transfer },
        3 => Frame::Skip { transfer },
        4 => Frame::Put { key, offset, bytes },
        5 => Frame::BadPut { position: offset },
        6 => Frame::BadTransfer { transfer },
        7 => Frame::Get {
            id,
            key,
            offset,
            total,
        },
        8 => Frame::Got {
            id,
            is_good: true,
            bytes,
        },
        9 => Frame::Ack {
            rail,
            chunks,
            matched_bytes: tag,
        },
        10 => Frame::RailDead { rail },
        11 => Frame::RailClosed { rail, chunks },
        12 => Frame::Nothing,
        13 if random.below(10) == 0 => Frame::Goodbye { word: tag },
        14 => Frame::PutChunk {
            transfer,
            key,
            base: offset,
            total,
            offset: offset / 2,
            bytes: bytes.max(1),
        },
        15 => Frame::GetChunk {
            id,
            offset,
            total,
            bytes: bytes.max(1),
        },
        _ => chunk(transfer, offset, total, bytes.max(1)),
    }
}

/// Whatever a rank that has the secret sends, in whatever order, while this rank has receives,
/// sends, puts and gets under way: nothing panics, and every post ends once.
#[test]
fn random_frames_of_a_rank_with_the_secret_break_nothing() {
    let mut frames = 0u32;
    for seed in 0..400 {
        let mut random = Prng::new(seed);
        let (mut rank, mut hostile) = victim();
        let posted = rank.post_some();
        while rank.failure().is_none() && random.below(400) > 0 {
            let mut header = hostile.header(any_frame(&mut random));
            if random.below(50) == 0 {
                header.position = random.below(1 << 12);
            }
            if random.below(20) == 0 {
                header.acknowledged = random.below(400_000);
            }
            let payload = header.frame.payload_bytes() as usize;
            let mut bytes = header.emit().to_vec();
            bytes.resize(HEADER_BYTES + payload, 3);
            frames += 1;
            if !hostile.send(&bytes, &mut rank) {
                break;
            }
        }
        rank.step();
        rank.transport.disconnect(0);
        rank.step();
        assert_eq!(rank.completions(), posted, "seed {seed}");
    }
    println!("{frames} frames");
    assert!(frames > 2_000, "{frames} frames say too little");
}
