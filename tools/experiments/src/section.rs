//! [`Section`]: what a part of the experiment says: text, a document, pictures, and what is wrong.

use crate::plot::Chart;
use serde_json::{Value, json};

/// One part's results.
pub struct Section {
    pub name: &'static str,
    lines: Vec<String>,
    pub document: Value,
    /// Names of files, and what is drawn in them.
    pub charts: Vec<(String, Chart)>,
    /// Empty unless something is wrong.
    pub violations: Vec<String>,
}

impl Section {
    pub fn new(name: &'static str) -> Section {
        Section {
            name,
            lines: Vec::new(),
            document: Value::Null,
            charts: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub fn line(&mut self, line: String) {
        self.lines.push(line);
    }

    pub fn violation(&mut self, text: String) {
        self.lines.push(format!("VIOLATION: {text}"));
        self.violations.push(text);
    }

    pub fn text(&self) -> String {
        format!("# {}\n{}\n\n", self.name, self.lines.join("\n"))
    }

    pub fn json(&self) -> Value {
        json!({ "results": self.document, "violations": self.violations })
    }
}
