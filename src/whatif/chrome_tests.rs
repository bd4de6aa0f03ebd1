//! All formats: told apart, compressed, bounded, and mutated. `LINERATE_TEST_SEEDS` sets how many
//! mutations are tried, divided by 4.

use super::trace::{Trace, WAIT_US_MAX};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{Read, Write};

const PROFILE: &str = include_str!("../../tests/data/profiler/cpu.json");
const DDP: &str = include_str!("../../tests/data/profiler/ddp.json");
const HOROVOD: &str = include_str!("../../tests/data/horovod/timeline.json");
const LOG: &str = "free text\n1\n2\n0.5,8\n0,16\n";
const LAYERS: &str = "order,name,params,wait_us\n0,a,4,1\n1,b,2,0.5\n";

/// Two ranks and two steps, as `linerate replay --trace-out` writes them.
const TIMELINE: &str = r#"{"traceEvents": [
{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "rank 0"}},
{"ph": "X", "name": "backward 0", "cat": "replay", "pid": 0, "tid": 0, "ts": 0.0, "dur": 30.0, "args": {"batch_ms": 0.05}},
{"ph": "i", "s": "t", "name": "fc.bias", "cat": "gradient", "pid": 0, "tid": 0, "ts": 10.0, "args": {"bytes": 40, "dtype": "f32"}},
{"ph": "i", "s": "t", "name": "fc", "cat": "gradient", "pid": 0, "tid": 0, "ts": 30.0, "args": {"bytes": 400, "dtype": "f32"}},
{"ph": "i", "s": "t", "name": "fc.bias", "cat": "gradient", "pid": 1, "tid": 0, "ts": 12.0, "args": {"bytes": 40, "dtype": "f32"}},
{"ph": "X", "name": "backward 1", "cat": "replay", "pid": 0, "tid": 0, "ts": 100.0, "dur": 30.0, "args": {"batch_ms": 0.05}},
{"ph": "i", "s": "t", "name": "fc.bias", "cat": "gradient", "pid": 0, "tid": 0, "ts": 120.0, "args": {"bytes": 40, "dtype": "f32"}},
{"ph": "i", "s": "t", "name": "fc", "cat": "gradient", "pid": 0, "tid": 0, "ts": 130.0, "args": {"bytes": 400, "dtype": "f32"}}
]}"#;

fn read(bytes: impl AsRef<[u8]>) -> Result<Trace, String> {
    Trace::read("test", bytes.as_ref()).map_err(|error| error.to_string())
}

fn error(bytes: impl AsRef<[u8]>) -> String {
    read(bytes).unwrap_err()
}

