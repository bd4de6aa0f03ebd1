//! Every field of the settings at its bounds and beyond, set in the struct.

use super::*;

type Set = fn(&mut Config, u64);

fn checked(set: Set, value: u64) -> Result<()> {
    let mut config = Config::default();
    set(&mut config, value);
    config.check()
}

/// Field, how to set it, what is allowed at both ends, what is not.
const FIELDS: [(&str, Set, [u64; 2], &[u64]); 16] = [
    (
        "chunk_bytes",
        |c, n| c.chunk_bytes = n as usize,
        [4096, 64 << 20],
        &[0, 1, 100, 4032, 4097, (64 << 20) + 64, 1 << 40],
    ),
    (
        "window_bytes",
        |c, n| c.window_bytes = n as usize,
        [16 << 10, 16 << 20],
        &[0, 7, 4096, (16 << 10) + 1, (16 << 20) + 64],
    ),
    (
        "threads",
        |c, n| c.threads = Some(n as usize),
        [1, 64],
        &[0, 65],
    ),
    (
        "tcp.rails",
        |c, n| c.tcp.rails = n as u32,
        [1, 16],
        &[0, 17, 1000],
    ),
    (
        "tcp.pace_bits_per_second",
        |c, n| c.tcp.pace_bits_per_second = Some(n),
        [1000, 1_000_000_000_000_000],
        &[0, 999, 1_000_000_000_000_001],
    ),
    (
        "tcp.secret",
        |c, n| c.tcp.secret = Some(vec![7; n as usize]),
        [16, 4096],
        &[0, 15, 4097],
    ),
    (
        "job.secret",
        |c, n| c.job.secret = Secret::Text(vec![7; n as usize]),
        [16, 4096],
        &[0, 15, 4097],
    ),
    (
        "verbs.slots",
        |c, n| c.verbs.slots = Some(n as u32),
        [8, 1024],
        &[0, 7, 1025],
    ),
    (
        "verbs.chunk_bytes",
        |c, n| c.verbs.chunk_bytes = n as u32,
        [4096, 64 << 20],
        &[0, 100, 4097, (64 << 20) + 64],
    ),
    (
        "verbs.gid_index",
        |c, n| c.verbs.gid_index = Some(n as u32),
        [0, 255],
        &[256],
    ),
    (
        "verbs.service_level",
        |c, n| c.verbs.service_level = n as u8,
        [0, 15],
        &[16],
    ),
    (
        "verbs.ack_timeout",
        |c, n| c.verbs.ack_timeout = n as u8,
        [8, 22],
        &[0, 7, 23],
    ),
    (
        "verbs.queue_pairs",
        |c, n| c.verbs.queue_pairs = n as u32,
        [1, 8],
        &[0, 9],
    ),
    (
        "verbs.mtu_bytes",
        |c, n| c.verbs.mtu_bytes = Some(n as u32),
        [256, 4096],
        &[0, 128, 255, 1500, 8192],
    ),
    (
        "verbs.inline_bytes",
        |c, n| c.verbs.inline_bytes = n as u32,
        [0, 1024],
        &[1025],
    ),
    (
        "verbs.signal_every",
        |c, n| c.verbs.signal_every = n as u32,
        [1, 64],
        &[0, 65],
    ),
];

#[test]
fn numbers_are_taken_up_to_their_bounds_and_refused_beyond_by_name() {
    for (name, set, bounds, beyond) in FIELDS {
        for bound in bounds {
            assert_eq!(checked(set, bound), Ok(()), "{name} = {bound}");
        }
        for &value in beyond {
            let text = checked(set, value).unwrap_err().to_string();
            let shown = [name, &value.to_string(), &bounds[0].to_string()];
            let is_told = shown.iter().all(|word| text.contains(word));
            assert!(is_told && text.contains(&bounds[1].to_string()), "{text}");
        }
    }
    let text = checked(|c, n| c.verbs.break_after = Some(n), 0);
    assert!(text.unwrap_err().to_string().contains("verbs.break_after"));
}

#[test]
fn times_are_above_zero_and_at_most_a_thousand_million_seconds() {
    type SetTime = fn(&mut Config, Duration);
    let fields: [(&str, SetTime); 3] = [
        ("timeout (", |c, time| c.timeout = time),
        ("tcp.timeout", |c, time| c.tcp.timeout = time),
        ("verbs.timeout", |c, time| c.verbs.timeout = time),
    ];
    let most = Duration::from_secs(1_000_000_000);
    for (name, set) in fields {
        let check = |time| {
            let mut config = Config::default();
            set(&mut config, time);
            config.check()
        };
        assert_eq!(check(Duration::from_nanos(1)), Ok(()), "{name}");
        assert_eq!(check(most), Ok(()), "{name}");
        let beyond = [
            Duration::ZERO,
            most + Duration::from_nanos(1),
            Duration::MAX,
        ];
        for time in beyond {
            let text = check(time).unwrap_err().to_string();
            assert!(text.contains(name) && text.contains("1e9"), "{text}");
        }
    }
}

#[test]
fn an_empty_list_of_interfaces_is_refused() {
    let set: Set = |c, _| c.job.interfaces = Some(String::new());
    let text = checked(set, 0).unwrap_err().to_string();
    assert!(text.contains("job.interfaces"), "{text}");
    assert_eq!(
        checked(|c, _| c.job.interfaces = Some("eth".into()), 0),
        Ok(())
    );
}
