//! [`Endpoint`]: what posts operations, and what peers name.

use crate::address::{AddressVector, NAME_BYTES_MAX, Peer};
use crate::bindings as c;
use crate::completion::CompletionQueue;
use crate::domain::Domain;
use crate::error::{Error, Result};
use crate::later::{
    FI_ETOOSMALL, FI_OPT_CUDA_API_PERMITTED, FI_OPT_EFA_EMULATED_WRITE, FI_OPT_MAX_RMA_SIZE,
    FI_OPT_SHARED_MEMORY_PERMITTED,
};
use crate::library::Kind;
use crate::raw::{FI_HMEM, FI_RECV, FI_SEND};
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

/// What an endpoint is made of.
#[derive(Clone, Copy)]
pub struct EndpointOptions<'a> {
    /// Where its writes and reads complete.
    pub transmit_queue: &'a Arc<CompletionQueue>,
    /// Where its receives and peers' writes complete. May be the other one.
    pub receive_queue: &'a Arc<CompletionQueue>,
    /// The peers that it can name.
    pub addresses: &'a Arc<AddressVector>,
    /// `FI_OPT_CUDA_API_PERMITTED`: whether the provider may call CUDA for memory of GPUs, which
    /// needs the capability `FI_HMEM`. `None`, or where the provider does not know that setting:
    /// the provider's default.
    pub is_cuda_permitted: Option<bool>,
}

/// What posts operations, and what peers name. It is enabled from the start.
pub struct Endpoint {
    domain: Arc<Domain>,
    raw: NonNull<c::fid_ep>,
    /// `None` only in Drop.
    parts: Option<Parts>,
    pub(crate) limits: Limits,
}

/// What an endpoint uses, and keeps open.
pub(crate) struct Parts {
    pub transmit_queue: Arc<CompletionQueue>,
    pub receive_queue: Arc<CompletionQueue>,
    pub addresses: Arc<AddressVector>,
}

/// What the provider says about operations.
pub(crate) struct Limits {
    pub message_bytes_max: usize,
    pub data_bytes: usize,
    pub op_flags: u64,
}

// SAFETY: objects of the library belong to the process, not to a thread.
unsafe impl Send for Endpoint {}
// SAFETY: the domain's guard is held during each call.
unsafe impl Sync for Endpoint {}

impl Endpoint {
    /// A new endpoint of the domain, bound to its queues and addresses, and enabled.
    pub fn open(domain: &Arc<Domain>, options: &EndpointOptions<'_>) -> Result<Arc<Endpoint>> {
        let what = || format!("an endpoint of {}", domain.name());
        let (transmit, receive) = (options.transmit_queue, options.receive_queue);
        let owners = [
            transmit.domain(),
            receive.domain(),
            options.addresses.domain(),
        ];
        if owners.iter().any(|owner| !Arc::ptr_eq(owner, domain)) {
            let why = "its queues or addresses belong to another domain";
            return Err(Error::Invalid(format!("{}: {why}", what())));
        }
        // SAFETY: an open domain has its table.
        let open =
            unsafe { (*(*domain.as_ptr()).ops).endpoint }.expect("every domain has endpoints");
        let info = domain.info();
        let guard = domain.guard();
        let raw = domain.library().made(Kind::Endpoint, what, |raw| {
            // SAFETY: the domain lives, and the info is the one that it was opened of.
            unsafe { open(domain.as_ptr(), info.as_ptr(), raw, std::ptr::null_mut()) }
        })?;
        drop(guard);
        domain.note_endpoint();
        let endpoint = Endpoint {
            domain: Arc::clone(domain),
            raw,
            parts: Some(Parts {
                transmit_queue: Arc::clone(transmit),
                receive_queue: Arc::clone(receive),
                addresses: Arc::clone(options.addresses),
            }),
            limits: Limits {
                message_bytes_max: info.message_bytes_max(),
                data_bytes: info.cq_data_bytes(),
                op_flags: info.op_flags(),
            },
        };
        // EFA's own way to peers of this host is shm, which may not check keys.
        endpoint.set_bool(FI_OPT_SHARED_MEMORY_PERMITTED, Some(false))?;
        // Without device memory providers refuse to talk about CUDA.
        let has_hmem = info.caps() & FI_HMEM != 0;
        let is_cuda_permitted = options.is_cuda_permitted.filter(|_| has_hmem);
        endpoint.set_bool(FI_OPT_CUDA_API_PERMITTED, is_cuda_permitted)?;
        endpoint.bind(options.addresses.as_ptr().cast(), 0)?;
        if Arc::ptr_eq(transmit, receive) {
            endpoint.bind(transmit.as_ptr().cast(), FI_SEND | FI_RECV)?;
        } else {
            endpoint.bind(transmit.as_ptr().cast(), FI_SEND)?;
            endpoint.bind(receive.as_ptr().cast(), FI_RECV)?;
        }
        endpoint.enable()?;
        Ok(Arc::new(endpoint))
    }

    /// The domain it is in.
    pub fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fid_ep {
        self.raw.as_ptr()
    }

    #[inline]
    pub(crate) fn parts(&self) -> &Parts {
        self.parts.as_ref().expect("only Drop takes them")
    }

    /// Where its writes and reads complete.
    pub fn transmit_queue(&self) -> &Arc<CompletionQueue> {
        &self.parts().transmit_queue
    }

    /// Where its receives and peers' writes complete.
    pub fn receive_queue(&self) -> &Arc<CompletionQueue> {
        &self.parts().receive_queue
    }

    fn fid(&self) -> *mut c::fid {
        self.raw.as_ptr().cast()
    }

