//! Whatever a stranger says: nobody without the key is let in.
#![no_main]

use libfuzzer_sys::fuzz_target;
use linerate::unstable::wire::{Claim, HANDSHAKE_BYTES, Initiator, JobKey, Purpose, Responder};

fuzz_target!(|bytes: &[u8]| {
    let key = JobKey::derive(b"a secret", b"job");
    let mut messages = bytes.chunks_exact(HANDSHAKE_BYTES);
    let mut next = || messages.next().and_then(|m| m.first_chunk::<HANDSHAKE_BYTES>());
    if let Some(hello) = next()
        && Claim::parse(hello).is_ok()
        && let Some(proof) = next()
    {
        let (responder, _) = Responder::new(&key, hello, &[7; 32]);
        assert!(responder.handle_proof(proof).is_err());
    }
    let claim = Claim {
        purpose: Purpose::Data,
        initiator: 0,
        responder: 1,
        epoch: 2,
        detail: 3,
    };
    let (mut initiator, _) = Initiator::new(&key, &claim, &[8; 32]);
    if let Some(challenge) = next() {
        assert!(initiator.handle_challenge(challenge).is_err());
        assert!(initiator.handle_verdict(challenge).is_err());
    }
});
