//! Timelines of Horovod.

use super::chrome::parse;
use super::trace::Trace;

const WRITTEN: &str = include_str!("../../tests/data/horovod/timeline.json");

fn read(text: &str) -> Result<Trace, String> {
    parse("test", text.as_bytes())
}

#[test]
fn a_timeline_that_is_cut_off_gives_names_sizes_and_means() {
    let trace = read(WRITTEN).unwrap();
    let seen: Vec<_> = trace
        .gradients
        .iter()
        .map(|g| (g.name.as_str(), g.bytes))
        .collect();
    let expected = [
        ("allreduce.fc.bias", 40),
        ("allreduce.fc.weight", 20_480),
        ("allreduce.conv.weight", 524_288),
    ];
    assert_eq!(seen, expected);
    let waits: Vec<f64> = trace.gradients.iter().map(|g| g.wait_us).collect();
    // 1000, 990 and 980 us after the first, which is ready 10 us later in each step.
    assert_eq!(waits, [0.0, 990.0, 8000.0]);
    assert_eq!(trace.steps, 3);
    // 50,010 us from step to step; the last allreduce ends 2320 us after the last gradient.
    assert!((trace.batch_ms.unwrap() - 47.69).abs() < 1e-9, "{trace:?}");
    for part in [
        "cut off at line",
        "communicates for",
        "begin with the first gradient",
    ] {
        assert!(
            trace.notes.iter().any(|note| note.contains(part)),
            "{part}: {trace:?}"
        );
    }
}

#[test]
fn a_tensor_without_a_mark_of_rank_0_is_ready_when_its_negotiation_begins() {
    let text = WRITTEN.replace(r#""name": "0""#, r#""name": "2""#);
    let trace = read(&text).unwrap();
    let waits: Vec<f64> = trace.gradients.iter().map(|g| g.wait_us).collect();
    assert_eq!(waits, [0.0, 970.0, 8000.0]);
    assert!(
        trace
            .notes
            .iter()
            .any(|note| note.contains("no mark of rank 0"))
    );
}

#[test]
fn what_is_wrong_is_told_with_the_event_or_the_tensor() {
    let first = r#""ts": 1080"#;
    let cases = [
        (
            WRITTEN.replacen(first, r#""ts": 4294967295"#, 1),
            "do not go back",
        ),
        (
            WRITTEN.replacen(first, r#""ts": -1"#, 1),
            "event 4 (NEGOTIATE_ALLREDUCE): ts is -1",
        ),
        (
            WRITTEN.replace("[10, 512]", "10x512"),
            "tensor allreduce.fc.weight of process 2: its shape is '10x512'",
        ),
        (
            WRITTEN.replace("float32", "float99"),
            "unknown type 'float99'",
        ),
    ];
    for (text, expected) in cases {
        let error = read(&text).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // Before any allreduce has ended.
    let end = WRITTEN.find("NCCL_ALLREDUCE").unwrap();
    let error = read(&WRITTEN[..end]).unwrap_err();
    assert!(error.contains("no end with dtype and shape"), "{error}");
}
