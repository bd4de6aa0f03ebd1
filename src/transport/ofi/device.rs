//! [`OfiDevice`]: one domain of a libfabric provider, with the endpoint that reaches all peers.

use super::errors::{refused, unavailable};
use super::names;
use super::offer::{Half, digest};
use super::queue::{Ended, Lanes, OfiMemory, OfiQueue};
use super::select;
use crate::error::Result;
use crate::memory::{Region, RegionKind, View};
use crate::transport::PortInUse;
use crate::transport::rdma::{Bytes, Completion, Device, Failure, Offer, Queue, Sizes};
use linerate_fabric_sys as fabric;
use linerate_fabric_sys::raw::{FI_READ, FI_REMOTE_READ, FI_REMOTE_WRITE, FI_RX_CQ_DATA, FI_WRITE};
use linerate_fabric_sys::{
    AddressVector, CompletionQueue, Domain, Endpoint, EndpointOptions, Info, Memory, Mr, Version,
    Wait,
};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// See the module.
pub struct OfiDevice {
    name: String,
    domain: Arc<Domain>,
    lanes: Arc<Lanes>,
    version: Version,
    /// What peers must have in common with it.
    fabric: u32,
    bytes_per_second: f64,
    is_write_emulated: bool,
    /// The provider sends again what was lost when it is polled, and wakes nobody for that.
    has_timers: bool,
}

impl std::fmt::Debug for OfiDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let waits = match self.lanes.queue().descriptor() {
            Some(_) if !self.has_timers => "wakes sleepers",
            _ => "is polled",
        };
        write!(
            f,
            "{}, fabric {}, libfabric {}, {waits}",
            self.name,
            self.domain.info().fabric_name(),
            self.version
        )
    }
}

impl OfiDevice {
    /// Opens a domain, for posts of up to this many bytes.
    pub fn open(found: &select::Found, sizes: Sizes, post_bytes: u32) -> Result<OfiDevice> {
        let info = &found.info;
        let fabric = fabric::Fabric::open(info).map_err(refused)?;
        let domain = Domain::open(&fabric, info).map_err(refused)?;
        let peers = (sizes.completions / (sizes.receives + sizes.sends).max(1)) as usize;
        let receives = match info.mode() & FI_RX_CQ_DATA {
            0 => None,
            _ => Some((sizes.receives as usize * peers.max(1)).min(info.receives_max())),
        };
        let queue = open_queue(&domain, sizes, receives)?;
        let addresses = AddressVector::open(&domain, peers).map_err(refused)?;
        let options = EndpointOptions {
            transmit_queue: &queue,
            receive_queue: &queue,
            addresses: &addresses,
            is_cuda_permitted: Some(false),
        };
        let endpoint = Endpoint::open(&domain, &options).map_err(refused)?;
        let name = domain.name().to_owned();
        let is_write_emulated = endpoint.is_write_emulated().map_err(refused)?;
        let longest = endpoint.rma_bytes_max().map_err(refused)?;
        let longest = longest.unwrap_or(usize::MAX).min(info.message_bytes_max());
        if longest < post_bytes as usize {
            return Err(unavailable(format!(
                "{name} writes at most {longest} bytes at once: lower LINERATE_VERBS_CHUNK_BYTES, which is {post_bytes}"
            )));
        }
        let lanes = Lanes::new(endpoint, queue, receives.unwrap_or(0)).map_err(refused)?;
        let nic = info.nic().and_then(|nic| nic.link_bits_per_s);
        Ok(OfiDevice {
            name,
            lanes: Arc::new(lanes),
            version: found.version,
            fabric: common(info),
            bytes_per_second: nic.map_or(0.0, |bits| bits as f64 / 8.0),
            is_write_emulated: is_write_emulated.unwrap_or(false),
            has_timers: info.provider_name().ends_with("ofi_rxd"),
            domain,
        })
    }

    /// Whether processors move its bytes.
    pub fn is_software(&self) -> bool {
        select::is_software(&self.domain.info().provider_name())
    }

    /// Whether the peer's processor does what is written.
    pub fn is_write_emulated(&self) -> bool {
        self.is_write_emulated
    }
}

/// A completion queue for posts to all peers and what they write, with a descriptor if it can have
/// one. What is posted keeps its context until its completion is polled, and for good where a peer
/// has died; so contexts are twice the posts that the endpoint takes. Where writes take receives,
/// nothing completes without a context.
fn open_queue(
    domain: &Arc<Domain>,
    sizes: Sizes,
    receives: Option<usize>,
) -> Result<Arc<CompletionQueue>> {
    let all = sizes.completions as usize;
    let posts = domain.info().transmits_max().saturating_mul(2);
    let contexts = posts.min(2 * all) + receives.unwrap_or(0);
    let entries = receives.map_or(all, |_| contexts);
    let contexts = u32::try_from(contexts).unwrap_or(u32::MAX);
    let with = |wait| CompletionQueue::open(domain, entries, contexts, wait);
    let opened = with(Wait::Descriptor).or_else(|_| with(Wait::Poll));
    opened.map_err(refused)
}

