//! What is refused, and how that reads.

use super::pair::{Pair, has_device};
use linerate::options::{TcpSettings, VerbsSettings};
use linerate::transport::{Options, open};
use std::process::Command;

fn refusal(name: &str, options: &Options) -> String {
    match open(name, 0, 2, 0, options) {
        Ok(_) => panic!("{name} was opened"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn encryption_and_checksums_are_refused_by_name() {
    for (has_tls, has_crc, flag) in [(true, false, "--tls"), (false, true, "--integrity crc")] {
        let tcp = TcpSettings {
            has_tls,
            has_crc,
            ..TcpSettings::default()
        };
        let options = Options {
            tcp,
            ..Options::default()
        };
        let text = refusal("verbs", &options);
        assert!(
            text.contains("transport unavailable: verbs") || text.contains("verbs"),
            "{text}"
        );
        assert!(text.contains(flag) && text.contains("use tcp"), "{text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_refused_with_what_is() {
    let text = refusal("verbs:nothing0", &Options::default());
    assert!(text.contains("verbs"), "{text}");
    if has_device("names of devices") {
        assert!(
            text.contains("nothing0") && text.contains("this host has"),
            "{text}"
        );
    }
}

#[test]
fn ranks_with_rings_of_other_sizes_are_told_so() {
    if !has_device("rings of other sizes") {
        return;
    }
    let [small, large] = [8, 64].map(|slots| VerbsSettings {
        slots: Some(slots),
        ..VerbsSettings::default()
    });
    let run = std::panic::catch_unwind(|| Pair::failing([&small, &large]));
    let causes = run.expect("it fails in an orderly way");
    let text = causes.into_iter().flatten().next().unwrap_or_default();
    assert!(text.contains("LINERATE_VERBS_SLOTS"), "{text}");
}

/// Where this begins again with a small limit and without the right to ignore it.
#[test]
fn memlock_child() {
    if std::env::var_os("LINERATE_TEST_MEMLOCK").is_none() {
        return;
    }
    match open("verbs", 0, 2, 0, &Options::default()) {
        Ok(mut transport) => {
            let region = linerate::transport::Region::private(8 << 20).unwrap();
            let result = transport.register(std::sync::Arc::new(region));
            println!("@refused {}", result.unwrap_err());
        }
        Err(error) => println!("@refused {error}"),
    }
}

#[test]
fn too_little_memory_that_may_be_locked_is_said_with_what_to_do() {
    if !has_device("a small limit of locked memory") {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let command = format!(
        "ulimit -l 64; exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock {} --exact refusals::memlock_child --nocapture",
        program.display()
    );
    let output = Command::new("bash")
        .args(["-c", &command])
        .env("LINERATE_TEST_MEMLOCK", "1")
        // A device as a library does not mind the limit otherwise.
        .env("SOFT_VERBS", "memlock=limit")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        text.contains("@refused"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("ulimit -l"), "{text}");
}
