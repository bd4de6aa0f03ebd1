//! Reads the findings of this host from the file in which `linerate explain --calibrate` has stored
//! them.
//!
//! A bad file never fails the job. Then one line on standard error says what is wrong, and choices
//! are made by the built-in findings.

use crate::config::FindingsFrom;
use crate::cost::{self, Models};
use std::io::ErrorKind;
use std::path::Path;

/// The file in which the kernel describes the processors.
const CPUINFO: &str = "/proc/cpuinfo";

/// The prices and findings to use, and a complaint if the stored findings cannot be used.
pub(super) fn read_findings(list: &FindingsFrom) -> (Models, Option<String>) {
    let (path, is_asked_for) = match list {
        FindingsFrom::BuiltIn => return (Models::BUILT_IN, None),
        FindingsFrom::Cached(path) => (path, false),
        FindingsFrom::Named(path) => (path, true),
    };
    match read(path, is_asked_for) {
        Ok(models) => (models.unwrap_or(Models::BUILT_IN), None),
        Err(cause) => {
            let text = format!(
                "the findings in {} are not used: {cause}; `linerate explain --calibrate` writes them, LINERATE_MODEL=off does without",
                path.display()
            );
            (Models::BUILT_IN, Some(text))
        }
    }
}

/// `None`: nothing is stored for this host.
fn read(path: &Path, is_asked_for: bool) -> Result<Option<Models>, String> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound && !is_asked_for => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    cost::parse(&text, &host()).map_err(|e| e.to_string())
}

/// The name of this host's section in a file of findings (see `cost::host_key`).
pub fn host() -> String {
    cost::host_key(&std::fs::read_to_string(CPUINFO).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_used_ignored_or_complained_about() {
        let folder = std::env::temp_dir().join(format!("linerate-findings-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("model");
        let mut stored = Models::BUILT_IN;
        stored.findings = vec!["apart reduce 2 caller 8 tree".parse().unwrap()].into();
        let read = |list: FindingsFrom| read_findings(&list);

        assert_eq!(
            read(FindingsFrom::Cached(file.clone())),
            (Models::BUILT_IN, None)
        );
        let (models, text) = read(FindingsFrom::Named(file.clone()));
        assert_eq!(models, Models::BUILT_IN);
        assert!(text.unwrap().contains("LINERATE_MODEL=off"));

        std::fs::write(&file, cost::emit("", &host(), &stored)).unwrap();
        assert_eq!(
            read(FindingsFrom::Cached(file.clone())),
            (stored.clone(), None)
        );
        std::fs::write(&file, cost::emit("", "another host", &stored)).unwrap();
        assert_eq!(
            read(FindingsFrom::Named(file.clone())),
            (Models::BUILT_IN, None)
        );

        std::fs::write(&file, format!("[{}]\ngarbage", host())).unwrap();
        let (models, text) = read(FindingsFrom::Cached(file.clone()));
        assert_eq!(models, Models::BUILT_IN);
        assert!(text.unwrap().contains("the line 'garbage'"));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
