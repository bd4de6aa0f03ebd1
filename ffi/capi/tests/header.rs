//! `linerate.h` is what the sources say, and compiles as C and as C++ without a warning.

use std::path::Path;
use std::process::Command;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

#[test]
fn the_header_is_that_of_the_sources() {
    let path = Path::new(FOLDER).join("include/linerate.h");
    let config = cbindgen::Config::from_file(Path::new(FOLDER).join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new()
        .with_crate(FOLDER)
        .with_config(config)
        .generate()
        .unwrap()
        .write(&mut made);
    let made = String::from_utf8(made).unwrap();
    // Rust's heading says whose promise it is; in C all of it is the caller's.
    let made = made.replace("# Safety\n", "The caller's promise:\n");
    if std::env::var_os("LINERATE_ACCEPT").is_some() {
        std::fs::write(&path, made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap();
    assert!(
        committed == made,
        "{} is not what the sources say: LINERATE_ACCEPT=1 cargo test -p linerate-capi --test header writes it again",
        path.display()
    );
}

#[test]
fn the_header_compiles_as_c99_and_as_cpp17() {
    let folder = std::env::temp_dir().join(format!("linerate-header-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let dialects = [
        ("cc", "-std=c99", "c"),
        ("gcc", "-std=c99", "c"),
        ("c++", "-std=c++17", "cpp"),
        ("g++", "-std=c++17", "cpp"),
    ];
    let mut compiled = 0;
    for (compiler, standard, end) in dialects {
        let source = folder.join(format!("{compiler}.{end}"));
        let text = "#include <linerate.h>\n#include <linerate.h>\nint main(void) { return 0; }\n";
        std::fs::write(&source, text).unwrap();
        let output = Command::new(compiler)
            .args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
            .args(["-fsyntax-only", "-I"])
            .arg(Path::new(FOLDER).join("include"))
            .arg(&source)
            .output();
        let Ok(output) = output else {
            println!("no {compiler} here");
            continue;
        };
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{compiler} {standard}: {text}");
        compiled += 1;
    }
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(compiled > 0, "no C compiler");
}
