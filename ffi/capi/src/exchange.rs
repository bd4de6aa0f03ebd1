//! An exchange of small values that C carries.

use crate::pointers::Sized64;
use crate::status::{Fault, invalid};
use linerate::options::Exchange;
use std::ffi::{CString, c_char, c_void};
use std::time::Duration;

/// No value is longer.
const VALUE_BYTES_MAX: usize = 8192;

/// How processes that know each other exchange small values by key: keys have at most 250 bytes,
/// values at most 8192. The callbacks run on the thread that calls the function that is given the
/// struct, before it returns, and never two at once for one call. They must not end by longjmp or
/// by a C++ exception, which ends the process, and must not call functions of this header.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct linerate_exchange {
    /// sizeof(linerate_exchange).
    pub size: u64,
    /// Stores the value of a key for all ranks, instead of one that is there, within `limit_ns`
    /// nanoseconds. Returns 0, or any other number as an error that the ranks are told.
    pub put: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *const c_void,
            bytes: u64,
            limit_ns: u64,
        ) -> i32,
    >,
    /// The latest value of a key: writes it to `value`, which has `capacity` bytes, and its length
    /// to `bytes`, and returns 0. Waits until there is one, at most `limit_ns` nanoseconds, and
    /// returns 1 if there is none then. Any other number is an error that the ranks are told.
    pub get: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            key: *const c_char,
            value: *mut c_void,
            capacity: u64,
            bytes: *mut u64,
            limit_ns: u64,
        ) -> i32,
    >,
    /// Given to both.
    pub user: *mut c_void,
}

// SAFETY: the size comes first; null is a function that is not given, and any other address is a
// function by the promise of its caller.
unsafe impl Sized64 for linerate_exchange {
    const NAME: &'static str = "linerate_exchange";
}

type Put = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_void, u64, u64) -> i32;
type Get = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_void, u64, *mut u64, u64) -> i32;
type Fallible<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Both callbacks, which are there.
pub(crate) struct Callbacks {
    put: Put,
    get: Get,
    user: *mut c_void,
}

impl Callbacks {
    pub(crate) fn new(exchange: linerate_exchange) -> Result<Callbacks, Fault> {
        let (Some(put), Some(get)) = (exchange.put, exchange.get) else {
            return Err(invalid("an exchange needs both callbacks: put and get"));
        };
        Ok(Callbacks {
            put,
            get,
            user: exchange.user,
        })
    }
}

fn nanoseconds(limit: Duration) -> u64 {
    u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)
}

impl Exchange for Callbacks {
    fn put(&self, key: &str, value: &[u8], limit: Duration) -> Fallible<()> {
        let (name, length) = (CString::new(key)?, value.len() as u64);
        let limit_ns = nanoseconds(limit);
        let bytes = value.as_ptr().cast();
        // SAFETY: the caller of the function that was given the callbacks promises that they are
        // functions that keep what `linerate_exchange` says; key and value live until it returns.
        match unsafe { (self.put)(self.user, name.as_ptr(), bytes, length, limit_ns) } {
            0 => Ok(()),
            status => Err(format!("the callback put returned {status}").into()),
        }
    }

    fn get(&self, key: &str, limit: Duration) -> Fallible<Option<Vec<u8>>> {
        let name = CString::new(key)?;
        let (mut value, mut bytes) = (vec![0u8; VALUE_BYTES_MAX], 0u64);
        let (place, capacity) = (value.as_mut_ptr().cast(), VALUE_BYTES_MAX as u64);
        let limit_ns = nanoseconds(limit);
        // SAFETY: as in `put`; the callback writes at most `capacity` bytes.
        let status = unsafe {
            (self.get)(
                self.user,
                name.as_ptr(),
                place,
                capacity,
                &mut bytes,
                limit_ns,
            )
        };
        match status {
            0 if bytes <= capacity => {
                value.truncate(bytes as usize);
                Ok(Some(value))
            }
            0 => Err(
                format!("the callback get says that it wrote {bytes} of {capacity} bytes").into(),
            ),
            1 => Ok(None),
            status => Err(format!("the callback get returned {status}").into()),
        }
    }
}
