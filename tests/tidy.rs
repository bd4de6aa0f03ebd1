//! The rules of the repository that a program can check: layers, sizes, words, unsafe code, the
//! clock.
//!
//! Each rule is a function of (path, text) that gives complaints, is run over every file that git
//! knows or would add, and is shown to fail on made-up input. The words it looks for are put
//! together from pieces, so that this file passes its own rules.

#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/face.rs"]
mod face;
#[path = "tidy/guides.rs"]
mod guides;
#[path = "tidy/prose.rs"]
mod prose;
#[path = "tidy/text.rs"]
mod text;

use std::path::Path;
use text::{code_of, places_of, references, words_of};

/// The layers of `src`, in order: a module imports from itself and from earlier rows only. Modules
/// of the first row also import each other.
const LAYERS: [&[&str]; 15] = [
    &["error", "types", "limits", "config", "time", "sync", "prng"],
    &["memory"],
    &["wire"],
    &["kernel"],
    &["pattern"],
    &["wait"],
    &["schedule"],
    &["cost"],
    &["collective"],
    &["fusion", "optimizer", "partial", "sparse", "staleness"],
    &["transport"],
    &["engine"],
    &["bootstrap"],
    &["comm"],
    // Never imported, so that nothing may reach through the crate's root.
    &[
        "lib", "guide", "elements", "options", "reports", "sim", "unstable", "whatif",
    ],
];

const TOP_LEVEL: [&str; 15] = [
    "Cargo.toml",
    "Cargo.lock",
    "src",
    "ffi",
    "tools",
    "benches",
    "examples",
    "tests",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    ".ci",
    ".gitignore",
    "LICENSE-MIT",
    "LICENSE-APACHE",
];

/// Where unsafe code may be.
const UNSAFE_ALLOWED: [&str; 24] = [
    "src/memory/",
    "src/kernel/simd/",
    // The safe accesses of views, for the rest of the crate.
    "src/kernel/access.rs",
    // The traits whose posts ask for a promise, and those who have it besides the providers below.
    "src/transport/mod.rs",
    "src/transport/rma.rs",
    "src/transport/router.rs",
    "src/transport/test_posts.rs",
    // The promise of the engine's posts.
    "src/engine/posts.rs",
    // Memory that a caller keeps becomes a buffer.
    "src/comm/adopt.rs",
    "src/comm/fork_tests.rs",
    "ffi/",
    "benches/",
    // The tools' own regions, and what they post of them.
    "tools/job/src/access.rs",
    "tools/src/perf/link.rs",
    // Regions of tests that drive a transport, and a transport with faults.
    "tests/access/",
    "tests/conformance/mutants.rs",
    // Shows that a post is written with its promise.
    "tests/misuse/builds.rs",
    // An allocator that counts.
    "tests/steady",
    // What a connection has sent, which no safe call tells.
    "tests/partial/fate.rs",
    // Memory that the caller keeps, named by its address.
    "tests/processes/fetching.rs",
    "tests/processes/types.rs",
    "tests/faults/fetching.rs",
    "tests/groups/registered.rs",
    "tests/verbs/registered.rs",
];

/// The one file of `src` that reads the clock.
const CLOCK: &str = "src/wait/clock.rs";

const LINES_MAX: usize = 600;

/// Lines above an unsafe block or impl within which its argument stands.
const SAFETY_LINES: usize = 4;

type Rule = fn(&str, &str) -> Vec<String>;

fn check_layers(path: &str, text: &str) -> Vec<String> {
    let Some(module) = module_of(path).filter(|module| *module != "lib") else {
        return Vec::new();
    };
    let Some(own_row) = row_of(module) else {
        return vec![format!(
            "{path}: module '{module}' is in no layer of tests/tidy.rs"
        )];
    };
    let allowed = |other: &str| {
        row_of(other)
            .is_some_and(|row| row < own_row || other == module || (row, own_row) == (0, 0))
    };
    references(&code_of(text), "crate::")
        .into_iter()
        .filter(|other| !allowed(other))
        .map(|other| format!("{path}: '{module}' must not import 'crate::{other}'"))
        .collect()
}

fn check_providers(path: &str, text: &str) -> Vec<String> {
    let own = path.strip_prefix("src/transport/").unwrap_or_default();
    let own = own.split(['/', '.']).next().unwrap_or_default();
    // The tests of the protocol need a device.
    let is_bound = is_provider(own) || (own == PROTOCOL && !path.ends_with("_tests.rs"));
    if !is_bound {
        return Vec::new();
    }
    let code = code_of(text);
    let mut others = references(&code, "super::");
    others.extend(references(&code, "transport::"));
    others
        .into_iter()
        .filter(|other| other != own && is_provider(other))
        .map(|other| format!("{path}: provider '{own}' must not import provider '{other}'"))
        .collect()
}

