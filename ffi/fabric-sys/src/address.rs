//! [`AddressVector`] and [`Peer`]: the endpoints that operations can go to.

use crate::bindings as c;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::later::FI_ADDR_UNSPEC;
use crate::library::Kind;
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// The longest name of an endpoint, in bytes: shm's texts have the most.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// Peers that are removed last, of providers that look at removed ones: shm may have unmapped what
/// it follows when it handles what such a peer has sent (1.17).
const PARTED_MAX: usize = 64;

/// A name with zeros behind it, aligned as any structure of addresses.
#[repr(C, align(16))]
struct Name([u8; 2 * NAME_BYTES_MAX]);

/// The endpoints that a domain's endpoints know.
pub struct AddressVector {
    domain: Arc<Domain>,
    raw: NonNull<c::fid_av>,
    /// By name. A provider that gets a name twice may give one entry for both, and remove it at the
    /// first removal, so names are counted here.
    entries: Mutex<Entries>,
    /// How many names stay when their peers are gone.
    parted_max: usize,
}

#[derive(Default)]
struct Entries {
    all: HashMap<Box<[u8]>, Entry>,
    /// Names without peers, which are removed when enough others have come after them.
    parted: VecDeque<Box<[u8]>>,
}

/// What the library knows a name as.
struct Entry {
    number: u64,
    /// How many [`Peer`]s there are.
    peers: usize,
}

// SAFETY: objects of the library belong to the process, not to a thread.
unsafe impl Send for AddressVector {}
// SAFETY: the domain's guard is held during each call.
unsafe impl Sync for AddressVector {}

impl AddressVector {
    /// A vector for about `peers` peers; more may be inserted.
    pub fn open(domain: &Arc<Domain>, peers: usize) -> Result<Arc<AddressVector>> {
        let asked = domain.info().av_type();
        let is_any = asked == c::fi_av_type::FI_AV_UNSPEC;
        let mut attributes = c::fi_av_attr {
            type_: if is_any {
                c::fi_av_type::FI_AV_TABLE
            } else {
                asked
            },
            count: peers,
            ..Default::default()
        };
        // SAFETY: an open domain has its table.
        let open = unsafe { (*(*domain.as_ptr()).ops).av_open }.expect("every domain has av_open");
        let what = || format!("an address vector of {peers} peers in {}", domain.name());
        let guard = domain.guard();
        let raw = domain.library().made(Kind::AddressVector, what, |raw| {
            // SAFETY: the domain lives, and the attributes are complete.
            unsafe { open(domain.as_ptr(), &mut attributes, raw, std::ptr::null_mut()) }
        })?;
        drop(guard);
        let provider = domain.info().provider_name();
        let looks_back = provider.split(';').any(|layer| layer == "shm");
        Ok(Arc::new(AddressVector {
            domain: Arc::clone(domain),
            raw,
            entries: Mutex::default(),
            parted_max: if looks_back { PARTED_MAX } else { 0 },
        }))
    }

    pub(crate) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fid_av {
        self.raw.as_ptr()
    }

    fn ops(&self) -> &c::fi_ops_av {
        // SAFETY: an open vector has its table, which never changes.
        unsafe { &*(*self.raw.as_ptr()).ops }
    }

    /// Inserts the endpoint with this [`name`](crate::Endpoint::name), which may come from a peer.
    pub fn insert(self: &Arc<AddressVector>, name: &[u8]) -> Result<Arc<Peer>> {
        let what = || format!("inserting the address {name:x?} in {}", self.domain.name());
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(Error::Invalid(format!(
                "{}: 1 to {NAME_BYTES_MAX} bytes",
                what()
            )));
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Entries { all, parted } = &mut *entries;
        let number = match all.get_mut(name) {
            Some(entry) => {
                if entry.peers == 0 {
                    parted.retain(|known| **known != *name);
                }
                entry.peers += 1;
                entry.number
            }
            None => {
                let number = self.insert_raw(name).map_err(|code| {
                    let library = self.domain.library();
                    library.refused(what(), code)
                })?;
                if all.values().any(|entry| entry.number == number) {
                    // Then removing one would remove both. Only a peer that plays tricks does this.
                    let why = "the provider takes it for another name that is there";
                    return Err(Error::Invalid(format!("{}: {why}", what())));
                }
                all.insert(name.into(), Entry { number, peers: 1 });
                number
            }
        };
        Ok(Arc::new(Peer {
            addresses: Arc::clone(self),
            name: name.into(),
            number,
        }))
    }

    /// Gives the number of a new name, or an error number.
    fn insert_raw(&self, name: &[u8]) -> std::result::Result<u64, c_int> {
        // A provider reads as many bytes as it finds a name to have by looking at it.
        let mut padded = Name([0; 2 * NAME_BYTES_MAX]);
        padded.0[..name.len()].copy_from_slice(name);
        let insert = self.ops().insert.expect("every vector has insert");
        let (mut number, nothing) = (FI_ADDR_UNSPEC, std::ptr::null_mut());
        let _guard = self.domain.guard();
        // SAFETY: the vector lives, `number` is writable, and behind the name there are as many
        // zeros as the longest name has bytes.
        let count = unsafe {
            let name = padded.0.as_ptr().cast();
            insert(self.raw.as_ptr(), name, 1, &mut number, 0, nothing)
        };
        match count {
            1 if number != FI_ADDR_UNSPEC => Ok(number),
            code if code < 0 => Err(code),
            _ => Err(libc::EINVAL),
        }
    }

    /// One peer of this name fewer: removes it with the last one, or later.
    fn release(&self, name: &[u8]) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Entries { all, parted } = &mut *entries;
        let Some(entry) = all.get_mut(name) else {
            return;
        };
        entry.peers -= 1;
        if entry.peers > 0 {
            return;
        }
        parted.push_back(name.into());
        while parted.len() > self.parted_max
            && let Some(entry) = parted.pop_front().and_then(|name| all.remove(&name))
        {
            self.remove_raw(entry.number);
        }
    }

    fn remove_raw(&self, mut number: u64) {
        let remove = self.ops().remove.expect("every vector has remove");
        let guard = self.domain.guard();
        // SAFETY: the vector lives, and this entry of it is removed once; operations to it held a
        // peer and are complete. What the peer has sent is handled, or not looked at any more.
        let status = unsafe { remove(self.raw.as_ptr(), &mut number, 1, 0) };
        drop(guard);
        if status != 0 {
            let what = format!("removing a peer from {}", self.domain.name());
            let library = self.domain.library();
            library.note_failure(library.refused(what, status));
        }
    }
}

impl Drop for AddressVector {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; its peers and endpoints held it and are gone.
        unsafe {
            self.domain
                .close(Kind::AddressVector, self.raw.as_ptr().cast())
        };
    }
}

/// An endpoint that operations can go to. Operations that are under way hold it; the last peer of a
/// name removes it from the vector.
pub struct Peer {
    addresses: Arc<AddressVector>,
    name: Box<[u8]>,
    number: u64,
}

impl Peer {
    /// Its number in its vector, by which [`Completion::source`](crate::Completion::source) names
    /// it.
    pub fn number(&self) -> u64 {
        self.number
    }

    #[inline]
    pub(crate) fn is_of(&self, addresses: &Arc<AddressVector>) -> bool {
        Arc::ptr_eq(&self.addresses, addresses)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A forked child must not wait for a lock that a thread of its parent held.
        if !self.addresses.domain.library().is_forked() {
            self.addresses.release(&self.name);
        }
    }
}