fn compress(bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes.as_ref()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn each_format_reads_alike_when_it_is_compressed() {
    for text in [PROFILE, DDP, HOROVOD, LOG, LAYERS, TIMELINE] {
        assert_eq!(read(compress(text)).unwrap(), read(text).unwrap());
    }
}

#[test]
fn our_own_timeline_gives_the_mean_of_the_steps_of_rank_0() {
    let trace = read(TIMELINE).unwrap();
    let seen = trace
        .gradients
        .iter()
        .map(|g| (g.name.as_str(), g.wait_us, g.bytes));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen, [("fc.bias", 15.0, 40), ("fc", 15.0, 400)]);
    assert_eq!((trace.steps, trace.batch_ms), (2, Some(0.05)));
    assert!(
        trace.notes[0].contains("rank 0, of 2 ranks"),
        "{:?}",
        trace.notes
    );
    let wrong = TIMELINE.replacen(r#""bytes": 40"#, r#""bytes": -1"#, 1);
    assert!(error(wrong).contains("event 2 (fc.bias): bytes are -1"));
    let wrong = TIMELINE.replace("backward", "forward");
    assert!(error(wrong).contains("no gradient of rank 0 lies in a span"));
}

#[test]
fn a_compressed_file_that_is_cut_off_is_used_as_far_as_it_goes() {
    let bytes = compress(PROFILE);
    let trace = read(&bytes[..bytes.len() * 9 / 10]).unwrap();
    assert_eq!((trace.gradients.len(), trace.steps), (6, 2));
    assert!(trace.notes[0].contains("cut off"), "{:?}", trace.notes);
    let bytes = compress(LOG);
    assert!(read(&bytes[..bytes.len() - 12]).is_err());
}

#[test]
fn a_value_without_an_end_is_refused_before_it_fills_the_memory() {
    let endless = |start: &str| {
        let start = std::io::Cursor::new(start.to_owned().into_bytes());
        Trace::read("test", start.chain(std::io::repeat(b'a')))
            .unwrap_err()
            .to_string()
    };
    assert!(endless(r#"[{"name":""#).contains("without the end of an event"));
    assert!(endless(r#"{"other":""#).contains("without the end of an event"));
    assert!(endless("text").contains("the most that is read of text"));
    let bomb = compress(vec![b' '; 80 << 20]);
    assert!(bomb.len() < 1 << 20);
    assert!(error([compress("[{\"name\":\""), bomb].concat()).contains("end of an event"));
    assert!(error(compress(vec![b'x'; 80 << 20])).contains("most that is read of text"));
}

#[test]
fn a_file_of_another_program_or_of_several_is_refused() {
    assert!(error(r#"[{"ph":"X","name":"draw","ts":1,"dur":1}]"#).contains("none of its 1 events"));
    let gradient = r#"{"ph":"X","name":"torch::autograd::AccumulateGrad","ts":1,"dur":1,"args":{"Input Dims":[[1]]}}"#;
    let both = format!("[{gradient},{}", &HOROVOD[1..]);
    assert!(error(both).contains("gradients of several programs"));
}

#[test]
fn far_too_many_events_of_one_name_are_one_error() {
    let event = format!(
        "{{\"ph\":\"X\",\"name\":\"{}\",\"ts\":1,\"dur\":1,\"args\":{{\"Input Dims\":[[1]]}}}},",
        "torch::autograd::AccumulateGrad"
    );
    let step = r#"{"ph":"X","name":"ProfilerStep#1","ts":0,"dur":9}]"#;
    let text = format!("[{}{step}", event.repeat(100_000));
    assert!(error(text).contains("100000 gradients in a step: at most 65536"));
}

#[test]
fn mutated_files_are_an_error_or_a_trace_and_never_a_panic() {
    // Parts that have gradients, small enough for many mutations a second.
    let part = |text: &str, from: &str| {
        let start = text.find(from).unwrap();
        let start = text[..start].rfind('{').unwrap();
        format!("[{}", &text[start..(start + 3000).min(text.len())])
    };
    let parts = [
        part(PROFILE, "torch::autograd::AccumulateGrad"),
        part(DDP, "\"c10d::allreduce_"),
        HOROVOD[..3000].into(),
        TIMELINE.into(),
        LOG.into(),
        LAYERS.into(),
    ];
    let given = std::env::var("LINERATE_TEST_SEEDS").ok();
    let count = given.map_or(5_000, |text| text.parse::<u64>().unwrap() / 4);
    for seed in 0..count {
        let mut prng = crate::prng::Prng::new(seed);
        for part in &parts {
            let mut bytes = part.clone().into_bytes();
            for _ in 0..=prng.below(4) {
                let at = prng.below(bytes.len() as u64) as usize;
                match prng.below(3) {
                    0 => bytes[at] = prng.next_u64() as u8,
                    // Numbers that are larger, negative, or none.
                    1 => bytes[at] = b"-.e09[]{}\","[prng.below(11) as usize],
                    _ => {
                        let until = (at + prng.below(200) as usize).min(bytes.len());
                        let copy = bytes[at..until].to_vec();
                        let to = prng.below(bytes.len() as u64) as usize;
                        drop(bytes.splice(to..to, copy));
                    }
                }
            }
            if prng.below(2) == 0 {
                bytes.truncate(prng.below(1 + bytes.len() as u64) as usize);
            }
            if prng.below(8) == 0 {
                bytes = compress(bytes);
                let at = prng.below(bytes.len() as u64) as usize;
                bytes[at] = prng.next_u64() as u8;
            }
            if let Ok(trace) = read(&bytes) {
                let is_good = |wait: f64| (0.0..=WAIT_US_MAX).contains(&wait);
                let is_good = trace.gradients.iter().all(|one| is_good(one.wait_us));
                assert!(is_good, "seed {seed}: {trace:?}");
                assert!(
                    trace.batch_ms.is_none_or(|ms| ms >= 0.0),
                    "seed {seed}: {trace:?}"
                );
            }
        }
    }
}
