//! Settings of a job as Python gives them.

use crate::errors::OrRaise;
use linerate::Config;
use pyo3::prelude::*;
use std::collections::BTreeMap;

/// Values by the names that they have in the environment.
pub type Settings = Option<BTreeMap<String, Option<String>>>;

/// The settings of the environment with these changes.
pub fn config_of(py: Python<'_>, settings: Settings) -> PyResult<Config> {
    let settings = settings.unwrap_or_default();
    let changes = settings.iter();
    Config::from_settings(changes.map(|(name, value)| (name.as_str(), value.as_deref())))
        .or_raise(py)
}
