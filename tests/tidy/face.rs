//! Who may reach the private modules: the tools, the benches and the tests of internals, through
//! `linerate::unstable`, which holds nothing that none of these uses.

use super::text::{code_of, places_of};
use super::{check_rule, check_tree, paths};
use std::path::Path;

/// Tests of internals, and the tests' folders of the same names. All others use what users hold.
const OF_INTERNALS: [&str; 9] = [
    // Free ports, as `linerate launch` finds them.
    "tests/children",
    // Waits on a futex as an engine does.
    "tests/conformance",
    "tests/fuzz",
    // Peers that speak the protocol wrongly.
    "tests/hosts",
    "tests/strangers",
    // RDMA devices in one thread.
    "tests/simulated/devices",
    // What a launcher's environment means, without a launcher.
    "tests/rendezvous",
    "tests/tls",
    "tests/tidy",
];

/// Whether this file shows or tests what users hold.
fn is_public_face(path: &str) -> bool {
    let is_internal = || OF_INTERNALS.iter().any(|start| path.starts_with(start));
    let shown = ["examples/", "ffi/", "README.md", "src/guide"];
    shown.iter().any(|start| path.starts_with(start))
        || (path.starts_with("tests/") && path.ends_with(".rs") && !is_internal())
}

fn check_face(path: &str, text: &str) -> Vec<String> {
    // What a guide shows stands in comments.
    let is_program = path.ends_with(".rs") && !path.starts_with("src/guide");
    let code = match is_program {
        true => code_of(text),
        false => text.to_owned(),
    };
    let is_wrong = is_public_face(path) && !places_of(&code, "unstable").is_empty();
    is_wrong
        .then(|| format!("{path}: names 'unstable', which is no part of the interface"))
        .into_iter()
        .collect()
}

/// The items that this text re-exports, each with the modules around it, as `sparse::Machine`.
fn exported(text: &str) -> Vec<String> {
    let (mut modules, mut items) = (Vec::new(), Vec::new());
    let code = code_of(text);
    let mut rest = code.as_str();
    while let Some(at) = rest.find(['{', ';', '}']) {
        let (before, after) = (rest[..at].trim(), &rest[at + 1..]);
        rest = after;
        match (rest_of(before, "pub mod "), rest_of(before, "pub use ")) {
            (Some(name), _) => modules.push(name.to_owned()),
            (_, Some(path)) => {
                let group = match code_at(&code, rest).ends_with('{') {
                    true => &rest[..rest.find('}').expect("groups end")],
                    false => path.rsplit("::").next().unwrap_or_default(),
                };
                let names = group
                    .split(',')
                    .map(str::trim)
                    .filter(|name| !name.is_empty());
                let within = modules.join("::");
                items.extend(names.map(|name| format!("{within}::{name}")));
                if code_at(&code, rest).ends_with('{') {
                    rest = rest.split_once(';').expect("a use ends").1;
                }
            }
            _ => {
                modules.pop();
            }
        }
    }
    items
}

fn rest_of<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    Some(text.rsplit_once(start)?.1.trim())
}

/// The code before what is left of it.
fn code_at<'a>(code: &'a str, rest: &str) -> &'a str {
    &code[..code.len() - rest.len()]
}

/// Whether a text names this item of `unstable`: the module it is in, and itself.
fn is_named(item: &str, text: &str) -> bool {
    let (within, name) = item.rsplit_once("::").expect("items are in modules");
    let is_imported = places_of(text, "unstable").iter().any(|at| {
        let path = format!("unstable::{within}");
        text[*at..].starts_with(&path)
    });
    is_imported && !places_of(text, name).is_empty()
}

#[test]
fn what_users_see_does_not_name_unstable() {
    let bad = [
        (
            "tests/sparse.rs",
            "use linerate::unstable::sparse::Machine;",
        ),
        ("tests/sparse/hostile.rs", "use linerate::{unstable, Rank};"),
        ("examples/train.rs", "linerate::unstable::prng::mix(1)"),
        ("README.md", "`linerate::unstable`"),
        (
            "src/guide/sparse.rs",
            "//! use linerate::unstable::prng::mix;",
        ),
        (
            "ffi/c/src/lib.rs",
            "use linerate::unstable::engine::Engine;",
        ),
    ];
    let good = [
        ("tests/sparse.rs", "names.sort_unstable(); // unstable"),
        ("tests/tls/between.rs", "use linerate::unstable::wire::Tls;"),
        (
            "tools/src/info.rs",
            "use linerate::unstable::shm::fetch_own;",
        ),
        ("src/lib.rs", "pub mod unstable;"),
    ];
    check_rule(check_face, &bad, &good);
    check_tree(check_face);
}

#[test]
fn unstable_holds_what_something_outside_src_uses() {
    let made_up = "pub mod a {\n pub use crate::a::{B, C};\n pub mod d {\n pub use crate::a::d::E;\n }\n}\npub mod f { pub use crate::f::g; }";
    assert_eq!(exported(made_up), ["a::B", "a::C", "a::d::E", "f::g"]);
    assert!(is_named("a::B", "use linerate::unstable::a::{B, C};"));
    assert!(!is_named("a::B", "use linerate::unstable::a::C;"));
    assert!(!is_named("a::B", "use linerate::unstable::f::B;"));

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    let outside = |path: &String| path.ends_with(".rs") && !path.starts_with("src/");
    let users: Vec<String> = (paths().into_iter().filter(outside))
        .map(|path| code_of(&read(&path)))
        .filter(|code| code.contains("unstable::"))
        .collect();
    let items = exported(&read("src/unstable.rs"));
    assert!(items.len() > 10, "{items:?}");
    let unused = |item: &&String| !users.iter().any(|user| is_named(item, user));
    let unused: Vec<&String> = items.iter().filter(unused).collect();
    assert!(unused.is_empty(), "nothing outside src uses {unused:?}");
    let is_listed = |item: &String| !item.ends_with('*') && !item.ends_with("self");
    assert!(items.iter().all(is_listed), "single items only");
}