/// The protocol of providers whose devices write and read memory. It knows none of them.
const PROTOCOL: &str = "rdma";

/// Whether a module of `transport` is a transport, which never import each other: those with a
/// folder of their own are.
fn is_provider(module: &str) -> bool {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/transport");
    !module.is_empty() && module != PROTOCOL && folder.join(module).is_dir()
}

fn check_length(path: &str, text: &str) -> Vec<String> {
    let lines = text.lines().count();
    let is_bound = path.ends_with(".rs") && !is_generated(path);
    let is_long = is_bound && lines > LINES_MAX;
    is_long
        .then(|| format!("{path}: {lines} lines, at most {LINES_MAX}"))
        .into_iter()
        .collect()
}

fn check_words(path: &str, text: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    if is_foreign(path) {
        return complaints;
    }
    let mut complain = |word: &str| complaints.push(format!("{path}: the word '{word}' is banned"));
    let nouns = [
        concat!("man", "ager"),
        concat!("ut", "ils"),
        concat!("hel", "per"),
    ];
    let named = words_of(path);
    nouns
        .into_iter()
        .filter(|noun| named.contains(*noun))
        .for_each(&mut complain);
    if words_of(text).contains(nouns[0]) {
        complain(nouns[0]);
    }
    if [".rs", ".py", ".c", ".h"]
        .iter()
        .any(|end| path.ends_with(end))
    {
        // Names that others chose.
        let code = code_of(text)
            .replace("torch.utils", "")
            .replace("crossbeam_utils", "");
        let code_words = words_of(&code);
        nouns[1..]
            .iter()
            .filter(|noun| code_words.contains(**noun))
            .for_each(|noun| complain(noun));
    }
    for marker in [
        concat!("FIX", "ME"),
        concat!("X", "XX"),
        concat!("HA", "CK"),
    ] {
        let mut tokens = text.split(|c: char| !c.is_alphanumeric() && c != '_');
        if tokens.any(|token| token == marker) {
            complain(marker);
        }
    }
    let macros = [
        concat!("to", "do!"),
        concat!("unimple", "mented!"),
        concat!("db", "g!"),
    ];
    macros
        .into_iter()
        .filter(|name| text.contains(name))
        .for_each(complain);
    complaints
}

fn check_unsafe(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") || is_generated(path) {
        return Vec::new();
    }
    // A transport has a folder of its own; the simulated one has no memory but that of its posts.
    let own = path.strip_prefix("src/transport/").unwrap_or_default();
    let is_of_transport = own.contains('/') && !own.starts_with("sim/");
    let is_allowed = is_of_transport
        || own == "sim/provider.rs"
        || UNSAFE_ALLOWED.iter().any(|folder| path.starts_with(folder));
    let code = code_of(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut complaints = Vec::new();
    for at in places_of(&code, "unsafe") {
        let line = code[..at].matches('\n').count();
        let after = code[at + "unsafe".len()..].trim_start();
        let is_argued = lines[line.saturating_sub(SAFETY_LINES)..=line]
            .iter()
            .any(|line| line.contains("SAFETY"));
        if !is_allowed {
            complaints.push(format!(
                "{path}:{}: unsafe code outside its folders",
                line + 1
            ));
        } else if (after.starts_with('{') || after.starts_with("impl")) && !is_argued {
            complaints.push(format!(
                "{path}:{}: unsafe without a SAFETY comment",
                line + 1
            ));
        }
    }
    complaints
}

fn check_header(path: &str, text: &str) -> Vec<String> {
    let folders = ["src/", "tests/", "benches/"];
    let is_module = path.ends_with(".rs") && folders.iter().any(|folder| path.starts_with(folder));
    (is_module && !text.starts_with("//!"))
        .then(|| format!("{path}: a module begins with '//!'"))
        .into_iter()
        .collect()
}

fn check_clock(path: &str, text: &str) -> Vec<String> {
    if !path.starts_with("src/") || path == CLOCK {
        return Vec::new();
    }
    let code = code_of(text);
    ["Instant::now", "SystemTime::now", "clock_gettime"]
        .into_iter()
        .filter(|reader| code.contains(reader))
        .map(|reader| format!("{path}: {reader}: only {CLOCK} reads the clock"))
        .collect()
}

