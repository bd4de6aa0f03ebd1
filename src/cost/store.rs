//! [`Models`] as text, for a file that several hosts may share, and as bytes, for the other ranks.
//! Pure.
//!
//! ```text
//! [AMD EPYC; 2 cores; 0.1.0]
//! core cache 1048576
//! host cache 33554432
//! apart call 150.2
//! ...
//! faster crowded reduce 8 caller 32768 tree
//! ...
//! ```
//!
//! A section for each host, named by what prices depend on: CPU model, cores, version of this
//! library. Every line of a price is needed, every price is a finite number from 0 on; a section
//! with anything else is an error, never a guess.

use super::{Caches, FINDINGS_MAX, Finding, Model, Models, TERMS};
use crate::error::{Error, Result};
use std::borrow::Cow;

/// Bytes of the prices in [`emit_bytes`]; behind them the number of bytes of the findings, and
/// these as text.
const PRICES_BYTES: usize = (2 * TERMS + 2) * size_of::<f64>();

/// How the line of a finding begins.
const FASTER: &str = "faster ";

/// Largest price that is believed, ns: a second.
const PRICE_MAX: f64 = 1e9;

/// Largest cache that is believed.
const BYTES_MAX: f64 = 1e12;

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

/// The text with the section of `key` replaced or added.
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
    let Caches {
        core_bytes,
        host_bytes,
    } = models.caches;
    text += &format!("[{key}]\ncore cache {core_bytes}\nhost cache {host_bytes}\n");
    for (class, model) in [("apart", &models.apart), ("crowded", &models.crowded)] {
        for (name, price) in Model::NAMES.iter().zip(model.0) {
            text += &format!("{class} {name} {price}\n");
        }
    }
    for finding in models.findings.iter() {
        text += &format!("{FASTER}{finding}\n");
    }
    text
}

/// The section of `key`; `None`: there is none.
pub fn parse(text: &str, key: &str) -> Result<Option<Models>> {
    let mut lines = text.lines().skip_while(|line| section(line) != Some(key));
    if lines.next().is_none() {
        return Ok(None);
    }
    let (findings, lines): (Vec<&str>, Vec<&str>) = lines
        .take_while(|line| section(line).is_none())
        .filter(|line| !line.trim().is_empty())
        .partition(|line| line.starts_with(FASTER));
    let model = |class: &str| -> Result<Model> {
        let mut prices = [0.0; TERMS];
        for (price, name) in prices.iter_mut().zip(Model::NAMES) {
            *price = number(&lines, &format!("{class} {name}"))?;
        }
        Ok(Model(prices))
    };
    let models = Models {
        apart: model("apart")?,
        crowded: model("crowded")?,
        caches: Caches {
            core_bytes: number(&lines, "core cache")?,
            host_bytes: number(&lines, "host cache")?,
        },
        findings: parse_findings(&findings)?,
    };
    let known = 2 * TERMS + 2;
    if lines.len() != known {
        return Err(Error::invalid(format!(
            "section [{key}] has {} lines besides those of '{FASTER}', {known} are known",
            lines.len()
        )));
    }
    check(&models)?;
    Ok(Some(models))
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

/// The prices and findings as bytes.
pub fn emit_bytes(models: &Models) -> Vec<u8> {
    let all = models.apart.0.iter().chain(&models.crowded.0);
    let mut bytes: Vec<u8> = all
        .chain([&models.caches.core_bytes, &models.caches.host_bytes])
        .flat_map(|price| price.to_le_bytes())
        .collect();
    let lines: Vec<String> = models.findings.iter().map(Finding::to_string).collect();
    let text = lines.join("\n");
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text.as_bytes());
    bytes
}

/// Checks, and takes the prices and findings, and what follows, apart.
pub fn parse_bytes(bytes: &[u8]) -> Result<(Models, &[u8])> {
    let short = || {
        Error::Malformed(format!(
            "prices of {} bytes, more than {PRICES_BYTES} are needed",
            bytes.len()
        ))
    };
    let (own, rest) = bytes
        .split_first_chunk::<PRICES_BYTES>()
        .ok_or_else(short)?;
    let (length, rest) = rest.split_first_chunk().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let (text, rest) = rest.split_at_checked(length).ok_or_else(short)?;
    let text = std::str::from_utf8(text).unwrap_or("?");
    let lines: Vec<&str> = text.lines().collect();
    let of_another = |e: Error| Error::Malformed(format!("prices of another rank: {e}"));
    let number = |index: usize| {
        f64::from_le_bytes(std::array::from_fn(|i| own[index * size_of::<f64>() + i]))
    };
    let models = Models {
        apart: Model(std::array::from_fn(number)),
        crowded: Model(std::array::from_fn(|i| number(TERMS + i))),
        caches: Caches {
            core_bytes: number(2 * TERMS),
            host_bytes: number(2 * TERMS + 1),
        },
        findings: parse_findings(&lines).map_err(of_another)?,
    };
    check(&models).map_err(of_another)?;
    Ok((models, rest))
}

