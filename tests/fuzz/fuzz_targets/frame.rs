//! Whatever bytes a header has: it is read as what it says, inside the limits, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate::unstable::wire::{FrameHeader, HEADER_BYTES, Limits};

fuzz_target!(|bytes: &[u8]| {
    let Some((&first, rest)) = bytes.split_first() else {
        return;
    };
    let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let limits = Limits {
        small_bytes_max: 8192,
        chunk_bytes_max: 1 << 18,
        total_bytes_max: 1 << 48,
        has_crc: first & 1 != 0,
    };
    if let Ok(read) = FrameHeader::parse(header, &limits) {
        assert_eq!(read.emit(), *header);
        let payload = read.frame.payload_bytes();
        assert!(payload <= limits.chunk_bytes_max);
        assert!(read.frame.is_chunk() || payload <= limits.small_bytes_max);
    }
});
