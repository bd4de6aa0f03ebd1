//! The layout of control memory, and a flag line in one thread.

use super::control::{Binding, ControlLayout, Line};
use super::signature::Signature;
use crate::limits::{CACHE_LINE_BYTES, CONTROL_BYTES, LANES, OPERATION_SLOTS};
use crate::memory::{Region, RegionKey};
use crate::schedule::Lane;

#[test]
fn no_two_things_share_a_line() {
    for ranks in [1, 2, 3, 32] {
        let layout = ControlLayout::new(ranks);
        let mut starts: Vec<usize> = (0..ranks).map(|r| layout.retired(r)).collect();
        for slot in 0..OPERATION_SLOTS {
            for lane in 0..LANES as Lane {
                starts.extend((0..ranks).map(|sender| layout.line(slot, lane, sender)));
            }
        }
        starts.extend((0..=ranks).map(|r| layout.message(r)));
        let last = *starts.iter().max().unwrap();
        let lines = starts.len();
        starts.sort_unstable();
        starts.dedup();
        assert_eq!(starts.len(), lines);
        assert!(starts.iter().all(|s| s % CACHE_LINE_BYTES == 0));
        assert_eq!(last + CONTROL_BYTES, layout.bytes());
    }
}

#[test]
fn a_line_arrives_with_its_stamp_only() {
    let region = Region::private(4096).unwrap();
    let binding = Binding {
        input_key: RegionKey(3),
        output_key: RegionKey(9),
        input_offset: 1 << 40,
        output_offset: 7,
        is_registered: true,
    };
    let line = Line {
        stamp: 5,
        signature: Signature(77),
        payload: binding.emit(),
    };
    assert!(Line::arrived(region.view(), 128, 5).is_none());
    line.store(region.view(), 128);
    assert_eq!(Line::arrived(region.view(), 128, 5), Some(Signature(77)));
    assert!(Line::arrived(region.view(), 128, 6).is_none());
    assert_eq!(
        Binding::parse(Line::payload_view(region.view(), 128)),
        binding
    );
    line.emit(region.view().part(256, 64));
    assert_eq!(Line::arrived(region.view(), 256, 5), Some(Signature(77)));
}