fn check_top_level(path: &str, _: &str) -> Vec<String> {
    let first = path.split('/').next().unwrap_or_default();
    (!TOP_LEVEL.contains(&first))
        .then(|| format!("{path}: '{first}' is no top-level entry of the design"))
        .into_iter()
        .collect()
}

/// The module of `src` that a path belongs to.
fn module_of(path: &str) -> Option<&str> {
    let inside = path
        .strip_prefix("src/")
        .filter(|_| path.ends_with(".rs"))?;
    inside.split(['/', '.']).next()
}

fn row_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|row| row.contains(&module))
}

/// Generated from C headers.
fn is_generated(path: &str) -> bool {
    path.starts_with("ffi/") && path.ends_with("bindings.rs")
}

/// Text that is not ours to word.
fn is_foreign(path: &str) -> bool {
    let names = ["Cargo.lock", "LICENSE-MIT", "LICENSE-APACHE"];
    names.contains(&path) || path.starts_with("tests/data/") || is_generated(path)
}

/// What is in the tree and not in the repository: builds, history, what other tools keep.
const NOT_OURS: [&str; 4] = ["target", ".git", "__pycache__", "proptest-regressions"];

/// Paths from the root of all files of the repository. Walks the tree, so that a copy without git
/// is checked too.
fn paths() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut folders, mut found) = (vec![root.to_path_buf()], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let entry = entry.expect("an entry of a folder that can be read");
            let (path, name) = (entry.path(), entry.file_name());
            if NOT_OURS.iter().any(|n| name == *n) {
                continue;
            }
            if entry.file_type().expect("its type").is_dir() {
                folders.push(path);
            } else {
                let inside = path.strip_prefix(root).expect("below the root");
                found.push(inside.to_str().expect("file names are UTF-8").to_owned());
            }
        }
    }
    found.sort_unstable();
    found
}

/// Runs a rule over the repository; files that are not text count as empty.
fn check_tree(rule: Rule) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut complaints = Vec::new();
    for path in paths() {
        // A file may go while the others are read.
        let Ok(bytes) = std::fs::read(root.join(&path)) else {
            continue;
        };
        complaints.extend(rule(&path, std::str::from_utf8(&bytes).unwrap_or_default()));
    }
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

