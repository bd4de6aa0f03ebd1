//! [`Document`]: what a command has written with `--json`, and why something is not such a
//! document.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A longer file is refused.
pub const BYTES_MAX: u64 = 100 << 20;

/// The commands whose documents are understood, and the fields of which one must hold something.
const KINDS: [(&str, &[&str]); 7] = [
    ("bench", &["results"]),
    ("experiment", &["results", "parts"]),
    ("mesh", &["bandwidth"]),
    ("perf", &["results"]),
    ("replay", &["flushes"]),
    ("sim", &["results", "step"]),
    ("whatif", &["results"]),
];

const EXPECTED: &str = "expected a document that linerate bench, experiment, mesh, perf, replay, sim or whatif has written with --json";

/// Why a document was not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It cannot be read at all.
    #[error("'{file}' cannot be read: {cause}; {EXPECTED}")]
    Unreadable { file: String, cause: std::io::Error },
    /// It is longer than any document should be.
    #[error("'{file}' has more than {BYTES_MAX} bytes; {EXPECTED}")]
    TooLong { file: String },
    /// It is not JSON; the cause has line and column.
    #[error("'{file}' is not JSON: {cause}; {EXPECTED}")]
    NotJson {
        file: String,
        cause: serde_json::Error,
    },
    /// It is JSON of something else, or of a command that is not understood.
    #[error("'{file}': {found}; {EXPECTED}")]
    Foreign { file: String, found: String },
    /// Another version has written it.
    #[error(
        "'{file}' was written by version {version}, expected {}: make the report with the linerate that made the document",
        env!("CARGO_PKG_VERSION")
    )]
    Version { file: String, version: String },
    /// Nothing is in it.
    #[error("'{file}' of linerate {command} has nothing in {field}, expected one result at least")]
    Empty {
        file: String,
        command: String,
        field: String,
    },
    /// A result is not as its command writes it.
    #[error("'{file}': {cause}; expected a document as linerate {command} writes it")]
    Malformed {
        file: String,
        command: String,
        cause: String,
    },
}

/// What a command has written.
pub struct Document {
    /// Where it was read.
    pub file: String,
    /// The command that wrote it.
    pub command: String,
    /// With its arguments.
    pub command_line: String,
    /// All else.
    pub fields: Map<String, Value>,
}

impl Document {
    /// Reads a file; `-` is standard input.
    pub fn read(path: &Path) -> Result<Document, ReadError> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        let source: std::io::Result<Box<dyn Read>> = match path.as_os_str() == "-" {
            true => Ok(Box::new(std::io::stdin())),
            false => File::open(path).map(|file| Box::new(file) as Box<dyn Read>),
        };
        let read = source.and_then(|source| source.take(BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Err(cause) => Err(ReadError::Unreadable { file, cause }),
            Ok(length) if length as u64 > BYTES_MAX => Err(ReadError::TooLong { file }),
            Ok(_) => Document::parse(file, &bytes),
        }
    }

    /// The document of these bytes; `file` is for errors and for the page.
    pub fn parse(file: String, bytes: &[u8]) -> Result<Document, ReadError> {
        let mut value = match serde_json::from_slice(bytes) {
            Ok(value) => value,
            Err(cause) => return Err(ReadError::NotJson { file, cause }),
        };
        clean(&mut value);
        let Value::Object(mut fields) = value else {
            let found = "the document is no object".into();
            return Err(ReadError::Foreign { file, found });
        };
        let mut text = |name: &str| match fields.remove(name) {
            Some(Value::String(text)) => Ok(text),
            _ => Err(format!("the document has no text '{name}'")),
        };
        let header = text("command")
            .and_then(|command| Ok((command, text("command_line")?, text("version")?)));
        let (command, command_line, version) = match header {
            Ok(header) => header,
            Err(found) => return Err(ReadError::Foreign { file, found }),
        };
        let Some((_, filled)) = KINDS.iter().find(|(name, _)| *name == command) else {
            let found = format!("a document of '{command}' is not understood");
            return Err(ReadError::Foreign { file, found });
        };
        if version != env!("CARGO_PKG_VERSION") {
            return Err(ReadError::Version { file, version });
        }
        fields.insert("version".into(), version.into());
        let has_something = |name: &&str| match fields.get(*name) {
            Some(Value::Array(items)) => !items.is_empty(),
            Some(Value::Object(items)) => !items.is_empty(),
            _ => false,
        };
        if !filled.iter().any(has_something) {
            let field = filled.join(" and in ");
            return Err(ReadError::Empty {
                file,
                command,
                field,
            });
        }
        Ok(Document {
            file,
            command,
            command_line,
            fields,
        })
    }
}

/// Replaces characters that neither XML nor HTML may have.
fn clean(value: &mut Value) {
    let is_bad = |c: char| {
        let is_control = c.is_control() && !matches!(c, '\n' | '\t');
        is_control || matches!(c, '\u{fffe}' | '\u{ffff}')
    };
    let replaced = |text: &str| text.replace(is_bad, "\u{fffd}");
    match value {
        Value::String(text) if text.contains(is_bad) => *text = replaced(text),
        Value::Array(items) => items.iter_mut().for_each(clean),
        Value::Object(fields) => {
            let old = std::mem::take(fields);
            for (name, mut value) in old {
                clean(&mut value);
                fields.insert(replaced(&name), value);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: &str = env!("CARGO_PKG_VERSION");

    fn parse(text: &str) -> Result<Document, String> {
        let text = text.replace("VERSION", VERSION);
        Document::parse("x.json".into(), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_document_has_a_command_a_version_and_results() {
        let text = r#"{"command": "perf", "command_line": "linerate perf", "version": "VERSION", "results": [{}]}"#;
        let document = parse(text).unwrap();
        assert_eq!(document.command, "perf");
        assert_eq!(document.fields["version"], VERSION);
        assert!(
            parse(&text.replace("[{}]", "[]")).is_err_and(|e| e.contains("nothing in results"))
        );
        assert!(
            parse(&text.replace("VERSION", "9.0"))
                .is_err_and(|e| e.contains("version 9.0, expected 0."))
        );
        assert!(
            parse(&text.replace("perf\", \"command_line", "fly\", \"command_line"))
                .is_err_and(|e| e.contains("'fly' is not understood"))
        );
    }

    #[test]
    fn what_is_no_document_is_told_with_the_file_and_what_was_expected() {
        for (text, part) in [
            ("", "not JSON: EOF while parsing a value at line 1"),
            ("{\"command\":", "not JSON"),
            ("[]", "no object"),
            (r#"{"traceEvents": []}"#, "no text 'command'"),
            (r#"{"command": 3}"#, "no text 'command'"),
            (r#"{"command": "bench"}"#, "no text 'command_line'"),
        ] {
            let error = parse(text).err().unwrap();
            assert!(
                error.starts_with("'x.json'") && error.contains(part),
                "{text}: {error}"
            );
            assert!(
                error.contains("expected a document that linerate"),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn characters_that_no_page_may_have_are_replaced() {
        let mut value = serde_json::json!({"a\u{0}": ["b\u{1b}\n", 1]});
        clean(&mut value);
        assert_eq!(value, serde_json::json!({"a\u{fffd}": ["b\u{fffd}\n", 1]}));
    }
}
