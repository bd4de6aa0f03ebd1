//! Builds the libfabric of the tests, whose `efa-direct` keeps to the rules of Amazon's devices
//! (`fabric.c`), where libfabric's headers and a C compiler are.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const SCRIPT: &str = "
FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.1;
";

/// The library's parts.
pub const SOURCES: [&str; 3] = ["fabric.c", "info.c", "device.c"];

/// Where the library is, or why there is none.
pub fn library() -> &'static Result<PathBuf, String> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        if !Path::new("/usr/include/rdma/fabric.h").exists() {
            return Err("no rdma/fabric.h (Debian: apt-get install libfabric-dev)".into());
        }
        let script = path_of("script");
        std::fs::write(&script, SCRIPT).unwrap();
        let version = format!("-Wl,--version-script={}", script.display());
        let built = build("efa-rules.so", &SOURCES, &["-shared", "-fPIC", &version]);
        std::fs::remove_file(&script).unwrap();
        built
    })
}

/// Compiles some of the sources. Programs of several tests may build at once, so a file gets its
/// name when it is complete.
pub fn build(name: &str, sources: &[&str], options: &[&str]) -> Result<PathBuf, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/efa");
    let made = path_of(name);
    let built = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-pthread"])
        .args(options)
        .args(sources.iter().map(|source| folder.join(source)))
        .arg("-o")
        .arg(&made)
        .output()
        .map_err(|error| format!("no C compiler: {error}"))?;
    let told = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{told}");
    let named = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::rename(&made, &named).unwrap();
    Ok(named)
}

/// Of a file that only this process knows.
fn path_of(name: &str) -> PathBuf {
    let name = format!("{}-{name}", std::process::id());
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}
