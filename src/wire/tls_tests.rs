//! [`Tls`] without sockets: both ends in one thread, and what passes between them in between.

use super::*;
use crate::wire::{Claim, Initiator, JobKey, Purpose, Responder};

fn secrets(number: u8) -> ChannelSecrets {
    ChannelSecrets {
        initiator: [number; 32],
        responder: [number + 100; 32],
    }
}

/// Carries what one end has to send to the other. Returns what that opens.
fn carry(from: &mut Tls, to: &mut Tls) -> Result<Vec<u8>, TlsError> {
    let mut got = Vec::new();
    while !from.unsent().is_empty() {
        let space = to.space();
        let bytes = from.unsent().len().min(space.len());
        space[..bytes].copy_from_slice(&from.unsent()[..bytes]);
        to.note_received(bytes);
        from.note_sent(bytes);
        to.open(&mut |opened| {
            got.extend_from_slice(opened);
            opened.len()
        })?;
    }
    Ok(got)
}

fn handshake(one: &mut Tls, other: &mut Tls) -> Result<(), TlsError> {
    for _ in 0..10 {
        carry(one, other)?;
        carry(other, one)?;
    }
    Ok(())
}

fn pair() -> [Tls; 2] {
    let (mut one, mut other) = (
        Tls::initiator(&secrets(1), 4).unwrap(),
        Tls::responder(&secrets(1), 4).unwrap(),
    );
    assert!(!one.is_ready() && !other.is_ready());
    handshake(&mut one, &mut other).unwrap();
    assert!(one.is_ready() && other.is_ready());
    [one, other]
}

fn seal(tls: &mut Tls, bytes: &[u8]) -> usize {
    let mut fill = |room: &mut [u8]| {
        let here = room.len().min(bytes.len());
        room[..here].copy_from_slice(&bytes[..here]);
        here
    };
    tls.seal(&mut fill).unwrap()
}

#[test]
fn what_one_end_seals_the_other_opens_and_nobody_reads_it_in_between() {
    let [mut one, mut other] = pair();
    let text: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
    let (mut at, mut got) = (0, Vec::new());
    while at < text.len() {
        let sealed = seal(&mut one, &text[at..]);
        at += sealed;
        if sealed == 0 || at == text.len() {
            let shown = one.unsent().windows(16).any(|w| w == &text[..16]);
            assert!(!shown, "readable on its way");
            got.extend(carry(&mut one, &mut other).unwrap());
        }
    }
    assert_eq!(got, text);
    assert_eq!(seal(&mut other, b"back"), 4);
    assert_eq!(carry(&mut other, &mut one).unwrap(), b"back");
}

#[test]
fn what_is_not_taken_is_given_again_in_order_whatever_is_sealed_meanwhile() {
    let [mut one, mut other] = pair();
    for number in 0..100u8 {
        assert_eq!(seal(&mut one, &[number; 100]), 100);
    }
    let bytes = one.unsent().len();
    other.space()[..bytes].copy_from_slice(one.unsent());
    other.note_received(bytes);
    one.note_sent(bytes);
    let mut got = Vec::new();
    while got.len() < 10_000 {
        // Opens records that nobody has asked for.
        assert_eq!(seal(&mut other, b"x"), 1);
        let mut wanted = 7;
        other
            .open(&mut |opened| {
                let taken = opened.len().min(wanted);
                got.extend_from_slice(&opened[..taken]);
                wanted -= taken;
                taken
            })
            .unwrap();
        if other.unsent().len() > SEALED_BYTES_MAX {
            carry(&mut other, &mut one).unwrap();
        }
    }
    assert!(!other.holds_opened());
    let right = (0..10_000).map(|i| (i / 100) as u8);
    assert!(got.into_iter().eq(right));
}

#[test]
fn an_end_with_another_key_is_refused_by_either_side() {
    // A relay between the two has the hello and the nonces, and not the job's key.
    let stranger = Tls::responder(&secrets(2), 4).unwrap();
    let one = Tls::initiator(&secrets(1), 4).unwrap();
    for (mut one, mut other) in [
        (one, stranger),
        // It knows one of the two keys.
        (
            Tls::initiator(&secrets(1), 4).unwrap(),
            Tls::responder(
                &ChannelSecrets {
                    initiator: [2; 32],
                    ..secrets(1)
                },
                4,
            )
            .unwrap(),
        ),
    ] {
        let error = handshake(&mut one, &mut other).unwrap_err();
        assert_eq!(error, TlsError::OtherKey, "{error}");
        assert!(!other.is_ready());
    }
}

#[test]
fn a_changed_byte_is_noticed_wherever_it_is() {
    let mut random = crate::prng::Prng::new(3);
    for _ in 0..50 {
        let [mut one, mut other] = pair();
        seal(&mut one, &[7; 300]);
        let bytes = one.unsent().len();
        let space = &mut other.space()[..bytes];
        space.copy_from_slice(one.unsent());
        space[5 + random.below(bytes as u64 - 5) as usize] ^= 1 << random.below(8);
        other.note_received(bytes);
        let error = other.open(&mut |opened| opened.len()).unwrap_err();
        assert!(matches!(error, TlsError::Broken(_)), "{error}");
    }
}

