//! The client library of PMIx: one value per process, exchanged through the launcher's daemons.
//!
//! Source: the PMIx standard 4.1, chapters 3 (structures), 5 (client initialisation), 8 (reserved
//! and application keys). Layouts are those of `pmix_common.h` of 2.x to 5.x: what is used of them
//! has not changed.

use libc::{c_char, c_int, c_void};
use std::ffi::{CStr, CString, OsStr};
use std::os::unix::ffi::OsStrExt;

/// `pmix_proc_t`.
#[repr(C)]
struct Process {
    nspace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`, with room for the largest member of its union that any version has.
#[repr(C)]
struct Value {
    kind: u16,
    data: [*mut c_void; 7],
}

/// `PMIX_STRING`.
const STRING: u16 = 3;
/// `PMIX_GLOBAL`: for ranks of this host and of others.
const GLOBAL: u8 = 3;
/// `PMIX_SUCCESS`.
const SUCCESS: c_int = 0;
/// Where the library is, by soname; Open MPI 4 of some systems has its own beside it.
const NAMES: [&str; 2] = ["libpmix.so.2", "libpmix.so"];

type Init = unsafe extern "C" fn(*mut Process, *mut c_void, usize) -> c_int;
type Put = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Fence = unsafe extern "C" fn(*const Process, usize, *const c_void, usize) -> c_int;
type Get = unsafe extern "C" fn(
    *const Process,
    *const c_char,
    *const c_void,
    usize,
    *mut *mut Value,
) -> c_int;
type Finalize = unsafe extern "C" fn(*const c_void, usize) -> c_int;
type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// A process that has registered with its launcher's daemon. It takes leave when dropped: launchers
/// end the whole job if a registered process exits without.
#[derive(Debug)]
pub struct Pmix {
    own_nspace: [c_char; 256],
    functions: Functions,
}

#[derive(Clone, Copy, Debug)]
struct Functions {
    init: Init,
    put: Put,
    commit: Commit,
    fence: Fence,
    get: Get,
    finalize: Finalize,
    error_string: ErrorString,
}

impl Pmix {
    /// Registers. `library`: where to look instead of under the usual names. The environment that
    /// the launcher has set says which daemon.
    pub fn open(library: Option<&OsStr>) -> Result<Pmix, String> {
        let functions = Functions::load(library)?;
        let mut own = Process {
            nspace: [0; 256],
            rank: 0,
        };
        // SAFETY: `own` is a writable pmix_proc_t, and no attributes are passed.
        let status = unsafe { (functions.init)(&mut own, std::ptr::null_mut(), 0) };
        functions.check(status, "PMIx_Init")?;
        Ok(Pmix {
            own_nspace: own.nspace,
            functions,
        })
    }

    /// What all ranks get: rank 0 gives a text for `key`, the others none. Collective: returns when
    /// all have called it.
    pub fn share(&self, key: &str, own: Option<&str>) -> Result<String, String> {
        let f = &self.functions;
        let key_c = CString::new(key).map_err(|e| e.to_string())?;
        if let Some(text) = own {
            let text = CString::new(text).map_err(|e| e.to_string())?;
            let mut value = Value {
                kind: STRING,
                data: [std::ptr::null_mut(); 7],
            };
            value.data[0] = text.as_ptr().cast_mut().cast();
            // SAFETY: key and value are live and terminated; the library copies them.
            let status = unsafe { (f.put)(GLOBAL, key_c.as_ptr(), &mut value) };
            f.check(status, "PMIx_Put")?;
            // SAFETY: the library is initialised.
            f.check(unsafe { (f.commit)() }, "PMIx_Commit")?;
        }
        // SAFETY: no processes means all of this one's namespace; no attributes.
        let status = unsafe { (f.fence)(std::ptr::null(), 0, std::ptr::null(), 0) };
        f.check(status, "PMIx_Fence")?;
        let source = Process {
            nspace: self.own_nspace,
            rank: 0,
        };
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: the process and the key are live, `value` is writable; no attributes.
        let status = unsafe { (f.get)(&source, key_c.as_ptr(), std::ptr::null(), 0, &mut value) };
        f.check(status, "PMIx_Get")?;
        take_text(value).ok_or_else(|| format!("PMIx_Get gave no text for {key}"))
    }
}

/// The text of a value that the library has allocated; frees both.
fn take_text(value: *mut Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to a value that the library made for us; kind is its first
    // member.
    let kind = unsafe { (*value).kind };
    // SAFETY: as above; of a text the union holds the pointer, of anything else it is not followed.
    let text = unsafe { (&raw const (*value).data).cast::<*mut c_char>().read() };
    let mut copied = None;
    if kind == STRING && !text.is_null() {
        // SAFETY: a PMIX_STRING is terminated.
        copied = Some(
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        );
        // SAFETY: it was allocated with malloc, for us, and nothing points to it any more.
        unsafe { libc::free(text.cast()) };
    }
    // SAFETY: as above.
    unsafe { libc::free(value.cast()) };
    copied
}

impl Drop for Pmix {
    fn drop(&mut self) {
        // SAFETY: initialised once in `open`, and finalised once here; the library counts.
        unsafe { (self.functions.finalize)(std::ptr::null(), 0) };
    }
}

impl Functions {
    fn load(library: Option<&OsStr>) -> Result<Functions, String> {
        let usual = NAMES.map(OsStr::new);
        let names: Vec<&OsStr> = library.map_or(usual.to_vec(), |path| vec![path]);
        let mut complaints = Vec::new();
        for name in names {
            let name = CString::new(name.as_bytes()).map_err(|e| e.to_string())?;
            // SAFETY: the name is terminated. The library's initialisers run, as they would in an
            // MPI program. It is never unloaded, because its threads may outlive us.
            let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if !handle.is_null() {
                return Functions::look_up(handle);
            }
            // SAFETY: dlerror gives null or a terminated text that is valid until the next call of
            // its kind.
            let text = unsafe { libc::dlerror() };
            if !text.is_null() {
                // SAFETY: not null, see above.
                complaints.push(
                    unsafe { CStr::from_ptr(text) }
                        .to_string_lossy()
                        .into_owned(),
                );
            }
        }
        Err(complaints.join("; "))
    }

    fn look_up(handle: *mut c_void) -> Result<Functions, String> {
        let symbol = |name: &CStr| {
            // SAFETY: the handle is an open library's, the name is terminated.
            let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
            (!found.is_null())
                .then_some(found)
                .ok_or_else(|| format!("the library has no {}", name.to_string_lossy()))
        };
        // Each symbol is a function of this type in every version of the standard since 2.
        Ok(Functions {
            // SAFETY: the symbol is a function of this type.
            init: unsafe { std::mem::transmute::<*mut c_void, Init>(symbol(c"PMIx_Init")?) },
            // SAFETY: the symbol is a function of this type.
            put: unsafe { std::mem::transmute::<*mut c_void, Put>(symbol(c"PMIx_Put")?) },
            // SAFETY: the symbol is a function of this type.
            commit: unsafe { std::mem::transmute::<*mut c_void, Commit>(symbol(c"PMIx_Commit")?) },
            // SAFETY: the symbol is a function of this type.
            fence: unsafe { std::mem::transmute::<*mut c_void, Fence>(symbol(c"PMIx_Fence")?) },
            // SAFETY: the symbol is a function of this type.
            get: unsafe { std::mem::transmute::<*mut c_void, Get>(symbol(c"PMIx_Get")?) },
            // SAFETY: the symbol is a function of this type.
            finalize: unsafe {
                std::mem::transmute::<*mut c_void, Finalize>(symbol(c"PMIx_Finalize")?)
            },
            // SAFETY: the symbol is a function of this type.
            error_string: unsafe {
                std::mem::transmute::<*mut c_void, ErrorString>(symbol(c"PMIx_Error_string")?)
            },
        })
    }

    fn check(&self, status: c_int, what: &str) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: it takes any number and gives a constant, terminated text.
        let text = unsafe { CStr::from_ptr((self.error_string)(status)) };
        Err(format!("{what}: {} ({status})", text.to_string_lossy()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let text = Pmix::open(Some(OsStr::new("/nonexistent/libpmix.so"))).unwrap_err();
        assert!(text.contains("/nonexistent/libpmix.so"), "{text}");
        let text = Pmix::open(Some(OsStr::new("libc.so.6"))).unwrap_err();
        assert!(text.contains("PMIx_Init"), "{text}");
    }
}
