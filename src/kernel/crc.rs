//! CRC32C (RFC 3720) of a [`View`].

use super::{access, simd};
use crate::memory::View;

/// What is copied out of a view at a time where there is no vector code.
const PART_BYTES: usize = 4096;

/// Goes on with a CRC32C, as `crc32c::crc32c_append` does with a slice. A size-only view counts as
/// zeros.
///
/// A CPU that multiplies vectors without carries (VPCLMULQDQ) folds straight from the view. On
/// others the bytes are copied in parts, for the CRC32C instruction. With that instruction a
/// checksum of every chunk made puts over loopback take 1.33 times as long; folding takes 13 % of
/// their time.
pub fn crc32c(mut crc: u32, view: View) -> u32 {
    let mut at = 0;
    if let Some((folded, bytes)) = simd::fold_crc(!crc, view) {
        // The folded bytes follow a state of zero, and `crc32c_append` takes the complement of a
        // state.
        crc = crc32c::crc32c_append(!0, &folded);
        at = bytes;
    }
    let mut part = [0; PART_BYTES];
    while at < view.len_bytes() {
        let bytes = part.len().min(view.len_bytes() - at);
        access::read(view, at, &mut part[..bytes]);
        crc = crc32c::crc32c_append(crc, &part[..bytes]);
        at += bytes;
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Region;
    use crate::prng::Prng;

    #[test]
    fn every_length_at_every_alignment_is_as_the_definition_says() {
        let region = Region::private(2048).unwrap();
        let mut prng = Prng::new(7);
        let bytes: Vec<u8> = (0..2048).map(|_| prng.next_u64() as u8).collect();
        access::write(region.view(), 0, &bytes);
        for length in 0..1100 {
            let start = length % 67;
            for before in [0, !0, 0x1234_5678] {
                let view = region.view().part(start, length);
                let right = crc32c::crc32c_append(before, &bytes[start..start + length]);
                assert_eq!(crc32c(before, view), right, "{length} bytes at {start}");
            }
        }
        // RFC 3720, B.4: 32 bytes of zeros.
        access::fill(region.view(), 0);
        assert_eq!(crc32c(0, region.view().part(0, 32)), 0x8a91_36aa);
    }

    #[test]
    fn a_view_without_bytes_counts_as_zeros() {
        let zeros = crc32c::crc32c(&[0; 1000]);
        assert_eq!(crc32c(0, View::size_only(1000)), zeros);
    }
}
