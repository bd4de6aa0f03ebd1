//! [`Library`]: libfabric, looked up at run time, symbol by symbol and version by version.
//!
//! The symbols have versions because their structures have changed. Without a version `dlsym` gives
//! the default one, whose structures are longer in later libraries. The versions asked for here are
//! those of libfabric 1.9 to 1.17, which later libraries still have, and the types beside the
//! symbols are compared with the header's at compile time.

use crate::bindings as c;
use crate::environment::{Added, set_missing};
use crate::error::{Attempt, Error, Result, Unusable, advice_for};
use crate::signals::keeping_handlers;
use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The environment variable that says which library to use instead of [`NAMES`].
pub const VARIABLE: &str = "LINERATE_FABRIC_LIB";
/// Where libfabric is looked for, in this order: Amazon's installer puts it where the loader does
/// not look, and a distribution's own is usually too old for EFA.
pub const NAMES: [&str; 3] = [
    "/opt/amazon/efa/lib64/libfabric.so.1",
    "/opt/amazon/efa/lib/libfabric.so.1",
    "libfabric.so.1",
];
/// Failed closings that are remembered. Further ones show only in [`Library::live`].
const FAILURES_MAX: usize = 64;

/// A version of libfabric, or of its interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
}

impl Version {
    /// The oldest library that is taken: the first whose structures are those of the bindings.
    pub const MIN: Version = Version { major: 1, minor: 9 };
    /// The newest interface that is asked for. What 2.0 has changed in the meaning of requests is
    /// not used here; libraries of version 2 still know this one.
    pub const MAX: Version = Version {
        major: 1,
        minor: 22,
    };
    /// The first library whose regions can be dma-bufs.
    pub const DMABUF: Version = Version {
        major: 1,
        minor: 20,
    };
    /// The first library that can be used with EFA here.
    pub const EFA: Version = Version {
        major: 1,
        minor: 22,
    };

    fn from_raw(raw: u32) -> Version {
        Version {
            major: (raw >> 16) as u16,
            minor: (raw & 0xffff) as u16,
        }
    }

    pub(crate) fn to_raw(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Declares the table of functions.
macro_rules! functions {
    ($($field:ident = $name:ident @ $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        pub(crate) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
        }

        // The compiler compares these types with the header's. The constants are never evaluated
        // into code, so nothing is linked.
        $(const _: unsafe extern "C" fn($($arg),*) $(-> $ret)? = c::$name;)*

        impl Functions {
            fn look_up(handle: *mut c_void) -> std::result::Result<Functions, Unusable> {
                Ok(Functions {
                    $($field: {
                        let symbol = find(handle, stringify!($name), $version)?;
                        // SAFETY: that version of the symbol is a function of this type; see the
                        // constants above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(symbol) }
                    },)*
                })
            }
        }
    };
}

// `version` comes first: a library that lacks it is no libfabric.
functions! {
    version = fi_version @ "FABRIC_1.0": fn() -> u32;
    strerror = fi_strerror @ "FABRIC_1.0": fn(c_int) -> *const c_char;
    getinfo = fi_getinfo @ "FABRIC_1.3": fn(u32, *const c_char, *const c_char, u64, *const c::fi_info, *mut *mut c::fi_info) -> c_int;
    freeinfo = fi_freeinfo @ "FABRIC_1.3": fn(*mut c::fi_info);
    dupinfo = fi_dupinfo @ "FABRIC_1.3": fn(*const c::fi_info) -> *mut c::fi_info;
    fabric = fi_fabric @ "FABRIC_1.1": fn(*mut c::fi_fabric_attr, *mut *mut c::fid_fabric, *mut c_void) -> c_int;
}

/// Kinds of objects, as [`Library::live`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open fabrics.
    Fabric,
    /// Open domains.
    Domain,
    /// Memory regions.
    Mr,
    /// Completion queues.
    CompletionQueue,
    /// Address vectors.
    AddressVector,
    /// Endpoints.
    Endpoint,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] = [
        Kind::Fabric,
        Kind::Domain,
        Kind::Mr,
        Kind::CompletionQueue,
        Kind::AddressVector,
        Kind::Endpoint,
    ];
}

