//! [`Field`]: what a number among the settings may be, said once for the variable that sets it and
//! for the struct that holds it.

use crate::error::{Error, Result};
use std::time::Duration;

/// A number of a struct of settings.
pub(super) struct Field {
    /// The path of the field in a [`super::Config`].
    pub name: &'static str,
    /// The variable that sets it.
    pub variable: &'static str,
    pub least: u64,
    pub most: u64,
    /// The value is a multiple of this.
    pub unit: u64,
}

impl Field {
    pub const fn new(
        name: &'static str,
        variable: &'static str,
        (least, most): (u64, u64),
    ) -> Field {
        Field {
            name,
            variable,
            least,
            most,
            unit: 1,
        }
    }

    /// An error if the value is not allowed.
    pub fn check(&self, value: u64) -> Result<()> {
        match (self.least..=self.most).contains(&value) && value.is_multiple_of(self.unit) {
            true => Ok(()),
            false => Err(self.refuse(&value.to_string())),
        }
    }

    /// As [`Field::check`]; a value that is not set is allowed.
    pub fn check_some<T: Copy + TryInto<u64>>(&self, value: Option<T>) -> Result<()> {
        match value {
            Some(value) => self.check(value.try_into().unwrap_or(u64::MAX)),
            None => Ok(()),
        }
    }

    /// Parses a whole number, and checks it.
    pub fn parse(&self, text: &str) -> Result<u64> {
        let value = text.parse().map_err(|_| self.refuse(text))?;
        self.check(value).map(|()| value)
    }

    /// As [`Field::parse`], with an optional K, M or G.
    pub fn parse_size(&self, text: &str) -> Result<u64> {
        let value = parse_size(text);
        let value = value.map_err(|e| Error::invalid(format!("{}: {e}", self.variable)))?;
        self.check(value).map(|()| value)
    }

    fn refuse(&self, shown: &str) -> Error {
        let unit = match self.unit {
            1 => String::new(),
            unit => format!(", a multiple of {unit}"),
        };
        Error::invalid(format!(
            "{} ({}) is {shown}: {} to {}{unit}",
            self.name, self.variable, self.least, self.most
        ))
    }
}

/// Looks a variable up.
pub(super) type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Which of these words a variable says; `None` where it is not set or empty.
pub(super) fn parse_choice<T: Copy>(
    lookup: Lookup<'_>,
    variable: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>> {
    let Some(text) = lookup(variable).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    if let Some((_, value)) = choices.iter().find(|(word, _)| *word == text) {
        return Ok(Some(*value));
    }
    let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
    let (last, others) = words.split_last().expect("there are choices");
    let others = others.join(", ");
    Err(Error::invalid(format!(
        "{variable} is '{text}': {others} or {last}"
    )))
}

/// Longest timeout: three decades, so that no sum of times overflows.
const TIMEOUT_MAX: Duration = Duration::from_secs(1_000_000_000);

/// An error unless this timeout is allowed.
pub(super) fn check_timeout(name: &str, timeout: Duration) -> Result<()> {
    match timeout > Duration::ZERO && timeout <= TIMEOUT_MAX {
        true => Ok(()),
        false => Err(refuse_timeout(name, &format!("{timeout:?}"))),
    }
}

pub(super) fn refuse_timeout(name: &str, shown: &str) -> Error {
    Error::invalid(format!(
        "{name} is {shown}: seconds above 0 and at most 1e9, such as 2.5"
    ))
}

/// A size with an optional binary suffix K, M or G.
pub fn parse_size(text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let digits = trimmed.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G', 'i', 'B', 'b']);
    let shift = match trimmed[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 0,
        "K" | "KB" | "KIB" => 10,
        "M" | "MB" | "MIB" => 20,
        "G" | "GB" | "GIB" => 30,
        _ => return Err(Error::invalid(size_text(text))),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|value| value.checked_mul(1 << shift))
        .ok_or_else(|| Error::invalid(size_text(text)))
}

fn size_text(text: &str) -> String {
    format!("'{text}' is no size: a whole number with an optional K, M or G (binary), such as 64K")
}
