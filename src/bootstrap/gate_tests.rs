//! Strangers at the gate.

use super::*;
use std::io::Write;

fn credentials() -> Credentials {
    Credentials::new(&JobSettings::default(), "a job", 3).unwrap()
}

fn gate() -> (Gate, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (
        Gate::new(vec![listener], 0, &credentials()).unwrap(),
        address,
    )
}

/// Turns until so many have been refused; the time is an argument, so nothing here waits for a clock.
fn turn_until_refused(gate: &mut Gate, count: u64, now: Time) {
    while gate.refused < count {
        assert!(gate.turn(now).unwrap().is_empty());
        std::thread::yield_now();
    }
}

#[test]
fn garbage_is_refused_and_told_from_where() {
    let (mut gate, address) = gate();
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(&[b'x'; HANDSHAKE_BYTES]).unwrap();
    turn_until_refused(&mut gate, 1, Time(0));
    let from = stranger.local_addr().unwrap().to_string();
    let text = gate.refusals();
    assert!(text.contains(&from) && text.contains("no hello"), "{text}");
    assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn whoever_says_nothing_is_put_out_when_its_time_is_over() {
    let (mut gate, address) = gate();
    let _silent = TcpStream::connect(address).unwrap();
    while gate.strangers.is_empty() {
        gate.turn(Time(0)).unwrap();
    }
    let just_before = Time(0).after(TRIAL_TIME - Duration::from_nanos(1));
    gate.turn(just_before).unwrap();
    assert_eq!((gate.strangers.len(), gate.refused), (1, 0));
    turn_until_refused(&mut gate, 1, Time(0).after(TRIAL_TIME));
    assert!(gate.refusals().contains("said nothing more in time"));
}

#[test]
fn silent_connections_take_a_bounded_number_of_places_and_make_room() {
    let (mut gate, address) = gate();
    let count = STRANGERS_MAX + 40;
    let _silent: Vec<TcpStream> = (0..count)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    while gate.strangers.len() < STRANGERS_MAX {
        gate.turn(Time(0)).unwrap();
    }
    gate.turn(Time(0)).unwrap();
    assert_eq!((gate.strangers.len(), gate.refused), (STRANGERS_MAX, 0));
    turn_until_refused(&mut gate, 40, Time(0).after(TRIAL_TIME_FULL));
    assert!(gate.strangers.len() <= STRANGERS_MAX);
}

#[test]
fn a_hello_for_another_rank_start_or_purpose_gets_no_challenge() {
    let of = |claim: Claim, word: &str| {
        let (mut gate, address) = gate();
        let mut stranger = TcpStream::connect(address).unwrap();
        let (_, hello) = crate::wire::Initiator::new(&credentials().key, &claim, &[7; NONCE_BYTES]);
        stranger.write_all(&hello).unwrap();
        turn_until_refused(&mut gate, 1, Time(0));
        assert!(gate.refusals().contains(word), "{}", gate.refusals());
        assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
    };
    let good = Claim {
        purpose: Purpose::Control,
        initiator: 1,
        responder: 0,
        epoch: 3,
        detail: TO_STORE,
    };
    of(
        Claim {
            responder: 2,
            ..good
        },
        "wants rank 2",
    );
    of(Claim { epoch: 2, ..good }, "start 2 of the job");
    of(
        Claim {
            purpose: Purpose::Data,
            ..good
        },
        "wants data",
    );
}

#[test]
fn without_a_secret_only_loopback_is_served() {
    let open = JobSettings {
        is_insecure: true,
        ..JobSettings::default()
    };
    let far = "10.0.0.1".parse().unwrap();
    assert!(
        credentials()
            .check_may_serve("127.0.0.2".parse().unwrap())
            .is_ok()
    );
    let text = credentials().check_may_serve(far).unwrap_err().to_string();
    assert!(
        text.contains("LINERATE_SECRET") && text.contains("LINERATE_INSECURE"),
        "{text}"
    );
    assert!(
        Credentials::new(&open, "", 0)
            .unwrap()
            .check_may_serve(far)
            .is_ok()
    );
    let secret = JobSettings {
        secret: Secret::Text(vec![1; 16]),
        ..JobSettings::default()
    };
    assert!(
        Credentials::new(&secret, "", 0)
            .unwrap()
            .check_may_serve(far)
            .is_ok()
    );
}

#[test]
fn a_secret_s_file_is_its_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::temp_dir().join(format!("linerate-secret-{}", std::process::id()));
    std::fs::write(&path, "0123456789abcdef\n").unwrap();
    let read = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        read_secret(&Secret::File(path.clone()))
    };
    assert_eq!(
        read(0o600).unwrap().as_deref(),
        Some(&b"0123456789abcdef"[..])
    );
    let text = read(0o640).unwrap_err().to_string();
    assert!(text.contains("chmod 600") && text.contains("640"), "{text}");
    std::fs::write(&path, "short").unwrap();
    assert!(read(0o600).unwrap_err().to_string().contains("16 to"));
    std::fs::remove_file(&path).unwrap();
    assert!(
        read_secret(&Secret::File(path))
            .unwrap_err()
            .to_string()
            .contains("SECRET_FILE")
    );
}
