//! [`Devices`] of this machine, and a [`Context`]: one of them, opened.

use crate::bindings as c;
use crate::error::{Error, Result, last_errno};
use crate::library::{Kind, Library};
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// `IBV_LINK_LAYER_INFINIBAND` of a port's `link_layer`.
pub const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`: RoCE or iWARP.
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// The RDMA devices of this machine at one moment. What was opened from it outlives it.
pub struct Devices {
    library: Arc<Library>,
    /// Null: the kernel has no RDMA.
    list: *mut *mut c::ibv_device,
    count: usize,
}

// SAFETY: the list belongs to the process, not to a thread, and is freed once, in Drop.
unsafe impl Send for Devices {}
// SAFETY: nothing writes the list or the devices' names after it is made.
unsafe impl Sync for Devices {}

impl Devices {
    /// Lists the devices. Without any, or without RDMA in the kernel, the list is empty; see
    /// [`reason`](Devices::reason).
    pub fn list(library: &Arc<Library>) -> Result<Devices> {
        let mut count: c_int = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { (library.functions.get_device_list)(&mut count) };
        if list.is_null() {
            let errno = last_errno();
            if errno != libc::ENOSYS {
                return Err(Error::refused("ibv_get_device_list", errno));
            }
            count = 0;
        }
        Ok(Devices {
            library: Arc::clone(library),
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    /// Why it is empty, and what to do about it; `None` if it is not.
    pub fn reason(&self) -> Option<&'static str> {
        if self.list.is_null() {
            return Some(
                "the kernel has no RDMA (modprobe ib_uverbs and the driver of the NIC; /sys/class/infiniband does not exist)",
            );
        }
        (self.count == 0).then_some(
            "the kernel has RDMA and no device that libibverbs knows (ibv_devices lists none; is the driver loaded, and is \
             ibverbs-providers installed?)",
        )
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each of them, in the library's order.
    pub fn iter(&self) -> impl Iterator<Item = Device<'_>> {
        (0..self.count).map(|index| Device {
            // SAFETY: the list has `count` entries and lives as long as `self`.
            raw: unsafe { *self.list.add(index) },
            devices: self,
        })
    }

    /// The one with this name.
    pub fn find(&self, name: &str) -> Option<Device<'_>> {
        self.iter().find(|device| device.name() == name)
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: it came from the library, is freed once, and a `Device` borrows from `self`.
            // Devices that were opened have references of their own.
            unsafe { (self.library.functions.free_device_list)(self.list) };
        }
    }
}

/// A device of a list.
#[derive(Clone, Copy)]
pub struct Device<'a> {
    raw: *mut c::ibv_device,
    devices: &'a Devices,
}

impl Device<'_> {
    fn raw(&self) -> &c::ibv_device {
        // SAFETY: an entry of a list that lives; nothing writes what is read of it.
        unsafe { &*self.raw }
    }

    /// Its name, such as mlx5_0.
    pub fn name(&self) -> String {
        text_of(&self.raw().name)
    }

    /// Its folder below /sys/class/infiniband.
    pub fn sysfs_path(&self) -> String {
        text_of(&self.raw().ibdev_path)
    }

    /// What it is: a channel adapter, a switch.
    pub fn node_type(&self) -> c::ibv_node_type {
        self.raw().node_type
    }

    /// What it speaks: InfiniBand (RoCE too) or iWARP.
    pub fn transport_type(&self) -> c::ibv_transport_type {
        self.raw().transport_type
    }

    /// Its node's GUID, in host order.
    pub fn guid(&self) -> u64 {
        // SAFETY: a device of a list that lives.
        u64::from_be(unsafe { (self.devices.library.functions.get_device_guid)(self.raw) })
    }

    /// Opens it.
    pub fn open(&self) -> Result<Arc<Context>> {
        let library = &self.devices.library;
        let name = self.name();
        // SAFETY: a device of a list that lives.
        let raw = unsafe { (library.functions.open_device)(self.raw) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(format!("opening {name}")))?;
        library.note_made(Kind::Context);
        let context = Arc::new(Context {
            library: Arc::clone(library),
            raw,
            name,
        });
        set_nonblocking(context.raw().async_fd, &context.name)?;
        Ok(context)
    }
}

/// An open device. Everything made of it holds it open.
pub struct Context {
    pub(crate) library: Arc<Library>,
    raw: NonNull<c::ibv_context>,
    name: String,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for Context {}
// SAFETY: verbs of one context may be called by several threads at once (the manual of libibverbs).
unsafe impl Sync for Context {}

impl Context {
    /// The library it came from.
    pub fn library(&self) -> &Arc<Library> {
        &self.library
    }

    /// Its device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn raw(&self) -> &c::ibv_context {
        // SAFETY: open until Drop. Its fields that change (a mutex) are not read here.
        unsafe { self.raw.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> *mut c::ibv_context {
        self.raw.as_ptr()
    }

    /// The `verbs_context` around the context, if the library's has the member at this offset. The
    /// structure grows at its beginning, so its size says which of our members it has
    /// (`verbs_get_ctx_op` of the header).
    fn extended(&self, offset: usize) -> Option<NonNull<c::verbs_context>> {
        let is_extended = self.raw().abi_compat == usize::MAX as *mut c_void;
        if !is_extended {
            return None;
        }
        let distance = std::mem::offset_of!(c::verbs_context, context);
        // SAFETY: by `abi_compat` the library says that the context is the last member of a
        // verbs_context.
        let around = unsafe { self.raw.byte_sub(distance) }.cast::<c::verbs_context>();
        // SAFETY: `sz` stands just before the context in every version.
        let bytes = unsafe { (&raw const (*around.as_ptr()).sz).read() };
        (bytes >= size_of::<c::verbs_context>() - offset).then_some(around)
    }

    /// What the device can do. Devices and libraries that do not know the longer structure leave
    /// all but `orig_attr` zero.
    pub fn attributes(&self) -> Result<c::ibv_device_attr_ex> {
        let what = || format!("asking {} for its attributes", self.name);
        let mut attributes = c::ibv_device_attr_ex::default();
        let extended = self.extended(std::mem::offset_of!(c::verbs_context, query_device_ex));
        // SAFETY: the library's structure has this member.
        let call = extended.and_then(|around| unsafe { (*around.as_ptr()).query_device_ex });
        if let Some(call) = call {
            let bytes = size_of::<c::ibv_device_attr_ex>();
            // SAFETY: no input, and `attributes` is writable for `bytes`.
            match unsafe { call(self.as_ptr(), std::ptr::null(), &mut attributes, bytes as _) } {
                0 => return Ok(attributes),
                libc::EOPNOTSUPP | libc::ENOSYS => attributes = Default::default(),
                errno => return Err(Error::refused(what(), errno)),
            }
        }
        let old = &raw mut attributes.orig_attr;
        // SAFETY: `old` is writable.
        match unsafe { (self.library.functions.query_device)(self.as_ptr(), old) } {
            0 => Ok(attributes),
            errno => Err(Error::refused(what(), errno)),
        }
    }

    /// A port, counted from 1.
    pub fn port(&self, number: u8) -> Result<c::ibv_port_attr> {
        let mut port = c::ibv_port_attr::default();
        let extended = self.extended(std::mem::offset_of!(c::verbs_context, query_port));
        // SAFETY: the library's structure has this member.
        let call = extended.and_then(|around| unsafe { (*around.as_ptr()).query_port });
        let errno = match call {
            // SAFETY: `port` is writable for its size, which is passed.
            Some(call) => unsafe {
                call(
                    self.as_ptr(),
                    number,
                    &mut port,
                    size_of::<c::ibv_port_attr>() as _,
                )
            },
            // SAFETY: the old structure is the beginning of ours.
            None => unsafe {
                (self.library.functions.query_port)(self.as_ptr(), number, (&raw mut port).cast())
            },
        };
        match errno {
            0 => Ok(port),
            errno => Err(Error::refused(
                format!("asking {} for port {number}", self.name),
                errno,
            )),
        }
    }

    /// A GID of a port.
    pub fn gid(&self, port: u8, index: u32) -> Result<[u8; 16]> {
        let mut gid = c::ibv_gid::default();
        let index_c = c_int::try_from(index).unwrap_or(c_int::MAX);
        // SAFETY: `gid` is writable.
        let status =
            unsafe { (self.library.functions.query_gid)(self.as_ptr(), port, index_c, &mut gid) };
        if status != 0 {
            let what = format!("asking {} for GID {index} of port {port}", self.name);
            return Err(Error::last(what));
        }
        // SAFETY: all of the union is bytes.
        Ok(unsafe { gid.raw })
    }

    /// A GID of a port with its type; ENODATA if it is not set. Libraries before 2020 cannot say:
    /// EOPNOTSUPP.
    pub fn gid_entry(&self, port: u8, index: u32) -> Result<Gid> {
        let what = || format!("asking {} for GID {index} of port {port}", self.name);
        let call = self.library.functions.query_gid_ex;
        let call = call.ok_or_else(|| Error::refused(what(), libc::EOPNOTSUPP))?;
        let mut entry = c::ibv_gid_entry::default();
        let bytes = size_of::<c::ibv_gid_entry>();
        // SAFETY: `entry` is writable for `bytes`.
        match unsafe { call(self.as_ptr(), u32::from(port), index, &mut entry, 0, bytes) } {
            0 => Ok(Gid::from(&entry)),
            errno => Err(Error::refused(what(), errno.abs())),
        }
    }

    /// All GIDs that are set, of all `ports`, with their types. Libraries before 2020 cannot say:
    /// EOPNOTSUPP.
    pub fn gids(&self, ports: u8) -> Result<Vec<Gid>> {
        let what = || format!("asking {} for its GIDs", self.name);
        let call = self.library.functions.query_gid_table;
        let call = call.ok_or_else(|| Error::refused(what(), libc::EOPNOTSUPP))?;
        let mut room = 0;
        for port in 1..=ports {
            room += usize::try_from(self.port(port)?.gid_tbl_len).unwrap_or(0);
        }
        let mut entries = vec![c::ibv_gid_entry::default(); room];
        let bytes = size_of::<c::ibv_gid_entry>();
        // SAFETY: `entries` has room for `room` entries of `bytes` bytes.
        let count = unsafe {
            call(
                self.as_ptr(),
                entries.as_mut_ptr(),
                room as _,
                0,
                bytes as _,
            )
        };
        if count < 0 {
            return Err(Error::refused(
                what(),
                i32::try_from(-count).unwrap_or(libc::EIO),
            ));
        }
        entries.truncate(count as usize);
        Ok(entries.iter().map(Gid::from).collect())
    }

    /// Interrupt vectors that completion queues can be spread over.
    pub fn completion_vectors(&self) -> u32 {
        u32::try_from(self.raw().num_comp_vectors).unwrap_or(1)
    }

    /// Readable when [`poll_event`](Context::poll_event) has something.
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until Drop.
        unsafe { BorrowedFd::borrow_raw(self.raw().async_fd) }
    }

    /// The next asynchronous event, `None` if there is none now. It is acknowledged at once, so
    /// that its object may be destroyed.
    pub fn poll_event(&self) -> Result<Option<Event>> {
        let mut raw = c::ibv_async_event::default();
        // SAFETY: `raw` is writable. The descriptor does not block, see `open`.
        let status = unsafe { (self.library.functions.get_async_event)(self.as_ptr(), &mut raw) };
        if status != 0 {
            return match last_errno() {
                libc::EAGAIN | libc::EINTR => Ok(None),
                errno => Err(Error::refused(
                    format!("reading events of {}", self.name),
                    errno,
                )),
            };
        }
        let event = Event {
            kind: raw.event_type,
            subject: subject_of(&raw),
        };
        // SAFETY: it came from get_async_event and is acknowledged once.
        unsafe { (self.library.functions.ack_async_event)(&mut raw) };
        Ok(Some(event))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let close = self.library.functions.close_device;
        self.library.destroy(Kind::Context, &self.name, || {
            // SAFETY: opened once, closed once; all that was made of it held it and is gone.
            unsafe { close(self.raw.as_ptr()) }
        });
    }
}

/// An entry of the GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gid {
    /// The GID, in network order.
    pub bytes: [u8; 16],
    /// Index in its port's table.
    pub index: u32,
    /// Port, counted from 1.
    pub port: u32,
    /// InfiniBand, RoCEv1 or RoCEv2.
    pub kind: c::ibv_gid_type,
    /// The network interface that it belongs to, 0 if none.
    pub interface_index: u32,
}

impl From<&c::ibv_gid_entry> for Gid {
    fn from(entry: &c::ibv_gid_entry) -> Gid {
        Gid {
            // SAFETY: all of the union is bytes.
            bytes: unsafe { entry.gid.raw },
            index: entry.gid_index,
            port: entry.port_num,
            kind: c::ibv_gid_type(entry.gid_type),
            interface_index: entry.ndev_ifindex,
        }
    }
}

/// Something that happened to a device, asynchronously.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: c::ibv_event_type,
    /// What it happened to.
    pub subject: Subject,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The queue pair with this number.
    QueuePair(u32),
    /// The completion queue with this token.
    CompletionQueue(u64),
    /// The shared receive queue with this token.
    SharedReceiveQueue(u64),
    /// This port.
    Port(u32),
    /// The device.
    Device,
}

fn subject_of(raw: &c::ibv_async_event) -> Subject {
    use c::ibv_event_type as kind;
    match raw.event_type {
        kind::IBV_EVENT_QP_FATAL
        | kind::IBV_EVENT_QP_REQ_ERR
        | kind::IBV_EVENT_QP_ACCESS_ERR
        | kind::IBV_EVENT_COMM_EST
        | kind::IBV_EVENT_SQ_DRAINED
        | kind::IBV_EVENT_PATH_MIG
        | kind::IBV_EVENT_PATH_MIG_ERR
        | kind::IBV_EVENT_QP_LAST_WQE_REACHED => {
            // SAFETY: these kinds carry a queue pair, which lives until the event is acknowledged.
            Subject::QueuePair(unsafe { (*raw.element.qp).qp_num })
        }
        kind::IBV_EVENT_CQ_ERR => {
            // SAFETY: this kind carries a completion queue, which lives until the event is
            // acknowledged.
            Subject::CompletionQueue(unsafe { (*raw.element.cq).cq_context } as u64)
        }
        kind::IBV_EVENT_SRQ_ERR | kind::IBV_EVENT_SRQ_LIMIT_REACHED => {
            // SAFETY: these kinds carry a shared receive queue, which lives until the event is
            // acknowledged.
            Subject::SharedReceiveQueue(unsafe { (*raw.element.srq).srq_context } as u64)
        }
        kind::IBV_EVENT_PORT_ACTIVE
        | kind::IBV_EVENT_PORT_ERR
        | kind::IBV_EVENT_LID_CHANGE
        | kind::IBV_EVENT_PKEY_CHANGE
        | kind::IBV_EVENT_SM_CHANGE
        | kind::IBV_EVENT_CLIENT_REREGISTER
        | kind::IBV_EVENT_GID_CHANGE => {
            // SAFETY: these kinds carry a port's number.
            Subject::Port(unsafe { raw.element.port_num } as u32)
        }
        _ => Subject::Device,
    }
}

/// Makes a descriptor of the library answer EAGAIN instead of blocking.
pub(crate) fn set_nonblocking(fd: c_int, name: &str) -> Result<()> {
    let what = || format!("making a descriptor of {name} non-blocking");
    // SAFETY: fcntl takes any number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags < 0 {
        return Err(Error::last(what()));
    }
    // SAFETY: as above.
    let status = unsafe { libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK) };
    (status == 0)
        .then_some(())
        .ok_or_else(|| Error::last(what()))
}

/// A text in a field of fixed size.
fn text_of(field: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = field
        .iter()
        .map(|&byte| byte as u8)
        .take_while(|&byte| byte != 0)
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
