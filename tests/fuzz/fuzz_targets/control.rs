//! Whatever a control message says: what is read is emitted as something that reads the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate::transport::CONTROL_BYTES;
use linerate::unstable::wire::ControlMessage;

fuzz_target!(|bytes: &[u8]| {
    let Some(message) = bytes.first_chunk::<CONTROL_BYTES>() else {
        return;
    };
    if let Ok(read) = ControlMessage::parse(message) {
        assert_eq!(ControlMessage::parse(&read.emit()).ok(), Some(read));
    }
});
