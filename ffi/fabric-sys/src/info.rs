//! [`Hints`], what is asked of the providers, and [`Info`], what one of them offers.

use crate::bindings as c;
use crate::error::{Error, Result};
use crate::library::{Library, text_of};
use crate::raw::FI_SOURCE;
use crate::signals::keeping_handlers;
use std::ffi::{CString, c_char};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// What is asked of the providers. Zero and `None`: any.
///
/// Endpoints are always reliable datagrams (`FI_EP_RDM`), and calls may come from any thread: where
/// a provider does not allow that ([`Info::threading`]), this crate has a lock for each domain.
#[derive(Clone, Default)]
pub struct Hints<'a> {
    /// The provider, with the layers on it (`tcp;ofi_rxm`).
    pub provider: Option<&'a str>,
    /// The fabric (`efa-direct`).
    pub fabric: Option<&'a str>,
    /// The domain (a device's name).
    pub domain: Option<&'a str>,
    /// The own address, of providers that have internet addresses.
    pub source: Option<&'a str>,
    /// Capabilities that are needed: `FI_MSG`, `FI_RMA`, ...
    pub caps: u64,
    /// Modes that the program can deal with; a provider names those that it insists on.
    pub mode: u64,
    /// Modes of memory registration that the program can deal with.
    pub mr_mode: i32,
    /// Flags of every write and read: `FI_DELIVERY_COMPLETE` completes a write when its bytes are
    /// in the peer's memory.
    pub op_flags: u64,
    /// The progress that is needed, of data and of control.
    pub progress: Option<c::fi_progress>,
    /// The threading that the provider is told to expect; `None`: `FI_THREAD_SAFE`.
    pub threading: Option<c::fi_threading>,
}

impl fmt::Debug for Hints<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            ("provider", self.provider),
            ("fabric", self.fabric),
            ("domain", self.domain),
            ("source", self.source),
        ];
        let mut found = f.debug_struct("Hints");
        for (what, name) in names {
            name.map(|name| found.field(what, &name));
        }
        found
            .field("caps", &format_args!("{:#x}", self.caps))
            .field("mode", &format_args!("{:#x}", self.mode))
            .field("mr_mode", &format_args!("{:#x}", self.mr_mode))
            .field("op_flags", &format_args!("{:#x}", self.op_flags))
            .field("progress", &self.progress)
            .field("threading", &self.threading)
            .finish()
    }
}

/// A list of the library's, freed once.
struct List {
    library: Arc<Library>,
    first: NonNull<c::fi_info>,
}

// SAFETY: the list belongs to the process, not to a thread.
unsafe impl Send for List {}
// SAFETY: nothing writes it after it is made; calls of the library take it as input.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: it came from the library and is freed once; each `Info` holds it.
        unsafe { (self.library.functions.freeinfo)(self.first.as_ptr()) };
    }
}

/// What a provider offers: one way to a fabric, with its limits.
#[derive(Clone)]
pub struct Info {
    list: Arc<List>,
    raw: NonNull<c::fi_info>,
}

// SAFETY: it points into the list that it holds, which is Send and Sync.
unsafe impl Send for Info {}
// SAFETY: as above.
unsafe impl Sync for Info {}

/// The PCI address of a NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PciAddress {
            domain,
            bus,
            device,
            function,
        } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

/// The NIC behind a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its name; empty if unknown.
    pub name: String,
    /// Where it is.
    pub pci: Option<PciAddress>,
    /// The speed of its link in bits per second; `None` if unknown.
    pub link_bits_per_s: Option<u64>,
}

impl Info {
    /// What the providers of this machine offer of `hints`, the library's favourite first. The code
    /// of the error is ENODATA if none offers all of it.
    pub fn query(library: &Arc<Library>, hints: &Hints<'_>) -> Result<Vec<Info>> {
        let what = || format!("asking for {hints:?}");
        let raw_hints = raw_hints(library, hints)?;
        let source = hints.source.map(to_c).transpose()?;
        let node = source
            .as_ref()
            .map_or(std::ptr::null(), |text| text.as_ptr());
        let flags = if source.is_some() { FI_SOURCE } else { 0 };
        let mut first = std::ptr::null_mut();
        // Providers are loaded by the first call, so it replaces handlers too.
        let status = keeping_handlers(|| {
            let getinfo = library.functions.getinfo;
            let version = library.interface().to_raw();
            // SAFETY: `node` is null or terminated, the hints are complete, and `first` is
            // writable.
            unsafe {
                getinfo(
                    version,
                    node,
                    std::ptr::null(),
                    flags,
                    raw_hints.first.as_ptr(),
                    &mut first,
                )
            }
        });
        library.end_settings();
        if status != 0 {
            return Err(library.refused(what(), status));
        }
        let first = NonNull::new(first).ok_or_else(|| library.refused(what(), libc::ENODATA))?;
        let library = Arc::clone(library);
        let list = Arc::new(List { library, first });
        let mut found = Vec::new();
        let mut next = Some(first);
        while let Some(raw) = next {
            // SAFETY: an entry of a list that lives; the list ends with null.
            let entry = unsafe { raw.as_ref() };
            next = NonNull::new(entry.next);
            let is_complete = !entry.tx_attr.is_null()
                && !entry.rx_attr.is_null()
                && !entry.ep_attr.is_null()
                && !entry.domain_attr.is_null()
                && !entry.fabric_attr.is_null();
            if is_complete {
                let list = Arc::clone(&list);
                found.push(Info { list, raw });
            }
        }
        Ok(found)
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.list.library
    }