    fn refused(&self, doing: &str, code: c_int) -> Error {
        let what = format!("{doing} an endpoint of {}", self.domain.name());
        self.domain.library().refused(what, code)
    }

    fn bind(&self, fid: *mut c::fid, flags: u64) -> Result<()> {
        // SAFETY: an open endpoint has its table.
        let bind = unsafe { (*(*self.fid()).ops).bind }.expect("every endpoint has bind");
        let _guard = self.domain.guard();
        // SAFETY: both objects live, and the endpoint holds the other one from now on.
        match unsafe { bind(self.fid(), fid, flags) } {
            0 => Ok(()),
            code => Err(self.refused("binding", code)),
        }
    }

    fn enable(&self) -> Result<()> {
        // SAFETY: an open endpoint has its table.
        let control = unsafe { (*(*self.fid()).ops).control }.expect("every endpoint has control");
        let _guard = self.domain.guard();
        // SAFETY: the endpoint lives and is bound; this command takes no argument.
        match unsafe { control(self.fid(), c::FI_ENABLE.0 as c_int, std::ptr::null_mut()) } {
            0 => Ok(()),
            code => Err(self.refused("enabling", code)),
        }
    }

    /// What peers insert to name it.
    pub fn name(&self) -> Result<Vec<u8>> {
        let mut name = [0u8; NAME_BYTES_MAX];
        let mut bytes = name.len();
        // SAFETY: an open endpoint has its tables.
        let getname = unsafe { (*(*self.raw.as_ptr()).cm).getname }.expect("endpoints have names");
        let _guard = self.domain.guard();
        // SAFETY: the endpoint lives, and `name` is writable for `bytes`.
        match unsafe { getname(self.fid(), name.as_mut_ptr().cast(), &mut bytes) } {
            0 if bytes <= name.len() => Ok(name[..bytes].to_vec()),
            0 => Err(self.refused("asking for the name of", FI_ETOOSMALL)),
            code => Err(self.refused("asking for the name of", code)),
        }
    }

    /// Inserts the endpoint with this [`name`](Endpoint::name), which may come from a peer.
    pub fn insert(&self, name: &[u8]) -> Result<Arc<Peer>> {
        self.parts().addresses.insert(name)
    }

    /// `FI_OPT_MAX_RMA_SIZE`: bytes of one write or read, at most; `None` where the provider does
    /// not tell, and [`Info::message_bytes_max`](crate::Info::message_bytes_max) holds.
    pub fn rma_bytes_max(&self) -> Result<Option<usize>> {
        let mut bytes: usize = 0;
        // SAFETY: the option is a size_t.
        let is_known = unsafe { self.get(FI_OPT_MAX_RMA_SIZE, &mut bytes) }?;
        Ok(is_known.then_some(bytes))
    }

    /// `FI_OPT_EFA_EMULATED_WRITE`: whether writes are messages that the peer's processor carries
    /// out; `None` of other providers than EFA.
    pub fn is_write_emulated(&self) -> Result<Option<bool>> {
        if self.domain.info().provider_name() != "efa" {
            return Ok(None);
        }
        let mut answer: u8 = 0;
        // SAFETY: the option is a bool, and any byte is a value of `answer`.
        let is_known = unsafe { self.get(FI_OPT_EFA_EMULATED_WRITE, &mut answer) }?;
        Ok(is_known.then_some(answer != 0))
    }

    /// Asks for an option. Gives whether the provider knows it.
    ///
    /// # Safety
    /// The option has the size of `T`, and all that the provider may answer is a value of `T`.
    unsafe fn get<T>(&self, option: c_int, answer: &mut T) -> Result<bool> {
        // SAFETY: an open endpoint has its tables.
        let Some(getopt) = (unsafe { (*(*self.raw.as_ptr()).ops).getopt }) else {
            return Ok(false);
        };
        let mut bytes = size_of::<T>();
        let level = c::FI_OPT_ENDPOINT.0 as c_int;
        let _guard = self.domain.guard();
        let value: *mut c_void = std::ptr::from_mut(answer).cast();
        // SAFETY: the endpoint lives, and `answer` is writable for `bytes`.
        let status = unsafe { getopt(self.fid(), level, option, value, &mut bytes) };
        self.is_known(status, option)
    }

    /// Sets an option, unless the provider does not know it.
    fn set_bool(&self, option: c_int, value: Option<bool>) -> Result<()> {
        // SAFETY: an open endpoint has its tables.
        let setopt = unsafe { (*(*self.raw.as_ptr()).ops).setopt };
        let (Some(setopt), Some(value)) = (setopt, value) else {
            return Ok(());
        };
        let level = c::FI_OPT_ENDPOINT.0 as c_int;
        let _guard = self.domain.guard();
        let pointer: *const c_void = (&raw const value).cast();
        // SAFETY: the endpoint lives and is not enabled yet; the option is a bool.
        let status = unsafe { setopt(self.fid(), level, option, pointer, size_of::<bool>()) };
        self.is_known(status, option).map(|_| ())
    }

    fn is_known(&self, status: c_int, option: c_int) -> Result<bool> {
        match -status {
            0 => Ok(true),
            libc::ENOPROTOOPT | libc::EOPNOTSUPP | libc::ENOSYS => Ok(false),
            code => Err(self.refused(&format!("option {option} of"), code)),
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // SAFETY: opened once, closed once; regions that were bound to it held it and are gone. Its
        // outstanding operations end without completions.
        let is_left = unsafe { self.domain.close(Kind::Endpoint, self.fid()) };
        if is_left {
            // It may still use the contexts of its queues, so they are never freed.
            std::mem::forget(self.parts.take());
        } else {
            self.domain.note_closed();
        }
    }
}
