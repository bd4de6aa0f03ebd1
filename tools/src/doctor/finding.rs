//! [`Finding`]: what was looked at, how it is, and what mends it.

use serde::Serialize;
use std::fmt::Write;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Good,
    /// Worth knowing.
    Note,
    /// Works, and could be faster or break later.
    Warning,
    /// Something will fail.
    Fault,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// What was looked at.
    pub check: &'static str,
    /// How it is.
    pub level: Level,
    /// What was found, with numbers.
    pub text: String,
    /// A command that changes it.
    pub mend: Option<String>,
}

impl Finding {
    /// As it should be.
    pub fn good(check: &'static str, text: impl Into<String>) -> Finding {
        Finding {
            check,
            level: Level::Good,
            text: text.into(),
            mend: None,
        }
    }

    /// Worth knowing.
    pub fn note(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding {
            level: Level::Note,
            mend: Some(mend.into()),
            ..Finding::good(check, text)
        }
    }

    /// Works, and could be better.
    pub fn warning(
        check: &'static str,
        text: impl Into<String>,
        mend: impl Into<String>,
    ) -> Finding {
        Finding {
            level: Level::Warning,
            ..Finding::note(check, text, mend)
        }
    }

    /// Something will fail.
    pub fn fault(check: &'static str, text: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding {
            level: Level::Fault,
            ..Finding::note(check, text, mend)
        }
    }
}

/// A line for each, one more for what mends it, and a sum.
pub fn describe(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let level = match finding.level {
            Level::Good => "good",
            Level::Note => "note",
            Level::Warning => "warning",
            Level::Fault => "FAULT",
        };
        let _ = writeln!(text, "{level:<8} {:<14} {}", finding.check, finding.text);
        if let Some(mend) = &finding.mend {
            let _ = writeln!(text, "{:<23} mend: {mend}", "");
        }
    }
    let count = |level| findings.iter().filter(|f| f.level == level).count();
    let plural = |n| if n == 1 { "" } else { "s" };
    let (faults, warnings) = (count(Level::Fault), count(Level::Warning));
    let _ = writeln!(
        text,
        "{faults} fault{}, {warnings} warning{}",
        plural(faults),
        plural(warnings)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_is_told_with_what_mends_it() {
        let findings = [
            Finding::good("cores", "4 cores"),
            Finding::fault("memlock", "0 bytes", "ulimit -l unlimited"),
        ];
        assert_eq!(
            describe(&findings),
            "good     cores          4 cores\nFAULT    memlock        0 bytes\n                        mend: ulimit -l unlimited\n1 fault, 0 warnings\n"
        );
    }

    #[test]
    fn levels_are_ordered_by_how_bad_they_are() {
        assert!(Level::Good < Level::Note && Level::Warning < Level::Fault);
    }
}
