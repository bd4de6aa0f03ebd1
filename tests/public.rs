//! The listing of all public names, `tests/data/public.txt`: every change of the face is a
//! decision.
//!
//! The sources are read from `src/lib.rs` on, through `pub mod` and `pub use` into private modules
//! (`public/tree.rs`), and every name that a user can write becomes a line with its signature
//! (`public/listing.rs`). What macros of the crate define is listed as their calls.

#[path = "public/listing.rs"]
mod listing;
#[path = "public/tree.rs"]
mod tree;

use listing::Listing;
use std::collections::BTreeSet;
use std::path::Path;

const LISTED: &str = "tests/data/public.txt";

/// What the page that `cargo doc` opens shows at most.
const ROOT_NAMES_MAX: usize = 44;

/// Types that signatures name and users cannot: of sealed traits.
const SEALED: [&str; 0] = [];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn listing() -> Listing {
    Listing::of(&tree::read(&root().join("src/lib.rs")))
}

#[test]
fn the_public_names_are_those_that_were_decided() {
    let listing = listing();
    let lines: BTreeSet<&str> = listing.lines.iter().map(String::as_str).collect();
    let file = root().join(LISTED);
    if std::env::var_os("LINERATE_ACCEPT").is_some() {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text).unwrap();
    }
    let listed = std::fs::read_to_string(&file).unwrap_or_default();
    let listed: BTreeSet<&str> = listed.lines().collect();
    let gone = listed.difference(&lines).map(|line| format!("- {line}\n"));
    let new = lines.difference(&listed).map(|line| format!("+ {line}\n"));
    let differences: String = gone.chain(new).collect();
    assert!(
        differences.is_empty(),
        "the public names differ from {LISTED}:\n{differences}if that is meant, accept it with \
         `LINERATE_ACCEPT=1 cargo test --test public` and commit the file"
    );
}

#[test]
fn the_first_page_is_short() {
    let names = listing().root_names;
    assert!(names.len() > 20, "{names:?}");
    assert!(
        names.len() <= ROOT_NAMES_MAX,
        "{} names: {names:?}",
        names.len()
    );
}

#[test]
fn every_type_that_a_signature_names_can_be_named() {
    let hidden: Vec<String> = (listing().unnameable.into_iter())
        .filter(|(_, name)| !SEALED.contains(&name.as_str()))
        .map(|(line, name)| format!("{name}: {line}"))
        .collect();
    assert!(
        hidden.is_empty(),
        "no public path leads to\n{}",
        hidden.join("\n")
    );
}

/// The listing of a crate of one file.
fn listing_of(source: &str) -> Listing {
    Listing::of(&tree::Module::of_text(source))
}

#[test]
fn a_listing_has_what_users_can_write_and_nothing_else() {
    let listing = listing_of(
        "mod a {
            pub struct Shown<T: Copy> { pub field: Vec<T>, own: u8 }
            impl<T: Copy> Shown<T> {
                pub fn new(of: &'static [T]) -> Self { todo() }
                pub(crate) fn inner(&self) {}
                #[doc(hidden)] pub fn hidden(&self) {}
            }
            impl<T: Copy> Drop for Shown<T> { fn drop(&mut self) {} }
            pub enum Kind { One, Two(u32), Three { part: Lost } }
            pub struct Lost;
            pub struct Private;
            pub trait Does { const N: usize; fn run(&mut self, what: Kind) -> bool { true } }
            pub(crate) fn internal() {}
        }
        pub use a::{Does, Kind as Sort, Shown};
        pub mod more { pub use super::a::Shown as Again; pub const LIMIT: usize = 3; pub fn go(of: crate::Shown<u8>) {} }
        #[doc(hidden)] pub mod unstable { pub use crate::a::Private; }
        #[cfg(test)] pub mod tests { pub fn none() {} }",
    );
    let expected = [
        "linerate::Does | trait Does",
        "linerate::Does::N | const N: usize",
        "linerate::Does::run | fn run(&mut self, what: Kind) -> bool { .. }",
        "linerate::Shown | struct Shown<T: Copy>",
        "linerate::Shown::drop | Drop: fn drop(&mut self)",
        "linerate::Shown::field | Vec<T>",
        "linerate::Shown::new | fn new(of: &'static [T]) -> Self",
        "linerate::Sort | enum Kind",
        "linerate::Sort::One | variant",
        "linerate::Sort::Three | variant { part: Lost }",
        "linerate::Sort::Two | variant(u32)",
        "linerate::more | mod",
        "linerate::more::Again | = linerate::Shown",
        "linerate::more::LIMIT | const LIMIT: usize",
        "linerate::more::go | fn go(of: crate::Shown<u8>)",
    ];
    assert_eq!(listing.lines.iter().collect::<Vec<_>>(), expected);
    assert_eq!(listing.root_names, ["Does", "Shown", "Sort", "more"]);
    let hidden = |(_, name): &(String, String)| name.clone();
    let unnameable: Vec<String> = listing.unnameable.iter().map(hidden).collect();
    assert_eq!(unnameable, ["a::Lost"]);
}
