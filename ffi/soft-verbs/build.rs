//! Links the shared library, whose symbols have the versions of libibverbs.
//!
//! rustc gives every shared library a list of symbols without versions, so the code is built once
//! more as a static library, and `cc` links that with `exports.map`.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for the build of the static library, which has nothing to link.
const INNER: &str = "SOFT_VERBS_INNER";
const NAME: &str = "libsoft_verbs.so";

fn main() {
    for path in ["build.rs", "exports.map", "src", "../verbs-sys/src"] {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-env-changed={INNER}");
    let is_linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|system| system == "linux");
    if std::env::var_os(INNER).is_some() || !is_linux {
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    let linked = out.join(NAME);
    link(&static_library(&out.join("static")), &linked);
    // target/release/build/linerate-soft-verbs-0123456789abcdef/out
    let profile = out.ancestors().nth(3).expect("cargo makes these folders");
    // Programs that have the last one mapped go on with it.
    let next = profile.join(format!("{NAME}.next"));
    std::fs::copy(&linked, &next).expect("copying the library");
    std::fs::rename(&next, profile.join(NAME)).expect("putting the library in its place");
}

fn static_library(target: &Path) -> PathBuf {
    let cargo = std::env::var_os("CARGO").expect("cargo sets it");
    let mut build = Command::new(cargo);
    build.args([
        "rustc",
        "--package",
        "linerate-soft-verbs",
        "--lib",
        "--release",
        "--locked",
    ]);
    build
        .args(["--crate-type", "staticlib", "--target-dir"])
        .arg(target);
    // A linter takes the place of the compiler there.
    build.env_remove("RUSTC_WORKSPACE_WRAPPER").env(INNER, "1");
    run(&mut build);
    target.join("release/libsoft_verbs.a")
}

fn link(from: &Path, to: &Path) {
    let exports = Path::new("exports.map");
    let mut link = Command::new("cc");
    link.arg("-shared").arg("-o").arg(to);
    link.arg(format!("-Wl,--version-script={}", exports.display()));
    // Nothing of the library is asked for but by its symbols; its code stays when it is unloaded.
    link.args(["-Wl,--whole-archive"]).arg(from);
    link.args([
        "-Wl,--no-whole-archive",
        "-Wl,--gc-sections",
        "-Wl,-z,nodelete",
    ]);
    link.args([
        "-Wl,-soname,libibverbs.so.1",
        "-lpthread",
        "-ldl",
        "-lm",
        "-lgcc_s",
    ]);
    run(&mut link);
}

fn run(command: &mut Command) {
    let status = command.status();
    let is_done = status.as_ref().is_ok_and(|status| status.success());
    assert!(
        is_done,
        "{command:?}: {status:?}; it needs a C compiler (Debian: apt-get install gcc)"
    );
}