    pub(crate) fn as_ptr(&self) -> *mut c::fi_info {
        self.raw.as_ptr()
    }

    fn raw(&self) -> &c::fi_info {
        // SAFETY: an entry of a list that lives.
        unsafe { self.raw.as_ref() }
    }

    fn transmit(&self) -> &c::fi_tx_attr {
        // SAFETY: `query` takes only entries that have it.
        unsafe { &*self.raw().tx_attr }
    }

    fn receive(&self) -> &c::fi_rx_attr {
        // SAFETY: as above.
        unsafe { &*self.raw().rx_attr }
    }

    fn endpoint(&self) -> &c::fi_ep_attr {
        // SAFETY: as above.
        unsafe { &*self.raw().ep_attr }
    }

    fn domain(&self) -> &c::fi_domain_attr {
        // SAFETY: as above.
        unsafe { &*self.raw().domain_attr }
    }

    pub(crate) fn fabric_ptr(&self) -> *mut c::fi_fabric_attr {
        self.raw().fabric_attr
    }

    /// The provider, with the layers on it.
    pub fn provider_name(&self) -> String {
        // SAFETY: `query` takes only entries that have it.
        text_of(unsafe { (*self.raw().fabric_attr).prov_name })
    }

    /// The fabric.
    pub fn fabric_name(&self) -> String {
        // SAFETY: as above.
        text_of(unsafe { (*self.raw().fabric_attr).name })
    }

    /// The domain.
    pub fn domain_name(&self) -> String {
        text_of(self.domain().name)
    }

    /// Capabilities.
    pub fn caps(&self) -> u64 {
        self.raw().caps
    }

    /// Modes that the provider insists on.
    pub fn mode(&self) -> u64 {
        self.raw().mode | self.domain().mode | self.transmit().mode | self.receive().mode
    }

    /// Modes of memory registration that the provider insists on.
    pub fn mr_mode(&self) -> i32 {
        self.domain().mr_mode
    }

    /// Bytes of a key.
    pub fn mr_key_bytes(&self) -> usize {
        self.domain().mr_key_size
    }

    /// Pieces that one region may consist of.
    pub fn mr_pieces_max(&self) -> usize {
        self.domain().mr_iov_limit
    }

    /// Bytes of the number that comes with a write.
    pub fn cq_data_bytes(&self) -> usize {
        self.domain().cq_data_size
    }

    /// Which calls may come from several threads at once.
    pub fn threading(&self) -> c::fi_threading {
        self.domain().threading
    }

    /// Who moves data on.
    pub fn data_progress(&self) -> c::fi_progress {
        self.domain().data_progress
    }

    /// Who moves connections and registrations on.
    pub fn control_progress(&self) -> c::fi_progress {
        self.domain().control_progress
    }

    pub(crate) fn av_type(&self) -> c::fi_av_type {
        self.domain().av_type
    }

    /// The kind of endpoint.
    pub fn endpoint_type(&self) -> c::fi_ep_type {
        self.endpoint().type_
    }

    /// The number of the protocol on the wire, of `rdma/fabric.h`.
    pub fn protocol(&self) -> u32 {
        self.endpoint().protocol
    }

    /// Bytes of one operation, at most.
    pub fn message_bytes_max(&self) -> usize {
        self.endpoint().max_msg_size
    }

    /// Bytes of a write that is copied when it is posted, at most.
    pub fn inject_bytes_max(&self) -> usize {
        self.transmit().inject_size
    }

    /// Writes and reads under way at once.
    pub fn transmits_max(&self) -> usize {
        self.transmit().size
    }

    /// Receives that can be posted at once.
    pub fn receives_max(&self) -> usize {
        self.receive().size
    }

