//! [`Fabric`] and [`Domain`]: a network, and a device or process of it that objects are made in.

use crate::bindings as c;
use crate::error::{Error, Result};
use crate::info::Info;
use crate::library::{Kind, Library, Version};
use crate::memory::Owner;
use crate::raw::FI_MR_VIRT_ADDR;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A network.
pub struct Fabric {
    info: Info,
    raw: NonNull<c::fid_fabric>,
}

// SAFETY: objects of the library belong to the process, not to a thread.
unsafe impl Send for Fabric {}
// SAFETY: calls of a fabric may come from several threads, whatever the domains' threading is.
unsafe impl Sync for Fabric {}

impl Fabric {
    /// Opens the fabric of `info`.
    pub fn open(info: &Info) -> Result<Arc<Fabric>> {
        let library = info.library();
        let what = || {
            format!(
                "opening fabric {} of {}",
                info.fabric_name(),
                info.provider_name()
            )
        };
        let raw = library.made(Kind::Fabric, what, |raw| {
            // SAFETY: the attributes came from the library, and `raw` is writable.
            unsafe { (library.functions.fabric)(info.fabric_ptr(), raw, std::ptr::null_mut()) }
        })?;
        let info = info.clone();
        Ok(Arc::new(Fabric { info, raw }))
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fid_fabric {
        self.raw.as_ptr()
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        let name = self.info.provider_name();
        // SAFETY: opened once, closed once; its domains held it and are gone.
        unsafe {
            self.info
                .library()
                .close(Kind::Fabric, &name, self.raw.as_ptr().cast())
        };
    }
}

/// A device of a fabric, or what a provider has instead: regions, queues and endpoints of one
/// domain work together.
pub struct Domain {
    fabric: Arc<Fabric>,
    info: Info,
    raw: NonNull<c::fid_domain>,
    name: String,
    /// Whether a device checks every access of peers against the regions of that moment.
    is_checked_by_device: bool,
    /// Held during calls of its objects, where the provider asks for that.
    calls: Option<Mutex<()>>,
    next_key: AtomicU64,
    retired: Mutex<Retired>,
}

/// Memory of regions that are gone, which the provider may still write; see [`Domain::retire`].
#[derive(Default)]
struct Retired {
    endpoints: usize,
    owners: Vec<(usize, Owner)>,
}

// SAFETY: objects of the library belong to the process, not to a thread.
unsafe impl Send for Domain {}
// SAFETY: the provider allows calls from several threads at once (FI_THREAD_SAFE), or `calls` is
// held during each.
unsafe impl Sync for Domain {}

impl Domain {
    /// Opens the domain of `info`, which belongs to `fabric`.
    pub fn open(fabric: &Arc<Fabric>, info: &Info) -> Result<Arc<Domain>> {
        let provider = info.provider_name();
        let name = format!("{} of {provider}", info.domain_name());
        let own = &fabric.info;
        if !Arc::ptr_eq(own.library(), info.library())
            || (own.fabric_name(), own.provider_name()) != (info.fabric_name(), provider.clone())
        {
            return Err(Error::Invalid(format!("{name}: it is another fabric's")));
        }
        if is_unchecked(&provider, info.mr_mode()) {
            let why = "with FI_MR_VIRT_ADDR it checks no keys: leave that out of the hints";
            return Err(Error::Invalid(format!("{name}: {why}")));
        }
        if provider == "efa" && info.library().version() < Version::EFA {
            return Err(Error::Invalid(format!(
                "{name}: {} is version {}, EFA needs {}",
                info.library().name(),
                info.library().version(),
                Version::EFA
            )));
        }
        // SAFETY: an open fabric has its table, and every table has `domain`.
        let open = unsafe { (*(*fabric.as_ptr()).ops).domain }.expect("every fabric has domains");
        let raw = info.library().made(
            Kind::Domain,
            || format!("opening {name}"),
            |raw| {
                // SAFETY: the fabric is open, the info came from the library, and `raw` is
                // writable.
                unsafe { open(fabric.as_ptr(), info.as_ptr(), raw, std::ptr::null_mut()) }
            },
        )?;
        let is_safe = info.threading() == c::fi_threading::FI_THREAD_SAFE;
        Ok(Arc::new(Domain {
            fabric: Arc::clone(fabric),
            info: info.clone(),
            raw,
            name,
            is_checked_by_device: is_checked_by_device(&provider, &info.fabric_name()),
            calls: (!is_safe).then(Mutex::default),
            next_key: AtomicU64::new(1),
            retired: Mutex::default(),
        }))
    }

    /// What it was opened of.
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// Its name and its provider's, for texts.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        self.info.library()
    }

