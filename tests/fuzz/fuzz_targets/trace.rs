//! Whatever a file has: it is a trace whose times and sizes are inside the limits, or refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate::whatif::Trace;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = Trace::read("fuzz", bytes) {
        assert!(!trace.gradients.is_empty());
        assert!(trace.bytes() <= 1 << 48);
        for gradient in &trace.gradients {
            assert!((0.0..=1e9).contains(&gradient.wait_us));
        }
    }
});
