//! Files of `src` do not import each other in circles.
//!
//! An import is followed through `pub use` to the file that defines the name. Unit tests are left
//! out: they may look at what they test from anywhere.

use super::text::{code_of, places_of};
use super::{module_of, paths};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// A path of names from the crate's root.
type Names = Vec<String>;

/// The files of a crate, and the names that their modules pass on.
struct Crate {
    files: BTreeMap<Names, String>,
    code: BTreeMap<String, String>,
    passed_on: BTreeMap<(Names, String), Names>,
}

impl Crate {
    /// Of (path, text) pairs.
    fn new(texts: impl IntoIterator<Item = (String, String)>) -> Crate {
        let mut all = Crate {
            files: BTreeMap::new(),
            code: BTreeMap::new(),
            passed_on: BTreeMap::new(),
        };
        for (path, text) in texts {
            let code = code_of(&text);
            let tests = code.find("#[cfg(test)]\nmod tests {");
            let code = code[..tests.unwrap_or(code.len())].to_owned();
            all.files.insert(module_names(&path), path.clone());
            all.code.insert(path, code);
        }
        for (path, code) in &all.code {
            let module = module_names(path);
            for (is_public, names) in uses(code) {
                let Some(absolute) = all.absolute(&module, &names).filter(|_| is_public) else {
                    continue;
                };
                let last = absolute.last().expect("a name").clone();
                all.passed_on.insert((module.clone(), last), absolute);
            }
        }
        all
    }

    /// A path as it is seen from the root; `None` for names of other crates.
    fn absolute(&self, module: &Names, names: &[String]) -> Option<Names> {
        let ups = names.iter().take_while(|name| *name == "super").count();
        let (base, rest) = match names.first()?.as_str() {
            "crate" => (&[][..], &names[1..]),
            "self" => (&module[..], &names[1..]),
            "super" => (&module[..module.len().checked_sub(ups)?], &names[ups..]),
            _ => (&module[..], names),
        };
        let all = [base, rest].concat();
        let is_local = names
            .first()
            .is_some_and(|n| ["crate", "self", "super"].contains(&&**n));
        let is_child = || self.files.contains_key(&all[..=module.len()]);
        (is_local || is_child()).then_some(all)
    }

    /// The file that defines a name.
    fn file_of(&self, names: &Names, steps: u32) -> Option<&String> {
        if let Some(file) = self.files.get(names) {
            return Some(file);
        }
        let length = (0..names.len())
            .rev()
            .find(|l| self.files.contains_key(&names[..*l]))?;
        let (module, rest) = names.split_at(length);
        let passed_on = self.passed_on.get(&(module.to_vec(), rest[0].clone()));
        match passed_on.filter(|_| steps > 0) {
            Some(next) if next[..] != names[..=length] => {
                self.file_of(&[next, &rest[1..]].concat(), steps - 1)
            }
            _ => self.files.get(module),
        }
    }

    /// The files that a file imports from.
    fn imports(&self, path: &str) -> BTreeSet<&str> {
        let module = module_names(path);
        let code = &self.code[path];
        let imported = uses(code).into_iter().filter(|(is_public, _)| !is_public);
        let named = paths_in(&without_uses(code))
            .into_iter()
            .map(|names| (false, names));
        (imported.chain(named))
            .filter_map(|(_, names)| self.file_of(&self.absolute(&module, &names)?, 8))
            .map(String::as_str)
            .filter(|other| *other != path)
            .collect()
    }

    /// Groups of files each of which reaches every other one of its group.
    fn circles(&self) -> Vec<Vec<&str>> {
        let edges: BTreeMap<&str, BTreeSet<&str>> = self
            .code
            .keys()
            .map(|path| (&**path, self.imports(path)))
            .collect();
        let reached: BTreeMap<&str, BTreeSet<&str>> = edges
            .keys()
            .map(|path| (*path, reach(path, &edges)))
            .collect();
        let mut circles = BTreeSet::new();
        for (path, others) in &reached {
            let back = others
                .iter()
                .filter(|other| reached[**other].contains(path));
            let circle: Vec<&str> = back.copied().collect();
            circles.extend((!circle.is_empty()).then_some(circle));
        }
        circles.into_iter().collect()
    }
}

/// What can be reached by one import or more.
fn reach<'a>(from: &'a str, edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(path) = next.pop() {
        let new = edges[path].iter().filter(|other| seen.insert(**other));
        next.extend(new);
    }
    seen
}