    pub(crate) fn fabric(&self) -> &Arc<Fabric> {
        &self.fabric
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fid_domain {
        self.raw.as_ptr()
    }

    /// To be held during each call of an object of this domain.
    #[inline]
    pub(crate) fn guard(&self) -> Option<MutexGuard<'_, ()>> {
        let calls = self.calls.as_ref()?;
        Some(calls.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether calls may overlap.
    pub(crate) fn is_thread_safe(&self) -> bool {
        self.calls.is_none()
    }

    /// A key that no region of this domain has had, where the program chooses keys.
    pub(crate) fn take_key(&self) -> u64 {
        // Relaxed: only the number matters.
        self.next_key.fetch_add(1, Ordering::Relaxed)
    }

    /// Closes an object of this domain. Gives whether the library still has it.
    ///
    /// # Safety
    /// As [`Library::close`].
    pub(crate) unsafe fn close(&self, kind: Kind, fid: *mut c::fid) -> bool {
        // As in `note_closed`.
        if self.library().is_forked() {
            return false;
        }
        let _guard = self.guard();
        // SAFETY: the caller's promise.
        unsafe { self.library().close(kind, &self.name, fid) }
    }

    /// Keeps the memory of a region that peers could reach and that is closed. If a device checks
    /// what peers access, closing has ended that, and the memory is let go of. Otherwise a peer's
    /// write that has begun may go on to write its memory, so it stays until no endpoint of the
    /// domain is left that could receive one.
    pub(crate) fn retire(&self, owner: Owner, bytes: usize) {
        if self.is_checked_by_device || self.library().is_forked() {
            return;
        }
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        if retired.endpoints > 0 {
            retired.owners.push((bytes, owner));
        }
    }

    /// Whether a device checks every access of peers: then none goes on after its region is closed.
    pub fn is_checked_by_device(&self) -> bool {
        self.is_checked_by_device
    }

    /// Bytes of regions that are gone and whose memory stays until the domain's last endpoint is
    /// closed. Always 0 where a device checks what peers access: EFA's fabric `efa-direct`, verbs.
    pub fn retired_bytes(&self) -> usize {
        let retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.owners.iter().map(|(bytes, _)| bytes).sum()
    }

    pub(crate) fn note_endpoint(&self) {
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.endpoints += 1;
    }

    /// An endpoint is closed.
    pub(crate) fn note_closed(&self) {
        // A forked child must not wait for a lock that a thread of its parent held.
        if self.library().is_forked() {
            return;
        }
        let mut retired = self.retired.lock().unwrap_or_else(PoisonError::into_inner);
        retired.endpoints -= 1;
        if retired.endpoints == 0 {
            let owners = std::mem::take(&mut retired.owners);
            // What owners do when they are dropped must not meet the lock.
            drop(retired);
            drop(owners);
        }
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; all that was made in it held it and is gone.
        unsafe {
            self.library()
                .close(Kind::Domain, &self.name, self.raw.as_ptr().cast())
        };
    }
}

/// Whether peers' accesses are a device's, by these names of a provider and a fabric. EFA's other
/// fabric moves some data by the processor, and so do all layers but rxm's on verbs.
fn is_checked_by_device(provider: &str, fabric: &str) -> bool {
    (provider, fabric) == ("efa", "efa-direct") || ["verbs", "verbs;ofi_rxm"].contains(&provider)
}

/// Whether peers' accesses are checked by nobody. shm (of 1.17 to 2.5) then reads and writes any
/// address of the peer's process through the kernel, without a look at the key.
fn is_unchecked(provider: &str, mr_mode: i32) -> bool {
    provider.split(';').any(|layer| layer == "shm") && mr_mode & FI_MR_VIRT_ADDR != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::FI_MR_PROV_KEY;

    #[test]
    fn only_devices_check_every_access() {
        assert!(is_checked_by_device("efa", "efa-direct"));
        assert!(is_checked_by_device(
            "verbs;ofi_rxm",
            "IB-0xfe80000000000000"
        ));
        assert!(!is_checked_by_device("efa", "efa"));
        assert!(!is_checked_by_device(
            "verbs;ofi_rxd",
            "IB-0xfe80000000000000"
        ));
        assert!(!is_checked_by_device("tcp;ofi_rxm", "127.0.0.1/32"));
    }

    #[test]
    fn shm_is_not_to_be_had_without_keys() {
        assert!(is_unchecked("shm", FI_MR_VIRT_ADDR | FI_MR_PROV_KEY));
        assert!(!is_unchecked("shm", FI_MR_PROV_KEY));
        assert!(!is_unchecked("tcp;ofi_rxm", FI_MR_VIRT_ADDR));
    }
}
