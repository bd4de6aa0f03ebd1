//! The README and the guides: how long, where links lead, and which variables the page of settings
//! has.

use super::paths;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const PAGE_LINES_MAX: usize = 150;
const SETTINGS: &str = "src/guide/settings.md";
const PREFIX: &str = "LINERATE_";
/// Variable, default, range, effect, and when to change it.
const COLUMNS: usize = 5;

fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).ok()
}

/// Complaints about a page at the root; `read` gives the text of a file of the repository.
fn check_page(page: &str, text: &str, read: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let lines = text.lines().count();
    let long = (lines > PAGE_LINES_MAX)
        .then(|| format!("{page}: {lines} lines, at most {PAGE_LINES_MAX}"));
    let dead = links(text).into_iter().filter(|link| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let Some(target) = (if path.is_empty() {
            Some(text.into())
        } else {
            read(path)
        }) else {
            return true;
        };
        !anchor.is_empty() && !anchors(&target).contains(anchor)
    });
    let dead = dead.map(|link| format!("{page}: '{link}' leads nowhere"));
    long.into_iter().chain(dead).collect()
}

/// Targets of the links to files and anchors, outside of code blocks.
fn links(text: &str) -> Vec<String> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(|part| part.split("](").skip(1))
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .filter(|target| !target.contains("://"))
        .collect()
}

/// Anchors of the headings of a page, as GitHub and rustdoc make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = text.split("```").step_by(2);
    let headings = prose
        .flat_map(str::lines)
        .filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
            title
                .chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-")
        })
        .collect()
}

/// Complaints about the page of settings, for code that reads these variables.
fn check_settings(page: &str, read: &BTreeSet<String>) -> Vec<String> {
    let mut rows = BTreeMap::new();
    let mut complaints = Vec::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells.get(1).map_or("", |cell| cell.trim_matches('`'));
        if !name.starts_with(PREFIX) {
            continue;
        }
        let cells = &cells[1..cells.len() - 1];
        if cells.len() != COLUMNS || cells.iter().any(|cell| cell.is_empty()) {
            complaints.push(format!(
                "{SETTINGS}: {name} has not {COLUMNS} cells with text"
            ));
        }
        if rows.insert(name.to_owned(), ()).is_some() {
            complaints.push(format!("{SETTINGS}: {name} has two rows"));
        }
    }
    let missing = read.iter().filter(|name| !rows.contains_key(*name));
    complaints.extend(missing.map(|name| format!("{SETTINGS}: {name} has no row")));
    let unread = rows.keys().filter(|name| !read.contains(*name));
    complaints.extend(unread.map(|name| format!("{SETTINGS}: no code reads {name}")));
    complaints
}

/// The variables whose names are whole string literals.
fn variables(text: &str) -> BTreeSet<String> {
    let is_named = |part: &&str| part.starts_with(PREFIX) && part.len() > PREFIX.len();
    let literals = text.split('"').filter(is_named);
    literals
        .filter(|part| part.chars().all(|c| c.is_ascii_uppercase() || c == '_'))
        .map(str::to_owned)
        .collect()
}

/// Whether it is code of the library or of the command, and not of tests.
fn is_product(path: &str) -> bool {
    let is_source = path.starts_with("src/")
        || ["tools/", "ffi/"]
            .iter()
            .any(|folder| path.starts_with(folder) && path.contains("/src/"));
    is_source && path.ends_with(".rs") && !path.contains("tests")
}

#[test]
fn the_readme_is_short_and_its_links_lead_somewhere() {
    let file = |path: &str| (path == "a.md").then(|| "# What is it?\n```sh\n# no\n```".to_string());
    for bad in [
        "[a](b.md)",
        "[a](a.md#no)",
        "[a](#none)",
        &"\n".repeat(PAGE_LINES_MAX + 1),
    ] {
        assert!(
            !check_page("README.md", bad, file).is_empty(),
            "no complaint about {bad}"
        );
    }
    let good =
        "# Use\n[a](a.md#what-is-it) [b](a.md) [c](#use) [d](https://e/f)\n```\nm[0](x)\n```";
    assert_eq!(check_page("README.md", good, file), Vec::<String>::new());

    for page in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"] {
        let text = read(page).expect("a page at the root");
        let complaints = check_page(page, &text, read);
        assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
    }
}

#[test]
fn the_page_of_settings_has_every_variable_that_code_reads() {
    let code = "lookup(\"LINERATE_ONE\"); // \"LINERATE_TWO is wrong\", \"LINERATE_\"";
    let known = variables(code);
    assert_eq!(known.iter().collect::<Vec<_>>(), ["LINERATE_ONE"]);
    let row = "| `LINERATE_ONE` | 1 | 1 to 2 | An effect. | Never. |";
    assert_eq!(check_settings(row, &known), Vec::<String>::new());
    for bad in [
        "",
        "| `LINERATE_ONE` | 1 | 1 to 2 | | Never. |",
        "| `LINERATE_ONE` | 1 | 1 to 2 | An effect. |",
        &format!("{row}\n{row}"),
        &format!("{row}\n| `LINERATE_TWO` | 1 | 1 | An effect. | Never. |"),
    ] {
        assert!(
            !check_settings(bad, &known).is_empty(),
            "no complaint about {bad}"
        );
    }

    let sources = paths().into_iter().filter(|path| is_product(path));
    let texts = sources.filter_map(|path| read(&path));
    let all: BTreeSet<String> = texts.flat_map(|text| variables(&text)).collect();
    assert!(all.len() > 40, "variables that code reads: {all:?}");
    let complaints = check_settings(&read(SETTINGS).expect("the page"), &all);
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}
