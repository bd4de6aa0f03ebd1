//! Traces of `torch.profiler`: recorded ones, and written ones for what no CPU records.

use super::chrome::parse;
use super::trace::Trace;

const ACCUMULATE: &str = "torch::autograd::AccumulateGrad";
const EVALUATE: &str = "autograd::engine::evaluate_function";

const RECORDED: &str = include_str!("../../tests/data/profiler/cpu.json");

fn read(text: &str) -> Result<Trace, String> {
    parse("test", text.as_bytes())
}

fn error(text: &str) -> String {
    read(text).unwrap_err()
}

/// A trace of these events, each as its fields.
fn list(events: &[&str]) -> String {
    let events: Vec<_> = events
        .iter()
        .map(|e| format!("{{\"ph\":\"X\",{e}}}"))
        .collect();
    format!("[{}]", events.join(",\n"))
}

/// A gradient of this many floats.
fn gradient(start: u32, dur: u32, count: u32) -> String {
    format!(
        r#""name":"{ACCUMULATE}","cat":"cpu_op","pid":7,"tid":1,"ts":{start},"dur":{dur},"args":{{"Input Dims":[[{count}]],"Input type":["float"]}}"#
    )
}

#[test]
fn a_recorded_trace_gives_sizes_and_the_means_of_its_three_steps() {
    let trace = read(RECORDED).unwrap();
    let bytes: Vec<u64> = trace.gradients.iter().map(|one| one.bytes).collect();
    assert_eq!(bytes, [40, 20_480, 2048, 1 << 20, 2048, 1 << 19]);
    // Computed from the file by another program.
    let expected = [31172.061, 36.766, 32281.489, 49.743, 15789.445, 46.684];
    for (got, expected) in trace.gradients.iter().zip(expected) {
        assert!((got.wait_us - expected).abs() < 0.01, "{got:?}");
    }
    assert!((trace.batch_ms.unwrap() - 118.509).abs() < 0.001);
    assert!((trace.forward_ms.unwrap() - 23.28).abs() < 0.001);
    assert!((trace.spread - 0.018856).abs() < 1e-6);
    assert_eq!((&*trace.source, &*trace.machine), ("torch.profiler", ""));
    assert_eq!((trace.steps, trace.notes.len()), (3, 0));
    assert_eq!(trace.gradients[1].name, "gradient1 [10,512]");
}

#[test]
fn the_first_gpu_that_a_file_names_is_its_machine() {
    let named = r#""deviceProperties": [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "B"}]"#;
    let text = RECORDED.replacen("\"deviceProperties\": []", named, 1);
    assert_eq!(read(&text).unwrap().machine, "NVIDIA H100");
    let odd = RECORDED.replacen("\"deviceProperties\": []", "\"deviceProperties\": 7", 1);
    assert_eq!(read(&odd).unwrap().machine, "");
}

