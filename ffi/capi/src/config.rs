//! Settings by name.

use crate::objects::{CONFIG, Object, insert, lock};
use crate::pointers::{check_place, text, write};
use crate::status::{Fault, LINERATE_DONE, enter};
use linerate::Config;
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::sync::Mutex;

/// A handle of settings.
#[allow(non_camel_case_types)]
pub type linerate_config = u64;

/// Settings by name; `None`: as if the environment did not have it.
pub(crate) type Settings = BTreeMap<String, Option<String>>;

/// The settings of a handle, or of the environment if it is 0.
pub(crate) fn config_of(handle: linerate_config) -> Result<Config, Fault> {
    if handle == 0 {
        return Ok(Config::from_env()?);
    }
    let config = CONFIG.get(handle)?;
    let settings = lock(CONFIG_WORD, &config)?;
    let changes = settings.iter();
    Ok(Config::from_settings(
        changes.map(|(name, value)| (name.as_str(), value.as_deref())),
    )?)
}

const CONFIG_WORD: &str = "config";

/// Makes settings, to be changed by linerate_config_set(). What is not set is as the environment
/// (LINERATE_...) says when a communicator is made with them.
///
/// Threads: any. The caller frees the handle (linerate_config_free()); communicators keep a copy.
/// After fork: the child may make, use and free settings.
///
/// # Safety
/// `config` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_config_create(config: *mut linerate_config) -> i32 {
    enter(|| {
        check_place("config", config)?;
        let handle = insert(Object::Config(Mutex::default()))?;
        // SAFETY: our caller promises it.
        unsafe { write("config", config, handle)? };
        Ok(LINERATE_DONE)
    })
}

/// Sets a value by the name that it has in the environment, such as ("LINERATE_TCP_RAILS", "4").
/// A value of NULL means the default, whatever the environment says. The text of the error of a
/// wrong name has all names; that of a wrong value has its range.
///
/// Threads: one at a time for one handle. Both texts are copied. After fork: as before.
///
/// # Safety
/// `name` is a string, `value` a string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn linerate_config_set(
    config: linerate_config,
    name: *const c_char,
    value: *const c_char,
) -> i32 {
    enter(|| {
        let settings = CONFIG.get(config)?;
        // SAFETY: our caller promises it.
        let name = unsafe { text("name", name)? };
        let value = if value.is_null() {
            None
        } else {
            // SAFETY: as above.
            Some(unsafe { text("value", value)? })
        };
        Config::from_settings([(name, value)])?;
        lock(CONFIG_WORD, &settings)?.insert(name.into(), value.map(str::to_owned));
        Ok(LINERATE_DONE)
    })
}

/// Frees settings. 0 is allowed and does nothing. Threads: any. After fork: as before.
#[unsafe(no_mangle)]
pub extern "C" fn linerate_config_free(config: linerate_config) -> i32 {
    enter(|| CONFIG.free(config).map(|()| LINERATE_DONE))
}