/// libfabric, loaded. It is never unloaded, because its providers may have threads.
pub struct Library {
    pub(crate) functions: Functions,
    name: String,
    version: Version,
    /// The process that opened it: a forked child has copies of the objects here, and closing them
    /// would close its parent's.
    process: libc::pid_t,
    live: [AtomicUsize; Kind::ALL.len()],
    failures: Mutex<Vec<String>>,
    /// Settings in the environment that the first query makes it read.
    settings: Mutex<Option<Added>>,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library")
            .field("name", &self.name)
            .field("version", &self.version)
            .finish()
    }
}

impl Library {
    /// The library that [`VARIABLE`] names, or else the first of [`NAMES`] that can be used. If the
    /// variable names no usable library, no other is tried.
    ///
    /// `endpoints_max` is how many endpoints this program will exchange data with, at most. Some
    /// providers size their queues by it.
    ///
    /// Two settings that the library reads with the first query stand in the environment until
    /// then, unless that has them:
    /// `FI_UNIVERSE_SIZE` is `endpoints_max`, and `FI_EFA_FORK_SAFE` is 1, so that memory which EFA
    /// reads stays the parent's after fork(). Other threads may read the environment meanwhile. A
    /// variable that one of them sets at the same moment can get lost, so call this early. A
    /// library that is loaded already in this process keeps the settings that it started with.
    ///
    /// Signal handlers are what they were before, although providers replace some.
    pub fn open(endpoints_max: usize) -> Result<Arc<Library>> {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        Library::open_as(named.as_deref(), endpoints_max)
    }

    /// As [`open`](Library::open), with the variable's value as an argument.
    pub fn open_as(named: Option<&OsStr>, endpoints_max: usize) -> Result<Arc<Library>> {
        let added = set_missing(&[
            ("FI_UNIVERSE_SIZE", &endpoints_max.max(1).to_string()),
            ("FI_EFA_FORK_SAFE", "1"),
        ]);
        let names = match named {
            Some(name) => vec![name.to_owned()],
            None => NAMES.map(OsString::from).to_vec(),
        };
        let mut attempts = Vec::new();
        for name in names {
            let path = name.to_string_lossy().into_owned();
            match load(&name) {
                Ok((functions, version)) => {
                    return Ok(Arc::new(Library {
                        functions,
                        name: path,
                        version,
                        // SAFETY: takes nothing and cannot fail.
                        process: unsafe { libc::getpid() },
                        live: Default::default(),
                        failures: Mutex::default(),
                        settings: Mutex::new(added),
                    }));
                }
                Err(why) => attempts.push(Attempt { path, why }),
            }
        }
        added.into_iter().for_each(Added::take_out);
        let advice = match named {
            Some(_) => format!(
                "it was named by {VARIABLE}: name another file, or unset it, and EFA's folder and the loader's are looked through"
            ),
            None => format!(
                "AWS: install the EFA software; Debian: apt-get install libfabric1; {VARIABLE} names another file"
            ),
        };
        Err(Error::Unavailable { attempts, advice })
    }

    /// What it was opened as.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The interface that is asked of it.
    pub(crate) fn interface(&self) -> Version {
        self.version.min(Version::MAX)
    }

    /// What an error number of this library is called.
    pub fn error_text(&self, code: i32) -> String {
        // SAFETY: it takes any number and gives a constant text.
        text_of(unsafe { (self.functions.strerror)(code) })
    }

    /// The refusal with this error number, which may be negative, with what is known about it.
    pub(crate) fn refused(&self, what: impl Into<String>, code: i32) -> Error {
        let code = code.saturating_abs();
        Error::Refused {
            what: what.into(),
            code,
            text: self.error_text(code),
            advice: advice_for(code),
        }
    }

