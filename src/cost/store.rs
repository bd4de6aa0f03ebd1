//! [`Models`] as text, for a file that several hosts may share, and as bytes, for the other ranks. Pure.
//!
//! ```text
//! [AMD EPYC; 2 cores; 0.1.0]
//! core cache 1048576
//! host cache 33554432
//! apart call 150.2
//! ...
//! ```
//!
//! A section for each host, named by what prices depend on: CPU model, cores, version of this library. Every line is
//! needed, every price is a finite number from 0 on; a section with anything else is an error, never a guess.

use super::{Caches, Model, Models, TERMS};
use crate::error::{Error, Result};

/// Bytes of [`emit_bytes`].
pub const MODELS_BYTES: usize = (2 * TERMS + 2) * size_of::<f64>();

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
    text
}

/// The section of `key`; `None`: there is none.
pub fn parse(text: &str, key: &str) -> Result<Option<Models>> {
    let mut lines = text.lines().skip_while(|line| section(line) != Some(key));
    if lines.next().is_none() {
        return Ok(None);
    }
    let lines: Vec<&str> = lines
        .take_while(|line| section(line).is_none())
        .filter(|line| !line.trim().is_empty())
        .collect();
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
    };
    let known = 2 * TERMS + 2;
    if lines.len() != known {
        return Err(Error::invalid(format!(
            "section [{key}] has {} lines, {known} are known",
            lines.len()
        )));
    }
    check(&models).map(Some)
}

/// The prices as bytes.
pub fn emit_bytes(models: &Models) -> Vec<u8> {
    let all = models.apart.0.iter().chain(&models.crowded.0);
    all.chain([&models.caches.core_bytes, &models.caches.host_bytes])
        .flat_map(|price| price.to_le_bytes())
        .collect()
}

/// Checks, and takes the prices and what follows apart.
pub fn parse_bytes(bytes: &[u8]) -> Result<(Models, &[u8])> {
    let Some((own, rest)) = bytes.split_first_chunk::<MODELS_BYTES>() else {
        return Err(Error::Malformed(format!(
            "prices of {} bytes, {MODELS_BYTES} are needed",
            bytes.len()
        )));
    };
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
    };
    check(&models)
        .map(|models| (models, rest))
        .map_err(|e| Error::Malformed(format!("prices of another rank: {e}")))
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

fn check(models: &Models) -> Result<Models> {
    let is_price = |price: &f64| (0.0..=PRICE_MAX).contains(price);
    let mut prices = models.apart.0.iter().chain(&models.crowded.0);
    let sizes = [models.caches.core_bytes, models.caches.host_bytes];
    let is_right =
        prices.all(is_price) && sizes.iter().all(|bytes| (0.0..=BYTES_MAX).contains(bytes));
    is_right
        .then_some(*models)
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
        ] {
            assert!(good.contains(from));
            let text = parse(&good.replace(from, to), "a").unwrap_err().to_string();
            assert!(text.contains(expected), "{text}");
        }
        // Cut off anywhere, it is whole, absent or refused; the last line may lose digits and still be a number.
        for end in 0..good.trim_end().rfind(' ').unwrap() {
            assert!(!matches!(parse(&good[..end], "a"), Ok(Some(_))), "{end}");
        }
    }

    #[test]
    fn bytes_survive_and_nonsense_is_refused() {
        let mut bytes = emit_bytes(&models(7.0));
        assert_eq!(bytes.len(), MODELS_BYTES);
        bytes.extend(b"rest");
        assert_eq!(parse_bytes(&bytes).unwrap(), (models(7.0), &b"rest"[..]));
        assert!(parse_bytes(&bytes[..MODELS_BYTES - 1]).is_err());
        bytes[..8].copy_from_slice(&f64::NAN.to_le_bytes());
        assert!(parse_bytes(&bytes).is_err());
    }
}