/// Asserts that the rule finds fault with the first list of (path, text) and none with the second.
fn check_rule(rule: Rule, bad: &[(&str, &str)], good: &[(&str, &str)]) {
    for (path, text) in bad {
        assert!(
            !rule(path, text).is_empty(),
            "no complaint about {path}: {text}"
        );
    }
    for (path, text) in good {
        assert_eq!(rule(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

#[test]
fn layers_import_downwards_only() {
    let bad = [
        ("src/memory/view.rs", "use crate::kernel::reduce;"),
        ("src/kernel/mod.rs", "fn f() { crate::engine::run() }"),
        ("src/fusion/mod.rs", "use crate::transport::Event;"),
        (
            "src/cost.rs",
            "use crate::{error::Error, types::{Rank, DataType}, comm::Call};",
        ),
        ("src/novel/mod.rs", ""),
        ("src/comm/mod.rs", "use crate::Error;"),
    ];
    let good = [
        ("src/error.rs", "use crate::types::Rank;"),
        (
            "src/kernel/mod.rs",
            "//! See [`crate::engine`].\nuse crate::{memory::View, types::Rank};",
        ),
        (
            "src/kernel/mod.rs",
            "use crate::kernel::scalar; // crate::comm",
        ),
        ("src/comm/mod.rs", "const TEXT: &str = \"crate::novel\";"),
        ("src/lib.rs", "pub use crate::comm::Call;"),
        ("tools/src/main.rs", "use crate::novel;"),
    ];
    check_rule(check_layers, &bad, &good);
    check_tree(check_layers);
    let all = paths();
    for module in LAYERS.concat() {
        let is_there = all.iter().any(|path| module_of(path) == Some(module));
        assert!(is_there, "no module '{module}': take it out of the layers");
    }
}

#[test]
fn providers_do_not_import_each_other() {
    let bad = [
        ("src/transport/shm/mod.rs", "use super::tcp::Tcp;"),
        (
            "src/transport/tcp/set_up.rs",
            "use crate::transport::{Transport, sim};",
        ),
        ("src/transport/sim.rs", "use super::{shm::Shm};"),
        (
            "src/transport/rdma/link.rs",
            "use crate::transport::verbs::Half;",
        ),
    ];
    let good = [
        (
            "src/transport/shm/mod.rs",
            "use super::Transport; use crate::transport::shm::Ring;",
        ),
        (
            "src/transport/mod.rs",
            "use self::tcp::Tcp; use crate::transport::shm::Ring;",
        ),
        (
            "src/transport/verbs/queue.rs",
            "use crate::transport::rdma::Queue;",
        ),
    ];
    check_rule(check_providers, &bad, &good);
    check_tree(check_providers);
}

#[test]
fn files_stay_short() {
    let (long, short) = ("\n".repeat(LINES_MAX + 1), "\n".repeat(LINES_MAX));
    let good = [
        ("src/a.rs", &*short),
        ("ffi/x/src/bindings.rs", &long),
        ("README.md", &long),
    ];
    check_rule(
        check_length,
        &[("src/a.rs", &long), ("tools/src/a.rs", &long)],
        &good,
    );
    check_tree(check_length);
}

#[test]
fn banned_words_do_not_occur() {
    let [noun, part, other] = [
        concat!("Man", "ager"),
        concat!("ut", "ils"),
        concat!("hel", "per"),
    ];
    let bad = [
        (&*format!("src/{part}.rs"), ""),
        ("src/a.rs", &*format!("struct Window{noun};")),
        ("README.md", &*format!("The buffer {noun}s.")),
        ("src/a.rs", &*format!("fn {other}_of() {{}}")),
        ("src/a.rs", &*format!("mod byte_{part};")),
        ("src/a.rs", concat!("fn f() { to", "do!() }")),
        ("src/a.rs", concat!("// FIX", "ME: later")),
        ("tools/run", concat!("# X", "XX")),
    ];
    let good = [
        (
            "src/a.rs",
            concat!("use crossbeam_ut", "ils::Backoff; // a hel", "per thread"),
        ),
        ("ffi/python/a.py", "from torch.utils.data import DataLoader"),
        ("tools/run", concat!("mktemp /tmp/a.X", "XXXXX")),
        ("Cargo.lock", part),
    ];
    check_rule(check_words, &bad, &good);
    check_tree(check_words);
}

#[test]
fn unsafe_code_stays_in_its_folders_and_is_argued() {
    let bad = [
        ("src/comm/mod.rs", "// SAFETY: none\nunsafe { f() }"),
        ("src/memory/view.rs", "fn f() {\n unsafe { g() }\n}"),
        (
            "src/memory/view.rs",
            "// SAFETY: too far\n\n\n\n\nunsafe impl Send for A {}",
        ),
    ];
    let good = [
        ("src/memory/view.rs", "// SAFETY: a reason\nunsafe { g() }"),
        ("src/memory/view.rs", "pub unsafe fn f() {}"),
        (
            "src/comm/mod.rs",
            "#![deny(unsafe_code)] // unsafe { }\nconst A: &str = \"unsafe { }\";",
        ),
        ("ffi/x/src/bindings.rs", "unsafe { f() }"),
    ];
    check_rule(check_unsafe, &bad, &good);
    check_tree(check_unsafe);
}

#[test]
fn modules_begin_with_their_description() {
    let good = [
        ("src/a.rs", "//! Rings."),
        ("tools/src/main.rs", "fn main() {}"),
    ];
    check_rule(check_header, &[("src/a.rs", "use std::fmt;\n//! x")], &good);
    check_tree(check_header);
}

#[test]
fn one_file_reads_the_clock() {
    let bad = [
        ("src/comm/mod.rs", "let t = std::time::Instant::now();"),
        ("src/wait/bell.rs", "SystemTime::now()"),
        ("src/wait/bell.rs", "libc::clock_gettime(0, &mut t)"),
    ];
    let good = [
        (CLOCK, "Instant::now()"),
        ("src/time.rs", "/// Not Instant::now().\nstruct Time;"),
        ("tools/src/main.rs", "Instant::now()"),
    ];
    check_rule(check_clock, &bad, &good);
    check_tree(check_clock);
}

#[test]
fn the_top_level_is_the_design_s() {
    let good = [("src/lib.rs", ""), (".ci/run", ""), ("README.md", "")];
    check_rule(
        check_top_level,
        &[("docs/a.md", ""), ("build.rs", "")],
        &good,
    );
    // People may keep files of their own beside it: only what is in the repository counts.
    let listed = std::process::Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output();
    let Some(listed) = listed.ok().filter(|listed| listed.status.success()) else {
        println!("skipped: the top level: git does not list this folder");
        return;
    };
    let listed = String::from_utf8(listed.stdout).expect("file names are UTF-8");
    let paths: Vec<_> = listed.split('\0').filter(|path| !path.is_empty()).collect();
    assert!(paths.contains(&"src/lib.rs"), "{paths:?}");
    let complaints: Vec<_> = (paths.iter())
        .flat_map(|path| check_top_level(path, ""))
        .collect();
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
