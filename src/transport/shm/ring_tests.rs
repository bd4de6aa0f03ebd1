//! The ring in one thread: every length, full, nonsense. `tests/loom.rs` has both ends in threads
//! of their own.

use super::ring::{Consumer, KIND_PADDING, Producer, RecordHeader, RingMemory};
use crate::kernel;
use crate::limits::{CACHE_LINE_BYTES, INLINE_BYTES_MAX, RING_BYTES};
use crate::memory::{Region, View};
use std::sync::atomic::Ordering;

fn ring() -> (Region, Producer, Consumer) {
    let region = Region::private(RING_BYTES + 128).unwrap();
    let view = region.view();
    let memory = RingMemory {
        head: view.part(0, 64),
        tail: view.part(64, 64),
        bytes: view.part(128, RING_BYTES),
    };
    (region, Producer::new(memory), Consumer::new(memory))
}

fn header(number: u64, bytes: usize) -> RecordHeader {
    RecordHeader {
        kind: 1,
        payload_bytes: bytes as u32,
        words: [number, 0, 0, 0, !number],
    }
}

#[test]
fn records_of_every_length_come_out_as_they_went_in() {
    let (_region, mut producer, mut consumer) = ring();
    let source = Region::private(INLINE_BYTES_MAX).unwrap();
    for number in 0..5000u64 {
        let bytes = (number * 37 % (INLINE_BYTES_MAX as u64 + 1)) as usize;
        kernel::fill(source.view(), number as u8);
        assert!(producer.push(header(number, bytes), source.view().part(0, bytes), 0));
        let record = consumer.peek().unwrap().unwrap();
        assert_eq!(record.header, header(number, bytes));
        let mut got = vec![0; bytes];
        kernel::read(record.payload, 0, &mut got);
        assert!(got.iter().all(|&b| b == number as u8));
        consumer.release(&record);
        assert!(consumer.peek().unwrap().is_none());
    }
}

#[test]
fn a_full_ring_refuses_and_goes_on_after_a_release() {
    let (_region, mut producer, mut consumer) = ring();
    let mut pushed = 0;
    while producer.push(header(pushed, 0), View::empty(), 0) {
        pushed += 1;
    }
    assert_eq!(pushed as usize, RING_BYTES / CACHE_LINE_BYTES);
    let record = consumer.peek().unwrap().unwrap();
    assert_eq!(record.header.words[0], 0);
    consumer.release(&record);
    assert!(producer.push(header(pushed, 0), View::empty(), 0));
    assert!(!producer.push(header(0, 0), View::empty(), 0));
}

#[test]
fn nonsense_from_the_producer_is_an_error() {
    for (head, first) in [
        (1u64 << 40, 1u64),
        (64, 1 | (1 << 60)),
        (64, KIND_PADDING),
        (64, KIND_PADDING | (128 << 32)),
    ] {
        let (_region, _producer, mut consumer) = ring();
        kernel::store(consumer.memory.bytes, 0, first);
        kernel::word(&consumer.memory.head, 0).store(head, Ordering::Release);
        assert!(
            consumer.peek().is_err(),
            "head {head} first word {first:#x}"
        );
    }
}
