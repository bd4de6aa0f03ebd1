//! The functions of libibverbs. Their contracts are those of its manual pages.

mod device;
mod events;
mod memory;
mod others;
mod pairs;
mod queues;
mod texts;

use crate::network::Port;
use crate::ports::gid_of;
use crate::process::Process;
use crate::settings::Settings;
use crate::waker::Waker;
use libc::c_int;
use linerate_verbs_sys::raw::*;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// The first port of every device.
const PORT: u8 = 1;
/// An open device. C knows the end of its first member.
#[repr(C)]
struct Opened {
    verbs: verbs_context,
    process: Arc<Process>,
    device: u32,
    events: Waker,
    /// Objects that were made of it and live.
    users: AtomicUsize,
    /// When its port comes up again, which is an event then; 0: no such event is due.
    up_at: AtomicU64,
}

/// A protection domain. It begins with the structure that C knows.
#[repr(C)]
struct Domain {
    base: ibv_pd,
    number: u32,
    users: AtomicUsize,
}

/// An address handle. It begins with the structure that C knows.
#[repr(C)]
pub struct Handle {
    base: ibv_ah,
    /// Where it leads.
    pub gid: ibv_gid,
}

/// The state of this process, with its number: a forked child begins anew.
static PROCESS: Mutex<Option<(u32, Arc<Process>)>> = Mutex::new(None);

fn process() -> Result<Arc<Process>, c_int> {
    let mut known = PROCESS.lock().unwrap();
    let own = std::process::id();
    if let Some((_, process)) = known.as_ref().filter(|(id, _)| *id == own) {
        return Ok(process.clone());
    }
    // A child must not drop its parent's objects.
    std::mem::forget(known.take());
    let settings = Settings::from_env().map_err(|why| {
        eprintln!("soft-verbs: {why}");
        libc::EINVAL
    })?;
    let process = Process::new(settings).map_err(|error| {
        eprintln!("soft-verbs: {error}");
        error.raw_os_error().unwrap_or(libc::ENOMEM)
    })?;
    let process = Arc::new(process);
    // SAFETY: a function without arguments.
    unsafe { libc::atexit(leave) };
    *known = Some((own, process.clone()));
    Ok(process)
}

fn set_errno(errno: c_int) {
    // SAFETY: the address of this thread's number.
    unsafe { *libc::__errno_location() = errno };
}

/// An object for C, or null and an error number.
fn given<T>(made: Result<Box<T>, c_int>) -> *mut T {
    match made {
        Ok(object) => Box::into_raw(object),
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

impl Opened {
    /// The device behind a context of C.
    ///
    /// # Safety
    /// [`ibv_open_device`] has given it, and it is open.
    unsafe fn of<'a>(context: *mut ibv_context) -> &'a Opened {
        let distance = std::mem::offset_of!(verbs_context, context);
        // SAFETY: the context is that member of a value that our caller promises.
        unsafe { &*context.byte_sub(distance).cast::<Opened>() }
    }

    fn port(&self) -> Port {
        Port {
            host: self.process.network.own.host,
            device: self.device,
        }
    }

    fn context(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// Where its events are told.
    fn events(&self) -> u64 {
        self.events.socket.name
    }

    /// The GID at this place of its port's table.
    fn gid(&self, index: u32) -> Option<ibv_gid> {
        let moves = self.process.port(self.device).moves.load(Ordering::Relaxed);
        gid_of(self.port(), index, moves)
    }

    /// A device that is gone refuses everything but the destruction of what was made of it.
    fn check(&self) -> Result<(), c_int> {
        match self.process.port(self.device).is_gone() {
            true => Err(libc::EIO),
            false => Ok(()),
        }
    }
}

/// Frees the slot when the process ends.
pub extern "C" fn leave() {
    if let Ok(known) = PROCESS.try_lock()
        && let Some((id, process)) = known.as_ref()
        && *id == std::process::id()
    {
        process.network.leave();
    }
}

/// # Safety
/// The place is writable.
unsafe fn posted<T>(result: Result<(), (c_int, *mut T)>, bad: *mut *mut T) -> c_int {
    match result {
        Ok(()) => 0,
        Err((errno, first)) => {
            // SAFETY: our caller promises it.
            unsafe { *bad = first };
            errno
        }
    }
}