/// The module of a file, `src/a/b.rs` and `src/a/b/mod.rs` alike.
fn module_names(path: &str) -> Names {
    let inside = path.trim_start_matches("src/").trim_end_matches(".rs");
    let mut names: Names = inside.split('/').map(String::from).collect();
    if ["mod", "lib"].contains(&names.last().map_or("", |name| name)) {
        names.pop();
    }
    names
}

/// The code without its `use` items, which may stand in functions too.
fn without_uses(code: &str) -> String {
    let mut rest = code.to_owned();
    for at in places_of(code, "use").into_iter().rev() {
        let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
        rest.replace_range(at..end, "");
    }
    rest
}

/// All paths of the `use` items, and whether each is passed on.
fn uses(code: &str) -> Vec<(bool, Names)> {
    let mut found = Vec::new();
    for at in places_of(code, "use") {
        let before = code[..at]
            .rsplit(['\n', ';', '}'])
            .next()
            .unwrap_or_default()
            .trim();
        let is_item = before.is_empty() || before.starts_with("pub");
        let end = code[at..].find(';').filter(|_| is_item);
        if let Some(end) = end {
            let tree = &code[at + "use".len()..at + end];
            found.extend(
                leaves(tree)
                    .into_iter()
                    .map(|names| (!before.is_empty(), names)),
            );
        }
    }
    found
}

/// The paths of a tree of imports.
fn leaves(tree: &str) -> Vec<Names> {
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        let names = path.split("::").map(|name| name.trim().to_owned());
        return vec![
            names
                .filter(|name| !name.is_empty() && name != "self")
                .collect(),
        ];
    };
    let group = group.trim_end().trim_end_matches('}');
    let (mut depth, mut start, mut all) = (0, 0, Vec::new());
    for (at, character) in group.char_indices().chain([(group.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let item = format!("{}{}", prefix.trim(), group[start..at].trim());
                all.extend((!group[start..at].trim().is_empty()).then(|| leaves(&item)));
                start = at + 1;
            }
            _ => {}
        }
    }
    all.concat()
}

/// Paths of two names or more outside `use` items.
fn paths_in(code: &str) -> Vec<Names> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code
        .split(|c: char| !is_part(c))
        .filter(|word| word.contains("::"));
    let is_path = |names: &Names| names.iter().all(|n| !n.is_empty() && !n.contains(':'));
    let split = words.map(|word| word.split("::").map(String::from).collect());
    split.filter(is_path).collect()
}

/// Files that no test of a unit is in.
fn is_production(path: &str) -> bool {
    let is_test = path.ends_with("tests.rs") || path.contains("tests/") || path.contains("/test_");
    module_of(path).is_some_and(|module| module != "unstable") && !is_test
}

#[test]
fn files_do_not_import_each_other_in_circles() {
    let crate_of = |files: &[(&str, &str)]| {
        Crate::new(
            files
                .iter()
                .map(|(path, text)| (path.to_string(), text.to_string())),
        )
    };
    let circle = crate_of(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a/mod.rs", "mod ring;\npub use ring::{Ring, Slot};"),
        ("src/a/ring.rs", "use crate::b::{self, Bell};"),
        (
            "src/b.rs",
            "use std::fmt;\nfn f() -> crate::a::Ring { todo() }",
        ),
    ]);
    assert_eq!(circle.circles(), [["src/a/ring.rs", "src/b.rs"]]);
    let line = crate_of(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a/mod.rs", "mod ring;\npub use ring::Ring;"),
        (
            "src/a/ring.rs",
            "#[cfg(test)]\nmod tests {\n use crate::b; }",
        ),
        ("src/b.rs", "use crate::a::Ring; // crate::b"),
    ]);
    assert_eq!(line.circles(), Vec::<Vec<&str>>::new());

    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts = paths()
        .into_iter()
        .filter(|path| is_production(path))
        .map(|path| {
            let text = std::fs::read_to_string(root.join(&path)).unwrap_or_default();
            (path, text)
        });
    let found = Crate::new(texts);
    let circles = found.circles();
    let lines: Vec<String> = (circles.iter())
        .map(|circle| format!("in a circle: {}", circle.join(", ")))
        .collect();
    assert!(circles.is_empty(), "\n{}", lines.join("\n"));
}