/// What both sides must have in common: the provider, on EFA also the fabric, and the host where a
/// provider reaches no other one.
fn common(info: &Info) -> u32 {
    let provider = info.provider_name();
    let fabric = match provider.as_str() {
        "efa" => info.fabric_name(),
        _ => String::new(),
    };
    let host = match select::is_of_one_host(&provider) {
        true => std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
        false => String::new(),
    };
    digest(&[&provider, &fabric, &host])
}

impl Drop for OfiDevice {
    /// Peers that were killed could not remove what they had.
    fn drop(&mut self) {
        if select::is_of_one_host(&self.domain.info().provider_name()) {
            names::remove_left();
        }
    }
}

impl Device for OfiDevice {
    const NAME: &'static str = "ofi";
    const IS_CONNECTED: bool = false;

    type Memory = OfiMemory;
    type Queue = OfiQueue;
    type Completion = Ended;

    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> Option<PortInUse> {
        None
    }

    fn bytes_per_second(&self) -> f64 {
        self.bytes_per_second
    }

    /// What a device reads is locked, and the kernel may leave it out of a forked child.
    fn is_copied_at_fork(&self) -> bool {
        self.is_software()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.lanes.queue().descriptor().into_iter().collect()
    }

    fn stops_at_end(&self) -> bool {
        self.domain.is_checked_by_device()
    }

    fn register(&self, view: View, region: Option<&Arc<Region>>, _: bool) -> Result<OfiMemory> {
        if region.is_some_and(|region| matches!(region.kind(), RegionKind::Dmabuf(_))) {
            return Err(unavailable(format!(
                "{} is not given the memory of devices: use memory of the host, or verbs",
                self.name
            )));
        }
        let access = FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
        let (bytes, endpoint) = (Bytes::new(view, region), self.lanes.endpoint());
        let made = Mr::register(&self.domain, Arc::new(bytes), access, Some(endpoint));
        Ok(self.lanes.add_memory(made.map_err(refused)?))
    }

    fn open_queue(&self, _: Sizes, _: u32) -> Result<(OfiQueue, Offer)> {
        let half = Half {
            version: self.version,
            fabric: self.fabric,
            name: self.lanes.endpoint().name().map_err(refused)?,
        };
        let offer = half.emit().ok_or_else(|| {
            unavailable(format!(
                "an endpoint of {} has a name of {} bytes, which is too long",
                self.name,
                half.name.len()
            ))
        })?;
        Ok((self.lanes.add_queue(), offer))
    }

    fn join(
        &mut self,
        queue: &OfiQueue,
        _: &Offer,
        other: &Offer,
    ) -> std::result::Result<(), String> {
        let half = Half::parse(other)?;
        if half.fabric != self.fabric {
            let provider = self.domain.info().provider_name();
            let what = match select::is_of_one_host(&provider) {
                true => "host, which this provider does not leave",
                false => "fabric",
            };
            return Err(format!(
                "it does not use {provider} on the same {what}: give all ranks the same --transport"
            ));
        }
        if half.version != self.version {
            return Err(format!(
                "it has libfabric {} and this rank {}: install the same on all hosts",
                half.version, self.version
            ));
        }
        let peer = self.lanes.endpoint().insert(&half.name);
        let peer = peer.map_err(|error| error.to_string())?;
        self.lanes.join(queue.number(), peer);
        Ok(())
    }

    #[inline]
    fn poll(&self, room: &mut [Ended]) -> std::result::Result<usize, String> {
        self.lanes.poll(room)
    }

    fn arm(&mut self) -> bool {
        let queue = self.lanes.queue();
        let has_descriptor = queue.descriptor().is_some() && !self.has_timers;
        has_descriptor && queue.may_sleep().unwrap_or(false)
    }

    fn explain(&self, ended: &Ended) -> Failure {
        Failure {
            cause: match ended.failure() {
                Some(text) => text.to_owned(),
                None => format!("{}: post {}", self.name, ended.id()),
            },
            // The owner of memory says what has become of it, and one endpoint reaches all peers.
            is_refused: false,
            is_path: false,
            is_consequence: ended.is_stopped(),
        }
    }
}

// SAFETY: as `Bytes` says of its address and length.
unsafe impl Memory for Bytes {
    fn address(&self) -> *mut u8 {
        self.address()
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes()
    }
}