    /// An object of this kind, made by `make`, which gives an error number.
    pub(crate) fn made<T>(
        &self,
        kind: Kind,
        what: impl FnOnce() -> String,
        make: impl FnOnce(*mut *mut T) -> c_int,
    ) -> Result<std::ptr::NonNull<T>> {
        let mut raw = std::ptr::null_mut();
        let status = make(&mut raw);
        if status != 0 {
            return Err(self.refused(what(), status));
        }
        let made = std::ptr::NonNull::new(raw).ok_or_else(|| self.refused(what(), libc::EIO))?;
        self.live[kind as usize].fetch_add(1, Ordering::Relaxed);
        Ok(made)
    }

    /// It has read the settings.
    pub(crate) fn end_settings(&self) {
        let mut settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        settings.take().into_iter().for_each(Added::take_out);
    }

    /// Objects of this kind that live in this process.
    pub fn live(&self, kind: Kind) -> usize {
        // Relaxed: a count to be looked at, which publishes nothing.
        self.live[kind as usize].load(Ordering::Relaxed)
    }

    /// Closings that failed since the last call, each with its reason. They are kept because nobody
    /// can act on one where it happens.
    pub fn take_failures(&self) -> Vec<String> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut failures)
    }

    /// Closes an object, unless this is a forked child. Gives whether the library still has it.
    ///
    /// # Safety
    /// `fid` begins an open object of this library that nobody uses any more, and that is not
    /// closed again.
    pub(crate) unsafe fn close(&self, kind: Kind, name: &str, fid: *mut c::fid) -> bool {
        if self.is_forked() {
            return false;
        }
        // SAFETY: an open object has its table, and every table has `close`.
        let close = unsafe { (*(*fid).ops).close }.expect("every object has close");
        // SAFETY: the caller gives it up.
        let status = unsafe { close(fid) };
        if status == 0 {
            self.live[kind as usize].fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.note_failure(self.refused(format!("closing a {kind:?} of {name}"), status));
        true
    }

    pub(crate) fn note_failure(&self, failure: Error) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_MAX {
            failures.push(failure.to_string());
        }
    }

    /// Whether this process is a child of the one that opened the library.
    pub(crate) fn is_forked(&self) -> bool {
        // SAFETY: takes nothing and cannot fail.
        self.process != unsafe { libc::getpid() }
    }
}

/// Loads a library and looks its functions up. It stays loaded even if it cannot be used: its
/// initialisers have run, and may have started threads.
fn load(name: &OsStr) -> std::result::Result<(Functions, Version), Unusable> {
    let path = CString::new(name.as_bytes()).map_err(|e| Unusable::NotLoaded(e.to_string()))?;
    // SAFETY: the name is terminated. The library's initialisers run, as they would in any program
    // that uses it.
    let handle = keeping_handlers(|| unsafe {
        libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL)
    });
    if handle.is_null() {
        return Err(Unusable::NotLoaded(loader_error()));
    }
    let functions = Functions::look_up(handle).map_err(|why| match why {
        Unusable::NoSymbol {
            name: "fi_version", ..
        } => Unusable::NotLibfabric,
        why => why,
    })?;
    // SAFETY: takes nothing.
    let version = Version::from_raw(unsafe { (functions.version)() });
    if version < Version::MIN {
        return Err(Unusable::TooOld(version));
    }
    Ok((functions, version))
}

fn find(
    handle: *mut c_void,
    name: &'static str,
    version: &'static str,
) -> std::result::Result<*mut c_void, Unusable> {
    let to_c = |text: &str| CString::new(text).expect("names of symbols have no NUL");
    let (name_c, version_c) = (to_c(name), to_c(version));
    // SAFETY: an open library's handle and two terminated texts.
    let symbol = unsafe { libc::dlvsym(handle, name_c.as_ptr(), version_c.as_ptr()) };
    if symbol.is_null() {
        return Err(Unusable::NoSymbol { name, version });
    }
    Ok(symbol)
}

fn loader_error() -> String {
    // SAFETY: dlerror gives null or a text that is valid until this thread's next call of its kind.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    text_of(text)
}

/// A terminated text that nobody changes meanwhile; empty if there is none.
pub(crate) fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the callers pass terminated texts.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