#[test]
fn on_a_gpu_a_gradient_is_ready_with_the_last_kernel_launched_until_then() {
    let launch = |start: u32, number: u32| {
        format!(
            r#""name":"cudaLaunchKernel","cat":"cuda_runtime","pid":7,"tid":1,"ts":{start},"dur":2,"args":{{"correlation":{number}}}"#
        )
    };
    let kernel = |start: u32, dur: u32, number: u32| {
        format!(
            r#""name":"gemm","cat":"kernel","pid":0,"tid":7,"ts":{start},"dur":{dur},"args":{{"correlation":{number},"stream":7}}"#
        )
    };
    let backward = format!(
        r#""name":"{EVALUATE}: MmBackward0","cat":"cpu_op","pid":7,"tid":1,"ts":100,"dur":9"#
    );
    let events = [
        r#""name":"ProfilerStep#1","cat":"user_annotation","pid":7,"tid":1,"ts":90,"dur":900"#
            .into(),
        backward,
        // Of the forward pass.
        launch(95, 1),
        kernel(96, 9, 1),
        launch(101, 2),
        kernel(200, 50, 2),
        // Launches nothing: the kernel before it counts.
        gradient(110, 5, 10),
        gradient(120, 9, 20),
        launch(122, 3),
        kernel(260, 40, 3),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let trace = read(&list(&events)).unwrap();
    let waits: Vec<f64> = trace.gradients.iter().map(|one| one.wait_us).collect();
    assert_eq!(waits, [50.0, 50.0]);
    assert_eq!(trace.batch_ms, Some(0.9));
}

#[test]
fn steps_that_are_not_marked_are_told_apart_by_what_repeats() {
    let events: Vec<String> = (0..9)
        .map(|at| gradient(100 * at, 10, 1 + at % 3))
        .collect();
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let trace = read(&list(&events)).unwrap();
    assert_eq!(
        (trace.gradients.len(), trace.steps, trace.batch_ms),
        (3, 3, None)
    );
    assert_eq!(trace.notes.len(), 2);
    let waits: Vec<f64> = trace.gradients.iter().map(|one| one.wait_us).collect();
    assert_eq!(waits, [10.0, 100.0, 100.0]);
}

#[test]
fn a_file_that_is_cut_off_is_used_as_far_as_it_goes() {
    // Inside of the last of three steps.
    let last = RECORDED.rfind(&format!("\"{ACCUMULATE}\"")).unwrap();
    let trace = read(&RECORDED[..last]).unwrap();
    assert_eq!((trace.gradients.len(), trace.steps), (6, 2));
    assert!(trace.notes[0].contains("cut off"), "{:?}", trace.notes);
    assert!(trace.notes[1].contains("1 of 3 steps"), "{:?}", trace.notes);
    assert!(error(&RECORDED[..100]).contains("EOF"));
}

#[test]
fn what_is_wrong_is_told_with_the_event() {
    let good = gradient(1, 1, 1);
    let cases = [
        (list(&[]), "none of its 0 events"),
        (
            list(&[
                &good,
                r#""name":"ProfilerStep#1","pid":7,"tid":1,"ts":5,"dur":9"#,
            ]),
            "no gradient lies in a step",
        ),
        (
            list(&[&good, &good.replace(r#""pid":7"#, r#""pid":8"#)]),
            "2 processes (7, 8)",
        ),
        (
            list(&[&good, &good.replace(r#""dur":1"#, r#""dur":-5"#)]),
            "event 1 (torch::autograd",
        ),
        (
            list(&[&good.replace("Input Dims", "Dims")]),
            "record_shapes=True",
        ),
        (list(&[&good.replace("[[1]]", "[[-1]]")]), "its shape is"),
        (
            list(&[&good.replace("[[1]]", "[[4611686018427387904]]")]),
            "its shape is",
        ),
        (
            list(&[&good.replace(r#"["float"]"#, r#"["long"]"#)]),
            "its type is 'long'",
        ),
        (
            list(&[&good.replace(r#""ts":1"#, r#""ts":"x""#)]),
            "line 1 column",
        ),
        ("{}".into(), "none of its 0 events"),
        ("[1]".into(), "line 1 column"),
        (format!("{} x", list(&[&good])), "trailing characters"),
    ];
    for (text, expected) in cases {
        let error = error(&text);
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn with_ddp_what_communicates_is_taken_out_of_gradients_and_steps() {
    let trace = read(include_str!("../../tests/data/profiler/ddp.json")).unwrap();
    let bytes: Vec<u64> = trace.gradients.iter().map(|one| one.bytes).collect();
    assert_eq!(bytes, [40, 20_480, 2048, 1 << 20, 2048, 1 << 19]);
    let note = trace
        .notes
        .iter()
        .find(|note| note.contains("in 2 allreduces"));
    let note = note.unwrap_or_else(|| panic!("{:?}", trace.notes));
    assert!(note.contains("[[267786]], [[131584]]"), "{note}");
    // Computed from the file by another program.
    let expected = [1731.500, 131.891, 2285.993, 96.775, 1222.983, 138.785];
    for (got, expected) in trace.gradients.iter().zip(expected) {
        assert!((got.wait_us - expected).abs() < 0.01, "{got:?}");
    }
    assert!(
        (trace.batch_ms.unwrap() - 35.3193).abs() < 0.001,
        "{:?}",
        trace.batch_ms
    );
}

#[test]
fn on_a_gpu_kernels_of_nccl_are_communication_and_make_no_gradient_ready() {
    let launch = |start: u32, number: u32| {
        format!(
            r#""name":"cudaLaunchKernel","cat":"cuda_runtime","pid":7,"tid":1,"ts":{start},"dur":2,"args":{{"correlation":{number}}}"#
        )
    };
    let kernel = |name: &str, start: u32, dur: u32, number: u32| {
        format!(
            r#""name":"{name}","cat":"kernel","pid":0,"tid":7,"ts":{start},"dur":{dur},"args":{{"correlation":{number},"stream":{number}}}"#
        )
    };
    let events = [
        r#""name":"ProfilerStep#1","cat":"user_annotation","pid":7,"tid":1,"ts":90,"dur":900"#
            .into(),
        format!(r#""name":"{EVALUATE}: MmBackward0","cat":"cpu_op","pid":7,"tid":1,"ts":100,"dur":9"#),
        launch(101, 2),
        kernel("gemm", 200, 50, 2),
        gradient(110, 5, 10),
        r#""name":"record_param_comms","cat":"cpu_op","pid":7,"tid":1,"ts":116,"dur":3,"args":{"Collective name":"allreduce","In msg nelems":10,"dtype":"Float","Group size":8}"#.into(),
        launch(117, 9),
        kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 250, 100, 9),
        launch(119, 3),
        kernel("gemm", 260, 40, 3),
        gradient(120, 9, 20),
    ];
    let events: Vec<&str> = events.iter().map(String::as_str).collect();
    let trace = read(&list(&events)).unwrap();
    let waits: Vec<f64> = trace.gradients.iter().map(|one| one.wait_us).collect();
    assert_eq!(waits, [50.0, 50.0]);
    // Of the allreduce, 50 us come after the last gradient.
    assert_eq!(trace.batch_ms, Some(0.85));
    for part in [
        "10 Float",
        "among 8 ranks",
        "0.100 ms of a step",
        "2 streams",
    ] {
        assert!(
            trace.notes.iter().any(|note| note.contains(part)),
            "{part}: {:?}",
            trace.notes
        );
    }
}

#[test]
fn steps_that_overlap_are_refused() {
    let step = |at: u32, start: u32| {
        format!(r#""name":"ProfilerStep#{at}","pid":7,"tid":1,"ts":{start},"dur":9"#)
    };
    let error = error(&list(&[&gradient(1, 1, 1), &step(1, 0), &step(2, 5)]));
    assert!(error.contains("steps overlap: one ends at 9 us"), "{error}");
}
