//! Who gets through the handshake, and who does not.

use super::*;

const CLAIM: Claim = Claim {
    purpose: Purpose::Data,
    initiator: 3,
    responder: 8,
    epoch: 77,
    detail: 5,
};

fn key() -> JobKey {
    JobKey::derive(b"a secret", b"job 1")
}

/// Both sides up to the proof, which has been accepted.
fn proven() -> (Initiator, Responder) {
    let (mut initiator, hello) = Initiator::new(&key(), &CLAIM, &[1; 32]);
    assert_eq!(Claim::parse(&hello), Ok(CLAIM));
    let (responder, challenge) = Responder::new(&key(), &hello, &[2; 32]);
    let proof = initiator.handle_challenge(&challenge).unwrap();
    responder.handle_proof(&proof).unwrap();
    (initiator, responder)
}

#[test]
fn two_ranks_of_a_job_accept_each_other_or_say_why_not() {
    let (initiator, responder) = proven();
    for detail in [0, 7, u32::MAX] {
        let verdict = responder.verdict(None, detail);
        assert_eq!(initiator.handle_verdict(&verdict), Ok(detail));
    }
    for refusal in Refusal::ALL {
        let verdict = responder.verdict(Some(refusal), 9);
        let refused = Err(HandshakeError::Refused(refusal));
        assert_eq!(initiator.handle_verdict(&verdict), refused);
    }
}

#[test]
fn another_secret_or_job_is_found_by_whoever_looks_first() {
    for other in [
        JobKey::derive(b"another", b"job 1"),
        JobKey::derive(b"a secret", b"job 2"),
        key().derive_for(b"x"),
    ] {
        let (mut initiator, hello) = Initiator::new(&other, &CLAIM, &[1; 32]);
        let (responder, challenge) = Responder::new(&key(), &hello, &[2; 32]);
        let wrong = Err(HandshakeError::WrongProof);
        assert_eq!(initiator.handle_challenge(&challenge), wrong);
        let forged = message_of(
            PROOF,
            &other.mac(&[b"initiator", &hello, [2; 32].as_slice()]),
            0,
        );
        assert_eq!(
            responder.handle_proof(&forged),
            Err(HandshakeError::WrongProof)
        );
    }
}

#[test]
fn a_replayed_hello_with_its_recorded_proof_is_refused() {
    let (mut initiator, hello) = Initiator::new(&key(), &CLAIM, &[1; 32]);
    let (_, challenge) = Responder::new(&key(), &hello, &[2; 32]);
    let proof = initiator.handle_challenge(&challenge).unwrap();
    let (again, _) = Responder::new(&key(), &hello, &[3; 32]);
    assert_eq!(again.handle_proof(&proof), Err(HandshakeError::WrongProof));
}

#[test]
fn a_challenge_sent_back_is_no_proof() {
    let (_, hello) = Initiator::new(&key(), &CLAIM, &[1; 32]);
    let (responder, challenge) = Responder::new(&key(), &hello, &[2; 32]);
    let mut mirrored = message_of(PROOF, &[0; 32], 0);
    mirrored[8..40].copy_from_slice(&challenge[40..72]);
    assert_eq!(
        responder.handle_proof(&mirrored),
        Err(HandshakeError::WrongProof)
    );
}

#[test]
fn every_changed_bit_of_every_message_is_found() {
    let (mut initiator, hello) = Initiator::new(&key(), &CLAIM, &[1; 32]);
    let (responder, challenge) = Responder::new(&key(), &hello, &[2; 32]);
    let proof = initiator.handle_challenge(&challenge).unwrap();
    let verdict = responder.verdict(None, 0);
    for bit in 0..8 * HANDSHAKE_BYTES {
        let changed = |message: &HandshakeMessage| {
            let mut message = *message;
            message[bit / 8] ^= 1 << (bit % 8);
            message
        };
        let (responder_of_changed, _) = Responder::new(&key(), &changed(&hello), &[2; 32]);
        let is_found = Claim::parse(&changed(&hello)).is_err()
            || responder_of_changed.handle_proof(&proof).is_err();
        assert!(is_found, "hello, bit {bit}");
        assert!(
            initiator
                .clone()
                .handle_challenge(&changed(&challenge))
                .is_err()
        );
        assert!(responder.handle_proof(&changed(&proof)).is_err());
        assert!(initiator.handle_verdict(&changed(&verdict)).is_err());
    }
}

#[test]
fn errors_say_what_to_look_at() {
    let mut hello = CLAIM.emit(&[0; 32]);
    hello[8] = 9;
    let text = Claim::parse(&hello).unwrap_err().to_string();
    assert!(text.contains("purpose 9"), "{text}");
    assert!(
        HandshakeError::WrongProof
            .to_string()
            .contains("LINERATE_SECRET")
    );
    let text = HandshakeError::Refused(Refusal::Full).to_string();
    assert!(text.contains("as many connections"), "{text}");
}

/// What is wrong with a message, without its values.
fn kind_of(error: HandshakeError) -> &'static str {
    match error {
        HandshakeError::Malformed(which) => which,
        HandshakeError::UnknownPurpose(_) => "purpose",
        HandshakeError::WrongProof => "proof",
        HandshakeError::Refused(_) => "refused",
    }
}

/// The four messages of a good handshake.
fn good() -> (Initiator, Responder, [HandshakeMessage; 4]) {
    let (mut initiator, hello) = Initiator::new(&key(), &CLAIM, &[1; 32]);
    let (responder, challenge) = Responder::new(&key(), &hello, &[2; 32]);
    let proof = initiator.handle_challenge(&challenge).unwrap();
    let refused = responder.verdict(Some(Refusal::Full), 0);
    (initiator, responder, [hello, challenge, proof, refused])
}

#[test]
fn mutated_handshakes_are_refused_and_every_refusal_is_reached() {
    let mut random = crate::prng::Prng::new(0x5ec2e7);
    let (mut initiator, responder, messages) = good();
    let mut reached = std::collections::BTreeSet::new();
    for _ in 0..100_000 {
        let which = random.below(4) as usize;
        let mut message = messages[which];
        for _ in 0..random.below(3) {
            let at = random.below(HANDSHAKE_BYTES as u64) as usize;
            // The purpose is one byte of eighty.
            let at = if random.below(8) == 0 { 8 } else { at };
            message[at] ^= 1 << random.below(8);
        }
        let is_same = message == messages[which];
        let result = match which {
            0 => Claim::parse(&message).map(|_| ()),
            1 => initiator.handle_challenge(&message).map(|_| ()),
            2 => responder.handle_proof(&message),
            _ => initiator.handle_verdict(&message).map(|_| ()),
        };
        // A hello proves nothing by itself, and the verdict is a refusal.
        let may_pass = which == 0 || is_same;
        match result {
            Ok(()) => assert!(may_pass && which != 3, "{message:?}"),
            Err(error) => {
                reached.insert(kind_of(error));
            }
        }
        if which == 1 && !is_same {
            // A forged challenge leaves its nonce behind; the next good one replaces it.
            initiator.handle_challenge(&messages[1]).unwrap();
        }
    }
    let all = [
        "challenge",
        "hello",
        "proof",
        "purpose",
        "refused",
        "verdict",
    ];
    let missing: Vec<_> = all.iter().filter(|kind| !reached.contains(*kind)).collect();
    assert!(missing.is_empty(), "never reached: {missing:?}");
}
