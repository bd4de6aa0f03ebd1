//! Comments of Rust files: their width, and words that make them hard to read.

use super::text::places_of;
use super::{check_rule, check_tree, is_foreign};

const COLUMNS_MAX: usize = 100;

/// Comment lines are at most [`COLUMNS_MAX`] columns wide, but for what cannot be broken: rows of
/// tables, and code in fences.
fn check_width(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") || is_foreign(path) {
        return Vec::new();
    }
    let mut is_fenced = false;
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let Some(comment) = comment_of(line) else {
            continue;
        };
        let words = comment.trim_start();
        is_fenced ^= words.starts_with("```");
        let is_whole = is_fenced || words.starts_with('|');
        if !is_whole && line.chars().count() > COLUMNS_MAX {
            complaints.push(format!(
                "{path}:{number}: a comment of more than {COLUMNS_MAX} columns"
            ));
        }
    }
    complaints
}

/// The text of a line that is a comment and nothing else.
fn comment_of(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// A comment without what it quotes as code: names of files and tests are no prose.
fn without_code(comment: &str) -> String {
    let pieces = comment.split('`').step_by(2);
    pieces.collect::<Vec<_>>().join("`")
}

/// Comments say what they are about: none begins by pointing at another one.
fn check_openers(path: &str, text: &str) -> Vec<String> {
    if !path.ends_with(".rs") || is_foreign(path) {
        return Vec::new();
    }
    let opener = concat!("The ", "same");
    let mut was_comment = false;
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let comment = comment_of(line);
        let words = comment.unwrap_or_default().trim_start();
        if !was_comment && places_of(words, opener).first() == Some(&0) {
            complaints.push(format!("{path}:{number}: a comment begins with '{opener}'"));
        }
        was_comment = comment.is_some();
    }
    complaints
}

/// Comments do without words that make a sentence hard to follow.
fn check_plainness(path: &str, text: &str) -> Vec<String> {
    let is_prose = path.ends_with(".md");
    if !(is_prose || path.ends_with(".rs")) || is_foreign(path) {
        return Vec::new();
    }
    let words = [
        concat!("who", "ever"),
        concat!("so ", "many"),
        concat!("that ", "which"),
    ];
    // Of code only: an error text or a guide may say who may connect.
    let words_of_code = [
        concat!("anyone ", "who"),
        concat!("cr", "ew"),
        concat!("stran", "gers"),
    ];
    let words = [
        &words[..],
        if is_prose {
            &[][..]
        } else {
            &words_of_code[..]
        },
    ]
    .concat();
    let mut complaints = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let comment = if is_prose {
            Some(line)
        } else {
            comment_of(line)
        };
        let comment = without_code(comment.unwrap_or_default()).to_lowercase();
        let found = words
            .iter()
            .filter(|word| !places_of(&comment, word).is_empty());
        complaints.extend(found.map(|word| format!("{path}:{number}: '{word}' in a comment")));
    }
    complaints
}

#[test]
fn comments_do_not_begin_by_pointing_at_another() {
    let opener = concat!("The ", "same");
    let bad = [
        (
            "src/a.rs",
            &*format!("/// {opener}, by one rank.\nfn f() {{}}"),
        ),
        ("src/a.rs", &*format!("fn f() {{\n    // {opener} sum.\n}}")),
    ];
    let good = [
        (
            "src/a.rs",
            &*format!("/// One rank reduces.\n/// {opener} rank sends."),
        ),
        (
            "src/a.rs",
            &*format!("/// It is {}.", opener.to_lowercase()),
        ),
        ("src/a.rs", &*format!("let text = \"{opener}\";")),
        ("README.md", opener),
    ];
    check_rule(check_openers, &bad, &good);
    check_tree(check_openers);
}

#[test]
fn comments_are_plain() {
    let [person, number, thing, waker, team, others] = [
        concat!("Who", "ever"),
        concat!("so ", "many"),
        concat!("that ", "which"),
        concat!("anyone ", "who"),
        concat!("cr", "ew"),
        concat!("stran", "gers"),
    ];
    let bad = [
        ("src/a.rs", &*format!("// {person} waits.")),
        ("src/a.rs", &*format!("/// Of {number} bytes.")),
        ("README.md", &*format!("It is {thing} counts.")),
        ("src/a.rs", &*format!("// Wakes {waker} sleeps.")),
        ("src/a.rs", &*format!("/// The {team} of a rank.")),
        ("src/a.rs", &*format!("/// Refuses {others}.")),
    ];
    let good = [
        ("src/a.rs", &*format!("let text = \"{person}\";")),
        ("tests/data/a.md", person),
        ("src/a.rs", &*format!("/// See `{others}.rs`.")),
        ("README.md", &*format!("Keeps {others} out.")),
    ];
    check_rule(check_plainness, &bad, &good);
    check_tree(check_plainness);
}

#[test]
fn comments_fit_a_hundred_columns() {
    let (wide, table) = ("word ".repeat(20), "| cell ".repeat(20));
    let bad = [
        ("src/a.rs", &*format!("/// {wide}")),
        ("src/a.rs", &*format!("fn f() {{\n    // {wide}\n}}")),
        (
            "tools/src/a.rs",
            &*format!("//! ```text\n//! a\n//! ```\n//! {wide}"),
        ),
    ];
    let good = [
        ("src/a.rs", &*format!("let text = \"{wide}\"; // {wide}")),
        (
            "src/a.rs",
            &*format!("//! {table}\n//! ```text\n//! {wide}\n//! ```"),
        ),
        ("README.md", &*wide),
    ];
    check_rule(check_width, &bad, &good);
    check_tree(check_width);
}