    /// Local pieces of one operation, at most.
    pub fn pieces_max(&self) -> usize {
        self.transmit().iov_limit
    }

    /// Remote pieces of one operation, at most.
    pub fn remote_pieces_max(&self) -> usize {
        self.transmit().rma_iov_limit
    }

    pub(crate) fn op_flags(&self) -> u64 {
        self.transmit().op_flags
    }

    /// The own address that endpoints get, if it is known before they are made.
    pub fn source_address(&self) -> Option<Vec<u8>> {
        let raw = self.raw();
        if raw.src_addr.is_null() {
            return None;
        }
        // SAFETY: the address has that length and nothing changes it.
        let bytes = unsafe { std::slice::from_raw_parts(raw.src_addr.cast(), raw.src_addrlen) };
        Some(bytes.to_vec())
    }

    /// The NIC, where the provider tells.
    pub fn nic(&self) -> Option<Nic> {
        // SAFETY: null, or a structure of the list; so are its members.
        let nic = unsafe { self.raw().nic.as_ref() }?;
        // SAFETY: as above.
        let device = unsafe { nic.device_attr.as_ref() };
        // SAFETY: as above.
        let bus = unsafe { nic.bus_attr.as_ref() };
        // SAFETY: as above.
        let link = unsafe { nic.link_attr.as_ref() };
        let is_pci = |bus: &&c::fi_bus_attr| bus.bus_type == c::fi_bus_type::FI_BUS_PCI;
        let pci = bus.filter(is_pci).map(|bus| {
            // SAFETY: the type of the bus says which member it is.
            let pci = unsafe { bus.attr.pci };
            PciAddress {
                domain: pci.domain_id,
                bus: pci.bus_id,
                device: pci.device_id,
                function: pci.function_id,
            }
        });
        Some(Nic {
            name: device
                .map(|device| text_of(device.name))
                .unwrap_or_default(),
            pci,
            link_bits_per_s: link
                .map(|link| link.speed as u64)
                .filter(|&speed| speed > 0),
        })
    }
}

impl fmt::Debug for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Info")
            .field("provider", &self.provider_name())
            .field("fabric", &self.fabric_name())
            .field("domain", &self.domain_name())
            .field("caps", &format_args!("{:#x}", self.caps()))
            .field("mode", &format_args!("{:#x}", self.mode()))
            .field("mr_mode", &format_args!("{:#x}", self.mr_mode()))
            .finish()
    }
}

/// `hints` in the library's form.
fn raw_hints(library: &Arc<Library>, hints: &Hints<'_>) -> Result<List> {
    // SAFETY: null asks for an empty entry with all its attributes.
    let first = unsafe { (library.functions.dupinfo)(std::ptr::null()) };
    let first =
        NonNull::new(first).ok_or_else(|| library.refused("memory for hints", libc::ENOMEM))?;
    let list = List {
        library: Arc::clone(library),
        first,
    };
    let progress = hints.progress.unwrap_or(c::fi_progress::FI_PROGRESS_UNSPEC);
    let threading = hints.threading.unwrap_or(c::fi_threading::FI_THREAD_SAFE);
    // SAFETY: the entry is complete and nobody else's yet.
    let raw = unsafe { &mut *first.as_ptr() };
    raw.caps = hints.caps;
    raw.mode = hints.mode;
    // SAFETY: an entry of `fi_dupinfo` has all its attributes; nobody else has references to them.
    let (transmit, endpoint) = unsafe { (&mut *raw.tx_attr, &mut *raw.ep_attr) };
    // SAFETY: as above.
    let (domain, fabric) = unsafe { (&mut *raw.domain_attr, &mut *raw.fabric_attr) };
    transmit.op_flags = hints.op_flags;
    endpoint.type_ = c::fi_ep_type::FI_EP_RDM;
    domain.mr_mode = hints.mr_mode;
    domain.threading = threading;
    domain.data_progress = progress;
    domain.control_progress = progress;
    domain.name = copied(library, hints.domain)?;
    fabric.name = copied(library, hints.fabric)?;
    fabric.prov_name = copied(library, hints.provider)?;
    Ok(list)
}

/// A copy that the library frees with the hints; null of nothing.
fn copied(library: &Library, text: Option<&str>) -> Result<*mut c_char> {
    let Some(text) = text else {
        return Ok(std::ptr::null_mut());
    };
    let text = to_c(text)?;
    // SAFETY: a terminated text.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        return Err(library.refused("memory for hints", libc::ENOMEM));
    }
    Ok(copy)
}

fn to_c(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Invalid(format!("{text:?}: a name has no NUL")))
}