fn section(line: &str) -> Option<&str> {
    line.trim().strip_prefix('[')?.strip_suffix(']')
}

fn number(lines: &[&str], name: &str) -> Result<f64> {
    let found = lines
        .iter()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    let value = found.and_then(|text| text.trim().parse().ok());
    value.ok_or_else(|| {
        Error::invalid(match found {
            Some(text) => format!("'{name}' is '{text}': a number"),
            None => format!("the line '{name} NUMBER' is missing"),
        })
    })
}

fn check(models: &Models) -> Result<()> {
    let is_price = |price: &f64| (0.0..=PRICE_MAX).contains(price);
    let mut prices = models.apart.0.iter().chain(&models.crowded.0);
    let sizes = [models.caches.core_bytes, models.caches.host_bytes];
    let is_right =
        prices.all(is_price) && sizes.iter().all(|bytes| (0.0..=BYTES_MAX).contains(bytes));
    is_right
        .then_some(())
        .ok_or_else(|| Error::invalid(format!("a price is not between 0 and {PRICE_MAX} ns, or a cache not between 0 and {BYTES_MAX} bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str =
        "processor\t: 0\nmodel name\t: AMD [EPYC]\nprocessor\t: 1\nmodel name\t: AMD [EPYC]\n";

    fn models(price: f64) -> Models {
        let mut models = Models::BUILT_IN;
        models.apart.0[0] = price;
        let text = "crowded reduce 8 caller 32768 tree";
        models.findings = Cow::Owned(vec![text.parse().unwrap(); 2]);
        models
    }

    #[test]
    fn a_key_says_cpu_cores_and_version() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(host_key(CPUINFO), format!("AMD  EPYC ; 2 cores; {version}"));
        assert!(host_key("").contains("0 cores"));
    }

    #[test]
    fn hosts_have_sections_of_their_own() {
        let text = emit("", "a", &models(1.5));
        let text = emit(&text, "b", &models(2.5));
        let text = emit(&text, "a", &models(3.25));
        assert_eq!(parse(&text, "a").unwrap(), Some(models(3.25)));
        assert_eq!(parse(&text, "b").unwrap(), Some(models(2.5)));
        assert_eq!(parse(&text, "c").unwrap(), None);
        assert_eq!(text.matches("[a]").count(), 1);
    }

    #[test]
    fn a_damaged_section_is_refused_with_the_line() {
        let good = emit("", "a", &models(1.5));
        for (from, to, expected) in [
            ("apart call 1.5", "", "'apart call NUMBER' is missing"),
            ("apart call 1.5", "apart call x", "'apart call' is 'x'"),
            ("apart call 1.5", "apart call -1", "not between 0"),
            ("apart call 1.5", "apart call NaN", "not between 0"),
            ("apart call 1.5", "apart call 1.5\nsurprise 3", "27 lines"),
            (
                "32768 tree",
                "many tree",
                "'crowded reduce 8 caller many tree'",
            ),
        ] {
            assert!(good.contains(from));
            let text = parse(&good.replace(from, to), "a").unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        // Cut off anywhere, it is whole, absent or refused; the last number may lose digits, and
        // findings may be fewer.
        for end in 0..good[..good.find(FASTER).unwrap()]
            .trim_end()
            .rfind(' ')
            .unwrap()
        {
            assert!(!matches!(parse(&good[..end], "a"), Ok(Some(_))), "{end}");
        }
    }

    #[test]
    fn bytes_survive_and_nonsense_is_refused() {
        let mut bytes = emit_bytes(&models(7.0));
        let length = bytes.len();
        bytes.extend(b"rest");
        assert_eq!(parse_bytes(&bytes).unwrap(), (models(7.0), &b"rest"[..]));
        for end in 0..length {
            assert!(parse_bytes(&bytes[..end]).is_err(), "{end}");
        }
        bytes[..8].copy_from_slice(&f64::NAN.to_le_bytes());
        assert!(parse_bytes(&bytes).is_err());
    }
}