#[test]
fn a_replayed_record_is_refused() {
    let [mut one, mut other] = pair();
    seal(&mut one, b"once");
    let record = one.unsent().to_vec();
    assert_eq!(carry(&mut one, &mut other).unwrap(), b"once");
    other.space()[..record.len()].copy_from_slice(&record);
    other.note_received(record.len());
    assert!(other.open(&mut |opened| opened.len()).is_err());
}

#[test]
fn any_bytes_before_and_after_the_handshake_are_an_error_or_wait_for_more() {
    let mut random = crate::prng::Prng::new(4);
    for round in 0..2000 {
        let mut tls = match round % 4 {
            0 => Tls::initiator(&secrets(1), 4).unwrap(),
            1 if round % 100 == 1 => pair().into_iter().last().unwrap(),
            _ => Tls::responder(&secrets(1), 4).unwrap(),
        };
        let bytes = 1 + random.below(400) as usize;
        let space = &mut tls.space()[..bytes];
        space.iter_mut().for_each(|b| *b = random.next_u64() as u8);
        // Often something that looks like the begin of a record.
        if random.below(2) == 0 && bytes >= 5 {
            let length = random.below(300) as u16;
            space[..3].copy_from_slice(&[20 + random.below(4) as u8, 3, 3]);
            space[3..5].copy_from_slice(&length.to_be_bytes());
        }
        tls.note_received(bytes);
        let mut got = 0;
        let opened = tls.open(&mut |opened| {
            got += opened.len();
            opened.len()
        });
        assert_eq!(got, 0, "{opened:?}");
    }
}

#[test]
fn keys_are_renewed_before_they_are_worn_out() {
    // The real suite, but its keys are worn out after 64 records: 2^24 take too long here.
    let short = match trust::SUITES[0] {
        rustls::SupportedCipherSuite::Tls13(suite) => {
            let mut common = rustls::crypto::CipherSuiteCommon {
                suite: suite.common.suite,
                hash_provider: suite.common.hash_provider,
                confidentiality_limit: 64,
            };
            common.confidentiality_limit = 64;
            Box::leak(Box::new(rustls::Tls13CipherSuite {
                common,
                hkdf_provider: suite.hkdf_provider,
                aead_alg: suite.aead_alg,
                quic: None,
            }))
        }
    };
    let suites = [rustls::SupportedCipherSuite::Tls13(short)];
    let config = trust::initiator(&secrets(1), &suites).unwrap();
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::from([127, 0, 0, 1])));
    let end = UnbufferedClientConnection::new(Arc::new(config), name).unwrap();
    let mut one = Tls::of(End::Initiator(end), 1).unwrap();
    let config = trust::responder(&secrets(1), &suites).unwrap();
    let end = UnbufferedServerConnection::new(Arc::new(config)).unwrap();
    let mut other = Tls::of(End::Responder(end), 1).unwrap();
    handshake(&mut one, &mut other).unwrap();
    let mut longest = 0;
    for round in 0..2000u32 {
        let ends = match round % 2 {
            0 => (&mut one, &mut other),
            _ => (&mut other, &mut one),
        };
        assert_eq!(seal(ends.0, &round.to_le_bytes()), 4);
        longest = longest.max(ends.0.unsent().len());
        let got = carry(ends.0, ends.1).unwrap();
        assert_eq!(got, round.to_le_bytes(), "record {round}");
    }
    // A record of 4 bytes, and now and then the announcement before it.
    assert!(longest > 4 + 5 + 17, "never renewed");
}

#[test]
fn both_ends_of_a_challenge_have_the_same_secrets_and_no_other_challenge_has_them() {
    let key = JobKey::derive(b"a secret of the job", b"job");
    let claim = Claim {
        purpose: Purpose::Data,
        initiator: 0,
        responder: 1,
        epoch: 2,
        detail: 3,
    };
    let mut seen: Vec<ChannelSecrets> = Vec::new();
    for (ours, theirs) in [([1; 32], [2; 32]), ([1; 32], [3; 32]), ([4; 32], [2; 32])] {
        let (mut initiator, hello) = Initiator::new(&key, &claim, &ours);
        let (responder, challenge) = Responder::new(&key, &hello, &theirs);
        initiator.handle_challenge(&challenge).unwrap();
        let secrets = initiator.channel();
        assert_eq!(secrets, responder.channel());
        assert_ne!(secrets.initiator, secrets.responder);
        assert!(!seen.contains(&secrets));
        assert_eq!(format!("{secrets:?}"), "ChannelSecrets(..)");
        seen.push(secrets);
    }
}
