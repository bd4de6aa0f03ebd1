//! Bad input: exit code 2 before ranks start, one error, and a text that says what is allowed.

use super::start::{linerate, parts, run, scratch};
use std::process::Command;

#[test]
fn numbers_that_make_no_sense_are_named() {
    for (line, expected) in [
        ("bench allreduce -f -1", "invalid value '-1'"),
        ("bench allreduce -b -8", "such as 64K"),
        ("bench allreduce -e 1T", "MemAvailable"),
        ("bench allreduce --ranks -1", "invalid value '-1'"),
        ("bench allreduce --ranks 20000", "1 to 16384"),
        ("bench allreduce -o premulsum:nan", "finite"),
        ("bench allreduce -o premulsum:1e300", "--check 0"),
        ("bench allreduce --link-gbit 5", "--transport sim"),
        ("bench allreduce --transport sim --ranks 1025", "1 to 1024"),
        ("replay --ranks 0", "1 to 16384"),
        ("replay --scale -1", "from 0 to 1000"),
        ("replay --ranks 4096 --trace vgg16", "MemAvailable"),
        ("replay --transport ether", "auto shm tcp"),
        ("replay --plan-only --trace-out x", "leave one away"),
        ("replay --trace /dev/zero", "the most that is read"),
        ("replay --trace no-such-model", "resnet50"),
        ("whatif --trace no-such-model", "resnet50"),
        ("whatif --bandwidth 10,0", "Gbit/s above 0"),
        ("whatif --compression 0.5", "allowed: 1 (none) or more"),
        ("whatif --workers 0", "the number of GPUs is 0"),
        (
            "whatif --count servers --workers 12",
            "a divisor of the 12 GPUs",
        ),
        ("whatif --what-reaches 2", "allowed: 0 to 1"),
        ("whatif --link-share 0", "more than 0, at most 1"),
    ] {
        let (code, stdout, stderr) = run(line);
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert!(stderr.contains(expected), "{line}: {stderr}");
        assert_eq!(stderr.matches("error:").count(), 1, "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
    }
}

#[test]
fn a_wrong_variable_is_named_once_by_every_command() {
    for (name, value) in [
        ("LINERATE_TIMEOUT", "soon"),
        ("LINERATE_CHUNK_BYTES", "1"),
        ("LINERATE_ALGO", "nonsense"),
        ("LINERATE_TRANSPORT", "nonsense"),
        ("LINERATE_PROGRESS", "yes"),
        ("WORLD_SIZE", "many"),
    ] {
        for (line, usage) in [("bench allreduce", 2), ("replay", 2), ("info", 1)] {
            if name == "WORLD_SIZE" && line == "info" {
                continue;
            }
            let output = linerate(line).env(name, value).output().unwrap();
            let (code, _, stderr) = parts(output);
            assert_eq!(code, Some(usage), "{name} {line}: {stderr}");
            assert_eq!(stderr.matches(name).count(), 1, "{line}: {stderr}");
        }
    }
}

#[test]
fn an_empty_transport_in_the_environment_is_none() {
    let mut command = linerate("bench barrier -n 1 -w 0");
    let output = command.env("LINERATE_TRANSPORT", "").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_replay_on_what_is_not_built_fails_once() {
    for name in ["verbs:nothing0", "ofi:nosuch", "sim"] {
        let (code, _, stderr) = run(&format!("replay --transport {name}"));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("--transport shm"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}

#[test]
fn under_a_launcher_other_ranks_are_refused() {
    for line in ["bench allreduce --ranks 3", "replay --ranks 3"] {
        let mut command = linerate(line);
        let (code, _, stderr) = parts(command.env("WORLD_SIZE", "2").output().unwrap());
        assert_eq!(code, Some(2), "{line}");
        assert!(stderr.contains("leave --ranks away"), "{line}: {stderr}");
    }
}

#[test]
fn a_trace_that_no_memory_holds_is_refused_before_ranks_start() {
    let file = scratch("huge").join("huge.bk.log");
    std::fs::write(&file, "x\n1\n2\n1,1099511627776\n1,4\n").unwrap();
    let (code, _, stderr) = run(&format!("replay --trace {}", file.display()));
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("MemAvailable"), "{stderr}");
}

#[test]
fn a_missing_interpreter_is_not_called_a_missing_program() {
    use std::os::unix::fs::PermissionsExt;
    let file = scratch("interpreter").join("script");
    std::fs::write(&file, "#!/no/such/python\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
    let (code, _, stderr) = run(&format!("launch -n 1 -- {}", file.display()));
    assert_eq!(code, Some(127), "{stderr}");
    assert!(stderr.contains("interpreter"), "{stderr}");
}

#[test]
fn without_descriptors_the_limit_is_named() {
    let exe = env!("CARGO_BIN_EXE_linerate");
    let script = format!("ulimit -n 5; {exe} bench allreduce -e 8");
    let output = Command::new("bash").args(["-c", &script]).output();
    let (code, _, stderr) = parts(output.unwrap());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("ulimit -n"), "{stderr}");
}
