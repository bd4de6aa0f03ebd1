//! Where the command's results go: files, devices, pipes, readers that leave, disks that are full.

use super::start::{linerate, parts, run, scratch};
use linerate::whatif::Trace;
use linerate_children::{Child, wait_for};
use rustix::process::Signal;
use serde_json::Value;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};

const ROW: &str = "bench allreduce -b 8 -e 8 -n 2 -w 1 --no-rotate";
const STEP: &str = "replay --scale 0 --steps 1 --ranks 1";

fn shell(script: &str) -> (Option<i32>, String, String) {
    let exe = env!("CARGO_BIN_EXE_linerate");
    let output = Command::new("bash")
        .args([
            "-c",
            &format!("set -o pipefail; {}", script.replace("linerate", exe)),
        ])
        .stdin(Stdio::null())
        .output();
    parts(output.unwrap())
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_anything_is_measured() {
    for line in [
        format!("{ROW} --json /nonexistent/x.json"),
        format!("{ROW} --json /tmp"),
        format!("{STEP} --json /nonexistent/x.json"),
        format!("{STEP} --trace-out /nonexistent/x.json"),
    ] {
        let (code, stdout, stderr) = run(&line);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
        assert!(stderr.contains("cannot be written"), "{line}: {stderr}");
        assert!(stderr.contains("a folder that exists"), "{line}: {stderr}");
    }
}

#[test]
fn a_pipe_is_written_into_and_never_replaced_by_a_file() {
    let folder = scratch("pipe");
    let pipe = folder.join("pipe");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    // Opened both ways, so that no side waits for the other.
    let both = std::fs::File::options().read(true).write(true).open(&pipe);
    let both = both.unwrap();
    for line in [
        format!("{ROW} --json {}", pipe.display()),
        format!("{STEP} --json {}", pipe.display()),
    ] {
        let (code, _, stderr) = run(&line);
        assert_eq!(code, Some(0), "{line}: {stderr}");
        assert!(std::fs::metadata(&pipe).unwrap().file_type().is_fifo());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "{line}");
    }
    drop(both);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    for line in [ROW, STEP, "info"] {
        let (code, stdout, stderr) = shell(&format!("linerate {line} | head -1"));
        assert_eq!(code, Some(0), "{line}: {stderr}");
        assert_eq!(stdout.lines().count(), 1, "{line}");
        assert!(!stderr.contains("panicked"), "{line}: {stderr}");
    }
}

#[test]
fn a_full_disk_is_a_failure() {
    for line in [
        ROW.to_string(),
        STEP.into(),
        "info".into(),
        format!("{ROW} --json -"),
    ] {
        let (code, _, stderr) = shell(&format!("linerate {line} > /dev/full"));
        assert_eq!(code, Some(1), "{line}: {stderr}");
        assert!(stderr.contains("standard output"), "{line}: {stderr}");
    }
}

#[test]
fn a_chrome_trace_has_a_process_per_rank() {
    let file = scratch("chrome").join("trace.json");
    let line = format!(
        "replay --scale 0.05 --steps 1 --ranks 2 --trace-out {}",
        file.display()
    );
    let (code, _, stderr) = run(&line);
    assert_eq!(code, Some(0), "{stderr}");
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|event| event["ph"] == "M").count();
    assert_eq!(names, 2);
    let spans = events.iter().filter(|event| event["ph"] == "X");
    for span in spans {
        assert!(span["ts"].is_number() && span["dur"].as_f64().unwrap() >= 0.0);
    }
    // It is a trace again: each gradient has its size, and was announced at its time or later.
    let read = Trace::load(file.to_str().unwrap()).unwrap();
    let replayed = Trace::load("resnet50").unwrap().scaled(0.05);
    let sizes = |trace: &Trace| -> Vec<_> {
        let gradients = trace.gradients.iter();
        gradients.map(|one| (one.name.clone(), one.bytes)).collect()
    };
    assert_eq!(sizes(&read), sizes(&replayed));
    let (mut got, mut at_least) = (0.0, 0.0);
    for (read, replayed) in read.gradients.iter().zip(&replayed.gradients) {
        got += read.wait_us;
        at_least += replayed.wait_us;
        // Clocks differ by much less than a hundredth, and have whole nanoseconds.
        assert!(got > 0.99 * at_least - 0.01, "{}: {got} us", read.name);
    }
    let (batch_ms, expected) = (read.batch_ms.unwrap(), replayed.batch_ms.unwrap());
    assert!((batch_ms - expected).abs() < 1e-9);
    let (code, stdout, stderr) = run(&format!("trace {}", file.display()));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stdout.contains("the gradients of rank 0, of 2 ranks"),
        "{stdout}"
    );
}

#[test]
fn an_interrupted_job_of_our_own_ranks_ends_as_shells_expect_and_says_so() {
    for line in [
        "bench allreduce -e 64M --ranks 3",
        "replay --ranks 3 --steps 1000",
    ] {
        let child = Child::start(&mut linerate(line));
        let ranks = format!("/proc/{0}/task/{0}/children", child.id());
        wait_for("the start of the ranks", || {
            std::fs::read_to_string(&ranks).is_ok_and(|pids| pids.split(' ').count() > 3)
        });
        child.signal(Signal::INT);
        let (code, _, text) = parts(child.end());
        assert_eq!(code, Some(130), "{line}: {text}");
        assert!(text.contains("ended by signal 2"), "{line}: {text}");
    }
}
