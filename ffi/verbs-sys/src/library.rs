//! [`Library`]: libibverbs, looked up at run time, symbol by symbol and version by version.
//!
//! The symbols have versions because their structures have changed. Without a version `dlsym` gives
//! the default one, which a later library may have changed again. The types beside the symbols are
//! compared with the header's at compile time.

use crate::bindings as c;
use crate::error::{Error, Result, last_errno};
use libc::{c_char, c_int, c_uint, c_void, ssize_t};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The environment variable that says which library to use instead of [`NAME`].
pub const VARIABLE: &str = "LINERATE_IBVERBS_LIB";
/// The soname.
pub const NAME: &str = "libibverbs.so.1";
/// Failed destructions that are remembered. Further ones show only in [`Library::live`].
const FAILURES_MAX: usize = 64;

/// Declares the table of functions: those that every library has had since 2008, and those that
/// came later.
macro_rules! functions {
    (required { $($field:ident = $name:ident @ $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
     optional { $($later:ident = $later_name:ident @ $later_version:literal: fn($($later_arg:ty),*) -> $later_ret:ty;)* }) => {
        pub(crate) struct Functions {
            $(pub $field: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $later: Option<unsafe extern "C" fn($($later_arg),*) -> $later_ret>,)*
        }

        // The compiler compares these types with the header's. The constants are never evaluated
        // into code, so nothing is linked.
        $(const _: unsafe extern "C" fn($($arg),*) $(-> $ret)? = c::$name;)*
        $(const _: unsafe extern "C" fn($($later_arg),*) -> $later_ret = c::$later_name;)*

        impl Functions {
            fn look_up(handle: *mut c_void) -> Result<Functions> {
                Ok(Functions {
                    $($field: {
                        let symbol = find(handle, stringify!($name), $version)?;
                        // SAFETY: that version of the symbol is a function of this type; see the
                        // constants above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(symbol) }
                    },)*
                    $($later: find(handle, stringify!($later_name), $later_version).ok().map(|symbol| {
                        // SAFETY: as above.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($later_arg),*) -> $later_ret>(symbol) }
                    }),)*
                })
            }
        }
    };
}

functions! {
    required {
        get_device_list = ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut c::ibv_device;
        free_device_list = ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut c::ibv_device);
        get_device_guid = ibv_get_device_guid @ "IBVERBS_1.1": fn(*mut c::ibv_device) -> u64;
        open_device = ibv_open_device @ "IBVERBS_1.1": fn(*mut c::ibv_device) -> *mut c::ibv_context;
        close_device = ibv_close_device @ "IBVERBS_1.1": fn(*mut c::ibv_context) -> c_int;
        get_async_event = ibv_get_async_event @ "IBVERBS_1.1": fn(*mut c::ibv_context, *mut c::ibv_async_event) -> c_int;
        ack_async_event = ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut c::ibv_async_event);
        query_device = ibv_query_device @ "IBVERBS_1.1": fn(*mut c::ibv_context, *mut c::ibv_device_attr) -> c_int;
        query_port = ibv_query_port @ "IBVERBS_1.1": fn(*mut c::ibv_context, u8, *mut c::_compat_ibv_port_attr) -> c_int;
        query_gid = ibv_query_gid @ "IBVERBS_1.1": fn(*mut c::ibv_context, u8, c_int, *mut c::ibv_gid) -> c_int;
        alloc_pd = ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut c::ibv_context) -> *mut c::ibv_pd;
        dealloc_pd = ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut c::ibv_pd) -> c_int;
        reg_mr = ibv_reg_mr @ "IBVERBS_1.1": fn(*mut c::ibv_pd, *mut c_void, usize, c_int) -> *mut c::ibv_mr;
        dereg_mr = ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut c::ibv_mr) -> c_int;
        create_comp_channel = ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut c::ibv_context) -> *mut c::ibv_comp_channel;
        destroy_comp_channel = ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut c::ibv_comp_channel) -> c_int;
        create_cq = ibv_create_cq @ "IBVERBS_1.1": fn(*mut c::ibv_context, c_int, *mut c_void, *mut c::ibv_comp_channel, c_int) -> *mut c::ibv_cq;
        destroy_cq = ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut c::ibv_cq) -> c_int;
        get_cq_event = ibv_get_cq_event @ "IBVERBS_1.1": fn(*mut c::ibv_comp_channel, *mut *mut c::ibv_cq, *mut *mut c_void) -> c_int;
        ack_cq_events = ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut c::ibv_cq, c_uint);
        create_srq = ibv_create_srq @ "IBVERBS_1.1": fn(*mut c::ibv_pd, *mut c::ibv_srq_init_attr) -> *mut c::ibv_srq;
        modify_srq = ibv_modify_srq @ "IBVERBS_1.1": fn(*mut c::ibv_srq, *mut c::ibv_srq_attr, c_int) -> c_int;
        destroy_srq = ibv_destroy_srq @ "IBVERBS_1.1": fn(*mut c::ibv_srq) -> c_int;
        create_qp = ibv_create_qp @ "IBVERBS_1.1": fn(*mut c::ibv_pd, *mut c::ibv_qp_init_attr) -> *mut c::ibv_qp;
        modify_qp = ibv_modify_qp @ "IBVERBS_1.1": fn(*mut c::ibv_qp, *mut c::ibv_qp_attr, c_int) -> c_int;
        query_qp = ibv_query_qp @ "IBVERBS_1.1": fn(*mut c::ibv_qp, *mut c::ibv_qp_attr, c_int, *mut c::ibv_qp_init_attr) -> c_int;
        destroy_qp = ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut c::ibv_qp) -> c_int;
        create_ah = ibv_create_ah @ "IBVERBS_1.1": fn(*mut c::ibv_pd, *mut c::ibv_ah_attr) -> *mut c::ibv_ah;
        destroy_ah = ibv_destroy_ah @ "IBVERBS_1.1": fn(*mut c::ibv_ah) -> c_int;
        fork_init = ibv_fork_init @ "IBVERBS_1.1": fn() -> c_int;
        wc_status_str = ibv_wc_status_str @ "IBVERBS_1.1": fn(c::ibv_wc_status) -> *const c_char;
        event_type_str = ibv_event_type_str @ "IBVERBS_1.1": fn(c::ibv_event_type) -> *const c_char;
        port_state_str = ibv_port_state_str @ "IBVERBS_1.1": fn(c::ibv_port_state) -> *const c_char;
    }
    optional {
        reg_mr_iova2 = ibv_reg_mr_iova2 @ "IBVERBS_1.8": fn(*mut c::ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut c::ibv_mr;
        is_fork_initialized = ibv_is_fork_initialized @ "IBVERBS_1.13": fn() -> c::ibv_fork_status;
        query_gid_ex = _ibv_query_gid_ex @ "IBVERBS_1.11": fn(*mut c::ibv_context, u32, u32, *mut c::ibv_gid_entry, u32, usize) -> c_int;
        query_gid_table = _ibv_query_gid_table @ "IBVERBS_1.11": fn(*mut c::ibv_context, *mut c::ibv_gid_entry, usize, u32, usize) -> ssize_t;
        reg_dmabuf_mr = ibv_reg_dmabuf_mr @ "IBVERBS_1.12": fn(*mut c::ibv_pd, u64, usize, u64, c_int, c_int) -> *mut c::ibv_mr;
    }
}

