//! Emits and parses the findings of [`Models`]: as text for a file that several hosts may share,
//! and as bytes for the other ranks. Does no I/O.
//!
//! ```text
//! [AMD EPYC; 2 cores; 0.1.0]
//! faster crowded reduce 8 caller 32768 tree
//! ...
//! ```
//!
//! The file has a section for each host. The name of the section says what times depend on: the
//! CPU model, the number of cores, and the version of this library. If one line of a section is no
//! finding, the section is an error.

use super::{FINDINGS_MAX, Finding, Models};
use crate::error::{Error, Result};
use std::borrow::Cow;

/// The beginning of a line with a finding.
const FASTER: &str = "faster ";

/// The name of a host's section, from the text of /proc/cpuinfo.
pub fn host_key(cpuinfo: &str) -> String {
    let value = |line: &str| Some(line.split_once(':')?.1.trim().to_string());
    let model = cpuinfo
        .lines()
        .find(|line| line.starts_with("model name"))
        .and_then(value)
        .unwrap_or_else(|| std::env::consts::ARCH.into());
    let cores = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let model = model.replace(['[', ']', ';'], " ");
    format!("{model}; {cores} cores; {}", env!("CARGO_PKG_VERSION"))
}

/// Returns the text `before` with the section of `key` replaced by these findings, or added.
pub fn emit(before: &str, key: &str, models: &Models) -> String {
    let mut text = String::new();
    let mut is_old = false;
    for line in before.lines() {
        if let Some(name) = section(line) {
            is_old = name == key;
        }
        if !is_old {
            text += line;
            text += "\n";
        }
    }
    text += &format!("[{key}]\n");
    for finding in models.findings.iter() {
        text += &format!("{FASTER}{finding}\n");
    }
    text
}

/// Parses the section of `key`: the built-in prices with the findings of the section. `None`: there
/// is no such section.
///
/// # Errors
/// [`Error::InvalidArgument`]: a line of the section is no finding, or there are more than
/// [`FINDINGS_MAX`].
pub fn parse(text: &str, key: &str) -> Result<Option<Models>> {
    let mut lines = text.lines().skip_while(|line| section(line) != Some(key));
    if lines.next().is_none() {
        return Ok(None);
    }
    let lines: Vec<&str> = lines
        .take_while(|line| section(line).is_none())
        .filter(|line| !line.trim().is_empty())
        .collect();
    if let Some(line) = lines.iter().find(|line| !line.starts_with(FASTER)) {
        return Err(Error::invalid(format!(
            "section [{key}] has the line '{line}', which does not begin with '{FASTER}': another version wrote it, or it is damaged"
        )));
    }
    Ok(Some(of_findings(parse_findings(&lines)?)))
}

fn of_findings(findings: Cow<'static, [Finding]>) -> Models {
    Models {
        findings,
        ..Models::BUILT_IN
    }
}

fn parse_findings(lines: &[&str]) -> Result<Cow<'static, [Finding]>> {
    if lines.len() > FINDINGS_MAX {
        return Err(Error::invalid(format!(
            "{} lines begin with '{FASTER}', at most {FINDINGS_MAX} may",
            lines.len()
        )));
    }
    let parse = |line: &&str| line.strip_prefix(FASTER).unwrap_or(line).parse();
    let findings: std::result::Result<Vec<Finding>, String> = lines.iter().map(parse).collect();
    let findings = findings.map_err(|e| Error::invalid(format!("a line of '{FASTER}' is {e}")))?;
    Ok(Cow::Owned(findings))
}

/// The findings as bytes: the length of their text in bytes (u32, little-endian), then the text.
pub fn emit_bytes(models: &Models) -> Vec<u8> {
    let lines: Vec<String> = models.findings.iter().map(Finding::to_string).collect();
    let text = lines.join("\n");
    let mut bytes = (text.len() as u32).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// Parses findings from the beginning of `bytes`, and returns them with the bytes that follow.
///
/// # Errors
/// [`Error::Malformed`]: the bytes end too early, or the text is not one of findings.
pub fn parse_bytes(bytes: &[u8]) -> Result<(Models, &[u8])> {
    let short = || Error::Malformed(format!("findings cut off after {} bytes", bytes.len()));
    let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (text, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    let text = std::str::from_utf8(text).unwrap_or("?");
    let lines: Vec<&str> = text.lines().collect();
    let of_another = |e: Error| Error::Malformed(format!("findings of another rank: {e}"));
    let findings = parse_findings(&lines).map_err(of_another)?;
    Ok((of_findings(findings), rest))
}

fn section(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.strip_suffix(']')
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str =
        "processor\t: 0\nmodel name\t: AMD [EPYC]\nprocessor\t: 1\nmodel name\t: AMD [EPYC]\n";

    fn models(bytes: u64) -> Models {
        let text = format!("crowded reduce 8 caller {bytes} tree");
        of_findings(Cow::Owned(vec![text.parse().unwrap(); 2]))
    }

    #[test]
    fn a_key_says_cpu_cores_and_version() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(host_key(CPUINFO), format!("AMD  EPYC ; 2 cores; {version}"));
        assert!(host_key("").contains("0 cores"));
    }

    #[test]
    fn hosts_have_sections_of_their_own() {
        let text = emit("", "a", &models(1));
        let text = emit(&text, "b", &models(2));
        let text = emit(&text, "a", &models(3));
        assert_eq!(parse(&text, "a").unwrap(), Some(models(3)));
        assert_eq!(parse(&text, "b").unwrap(), Some(models(2)));
        assert_eq!(parse(&text, "c").unwrap(), None);
        assert_eq!(text.matches("[a]").count(), 1);
    }

    #[test]
    fn a_damaged_section_is_refused_with_the_line() {
        let good = emit("", "a", &models(32768));
        for (from, to, expected) in [
            (
                "faster ",
                "apart call 1.5\nfaster ",
                "the line 'apart call 1.5'",
            ),
            ("faster ", "faster", "the line 'fastercrowded"),
            (
                "32768 tree",
                "many tree",
                "'crowded reduce 8 caller many tree'",
            ),
        ] {
            assert!(good.contains(from));
            let text = parse(&good.replacen(from, to, 1), "a").unwrap_err();
            assert!(text.to_string().contains(expected), "{text}");
        }
        let text = format!(
            "[a]\n{}",
            "faster crowded reduce 8 caller 8 tree\n".repeat(129)
        );
        assert!(parse(&text, "a").unwrap_err().to_string().contains("129"));
        let empty = parse("[a]\n", "a").unwrap().unwrap();
        assert!(empty.findings.is_empty());
    }

    #[test]
    fn prices_that_an_earlier_version_stored_are_refused() {
        let text = "[a]\ncore cache 1048576\nhost cache 33554432\napart call 150.2\n";
        let error = parse(text, "a").unwrap_err().to_string();
        assert!(error.contains("another version wrote it"), "{error}");
    }

    #[test]
    fn bytes_survive_and_nonsense_is_refused() {
        let mut bytes = emit_bytes(&models(7));
        let length = bytes.len();
        bytes.extend(b"rest");
        assert_eq!(parse_bytes(&bytes).unwrap(), (models(7), &b"rest"[..]));
        for end in 0..length {
            assert!(parse_bytes(&bytes[..end]).is_err(), "{end}");
        }
        bytes[4] = b'x';
        assert!(parse_bytes(&bytes).is_err());
    }
}
