//! Compares the layouts that bindings have with those of the headers of this machine. The tests of
//! the crates that bind C libraries share this file.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// A structure: its name, its bytes, and its members with their offsets.
pub type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// What C says of these structures, printed by a program that is built for it. `head` is what comes
/// before its functions, and `size` the expression of a structure's size. The test is skipped
/// where `header` or a C compiler is missing; `package` is the one of Debian that has the header.
pub fn compare(
    (header, package): (&str, &str),
    head: &str,
    layouts: &[Layout],
    size: impl Fn(&Layout) -> String,
) {
    if !Path::new(header).exists() {
        eprintln!("skipped: no {header} (Debian: apt-get install {package})");
        return;
    }
    let mut source = format!("#include <stdio.h>\n{head}\nint main(void) {{\n");
    let mut expected = String::new();
    let mut print = |what: &str, value: &str, expects: usize| {
        writeln!(source, "printf(\"{what} %zu\\n\", (size_t)({value}));").unwrap();
        writeln!(expected, "{what} {expects}").unwrap();
    };
    for layout in layouts {
        let (name, bytes, members) = layout;
        print(name, &size(layout), *bytes);
        for (member, offset) in *members {
            // A keyword of Rust has an underscore in the bindings.
            let in_c = member.trim_end_matches('_');
            let value = format!("offsetof(struct {name}, {in_c})");
            print(&format!("{name}.{member}"), &value, *offset);
        }
    }
    source.push_str("return 0; }\n");
    let folder =
        std::env::temp_dir().join(format!("linerate-{package}-layout-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (file, program) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .arg(&file)
        .arg("-o")
        .arg(&program)
        .output();
    let printed = match &built {
        Ok(built) if built.status.success() => Some(Command::new(&program).output().unwrap()),
        _ => None,
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let Some(printed) = printed else {
        match built {
            Err(e) => return eprintln!("skipped: no C compiler: {e}"),
            Ok(built) => panic!("{}", String::from_utf8_lossy(&built.stderr)),
        }
    };
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), expected);
}