/// Kinds of objects, as [`Library::live`] counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Open devices.
    Context,
    /// Protection domains.
    Pd,
    /// Memory regions.
    Mr,
    /// Completion channels.
    Channel,
    /// Completion queues.
    CompletionQueue,
    /// Shared receive queues.
    SharedReceiveQueue,
    /// Queue pairs.
    QueuePair,
    /// Address handles.
    AddressHandle,
}

const KINDS: usize = Kind::AddressHandle as usize + 1;

/// libibverbs, loaded. It is never unloaded, because its providers may have threads.
pub struct Library {
    pub(crate) functions: Functions,
    name: String,
    /// The process that opened it: a forked child has copies of the objects here, and destroying
    /// them would destroy its parent's.
    process: libc::pid_t,
    live: [AtomicUsize; KINDS],
    failures: Mutex<Vec<String>>,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("name", &self.name).finish()
    }
}

impl Library {
    /// The library that [`VARIABLE`] names, or else the one that the loader finds as [`NAME`]. If
    /// the variable names no usable library, no other is tried.
    pub fn open() -> Result<Arc<Library>> {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        Library::open_as(named.as_deref())
    }

    /// As [`open`](Library::open), with the variable's value as an argument.
    pub fn open_as(named: Option<&OsStr>) -> Result<Arc<Library>> {
        let name = named.map_or_else(|| OsString::from(NAME), OsStr::to_owned);
        let shown = name.to_string_lossy().into_owned();
        let unavailable = |why: String| {
            let how = match named {
                Some(_) => format!("it was named by {VARIABLE}"),
                None => format!(
                    "Debian: apt-get install libibverbs1 ibverbs-providers; {VARIABLE} names another file"
                ),
            };
            Error::Unavailable(format!("libibverbs as {shown}: {why} ({how})"))
        };
        let path = CString::new(name.as_bytes()).map_err(|e| unavailable(e.to_string()))?;
        // SAFETY: the name is terminated. The library's initialisers run, as they would in any RDMA
        // program.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(unavailable(loader_error()));
        }
        let functions = Functions::look_up(handle).map_err(|e| unavailable(e.to_string()))?;
        Ok(Arc::new(Library {
            functions,
            name: shown,
            // SAFETY: takes nothing and cannot fail.
            process: unsafe { libc::getpid() },
            live: Default::default(),
            failures: Mutex::default(),
        }))
    }

    /// What it was opened as.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a forked child gets a copy of registered memory.
    pub fn is_copied_at_fork(&self) -> bool {
        let status = self.functions.is_fork_initialized;
        // SAFETY: takes nothing. Asking opens a netlink socket and closes it.
        status.is_some_and(|status| unsafe { status() } == c::ibv_fork_status::IBV_FORK_UNNEEDED)
    }

    /// Registered memory stays the parent's after fork(), whatever the child does. To be called
    /// before the first device is opened. The child gets a copy where the kernel makes one at fork
    /// (5.12 and later); else such pages are missing in the child, with all that lies in them.
    pub fn fork_init(&self) -> Result<()> {
        // ibv_fork_init of libibverbs 44 does not ask, and takes the pages from the child although
        // the kernel would copy them.
        if self.is_copied_at_fork() {
            return Ok(());
        }
        // SAFETY: takes nothing; calling it twice is allowed.
        match unsafe { (self.functions.fork_init)() } {
            0 => Ok(()),
            errno => Err(Error::refused("ibv_fork_init", errno)),
        }
    }

    /// What a completion's status is called.
    pub fn status_text(&self, status: c::ibv_wc_status) -> String {
        // SAFETY: it takes any number and gives a constant text.
        text_of(unsafe { (self.functions.wc_status_str)(status) })
    }

    /// What an asynchronous event is called.
    pub fn event_text(&self, event: c::ibv_event_type) -> String {
        // SAFETY: as above.
        text_of(unsafe { (self.functions.event_type_str)(event) })
    }

    /// What a port's state is called.
    pub fn port_state_text(&self, state: c::ibv_port_state) -> String {
        // SAFETY: as above.
        text_of(unsafe { (self.functions.port_state_str)(state) })
    }

    /// Objects of this kind that live in this process.
    pub fn live(&self, kind: Kind) -> usize {
        // Relaxed: a count to be looked at, which publishes nothing.
        self.live[kind as usize].load(Ordering::Relaxed)
    }

    /// Destructions that failed since the last call, each with its reason. They are kept because
    /// nobody can act on one where it happens.
    pub fn take_failures(&self) -> Vec<String> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut failures)
    }

    pub(crate) fn note_made(&self, kind: Kind) {
        self.live[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Destroys by `destroy`, which gives an error number, unless this is a forked child.
    pub(crate) fn destroy(&self, kind: Kind, name: &str, destroy: impl FnOnce() -> c_int) {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::getpid() } != self.process {
            return;
        }
        // Some calls give the number, some give -1 and leave it in errno.
        let errno = match destroy() {
            0 => {
                self.live[kind as usize].fetch_sub(1, Ordering::Relaxed);
                return;
            }
            -1 => last_errno(),
            number => number,
        };
        let failure = Error::refused(format!("destroying a {kind:?} of {name}"), errno).to_string();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < FAILURES_MAX {
            failures.push(failure);
        }
    }
}

fn find(handle: *mut c_void, name: &str, version: &str) -> Result<*mut c_void> {
    let to_c = |text: &str| CString::new(text).expect("names of symbols have no NUL");
    let (name_c, version_c) = (to_c(name), to_c(version));
    // SAFETY: an open library's handle and two terminated texts.
    let symbol = unsafe { libc::dlvsym(handle, name_c.as_ptr(), version_c.as_ptr()) };
    if symbol.is_null() {
        return Err(Error::Unavailable(format!(
            "it has no {name} of version {version}"
        )));
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

/// A constant text of the library, or one that nobody changes meanwhile.
fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return "unknown".to_owned();
    }
    // SAFETY: not null, and the callers pass terminated texts.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
