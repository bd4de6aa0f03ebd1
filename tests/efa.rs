//! Amazon's EFA without a device: ranks over a libfabric that is built here and keeps to the rules
//! of its fabric `efa-direct` (`efa/fabric.c`): nothing is in order, posts find no room by chance,
//! and who breaks a rule is ended. What every transport must do is in `conformance.rs`, and runs on
//! this one too. Where libfabric's headers or a C compiler are missing, a test says so and passes.

#[path = "efa/build.rs"]
mod build;
#[path = "efa/jobs.rs"]
mod jobs;
#[path = "collectives/oracle.rs"]
#[allow(dead_code)]
mod oracle;
#[path = "../src/prng.rs"]
#[allow(dead_code)]
mod prng;
#[path = "../ffi/fabric-sys/tests/rig/mod.rs"]
#[allow(unsafe_code)]
mod rig;
#[path = "efa/rules.rs"]
mod rules;

use std::process::Command;

/// What this program does where it is started as a rank, or to break a rule.
#[test]
fn child_entry() {
    match std::env::var("LINERATE_TEST_ROLE").as_deref() {
        Ok("sweep") => jobs::sweep(),
        Ok("busy") => jobs::sum_until_one_fails(),
        Ok("open") => jobs::open(),
        Ok(role) => rules::run(role),
        Err(_) => {}
    }
}

/// The name of the library that is built here; none, with a line that says why, where it cannot be.
fn library() -> Option<&'static str> {
    match build::library() {
        Ok(path) => path.to_str(),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

/// This program in a role, with the library.
fn role(name: &str, library: &str) -> Command {
    let mut command = linerate_children::role(name);
    command.env("LINERATE_FABRIC_LIB", library);
    command
}
