//! [`VerbsDevice`]: one port of one RDMA device, with what all peers share on it.

use super::asked::{self, gigabits};
use super::choose;
use super::events::judge_event;
use super::half::Half;
use super::port::Port;
use super::sysfs::{self, Tree};
use crate::config::VerbsSettings;
use crate::error::{Error, Result};
use crate::memory::{Region, RegionKind, View};
use crate::transport::PortInUse;
use crate::transport::rdma::{self, Bytes, Device, Failure, News, Offer, RECEIVES_AT_ONCE, Sizes};
use linerate_verbs_sys::raw::{
    ibv_access_flags as access, ibv_mtu, ibv_odp_caps, ibv_odp_general_caps,
    ibv_odp_transport_cap_bits as odp, ibv_qp_cap, ibv_qp_type, ibv_wc_status,
};
use linerate_verbs_sys::{
    Completion, CompletionChannel, CompletionQueue, Context, Memory, Mr, Pd, QueuePair,
    QueuePairOptions, RemoteEnd, Route, Sending,
};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Reads and atomics of one queue pair under way at once; devices have 16 or more.
const READS_MAX: i32 = 16;
/// How long a peer without a posted receive is to wait: 0.01 ms. Credits prevent it.
const NO_RECEIVE_TIMER: u8 = 1;
/// How often a post is sent again. The largest, 7, means "for ever" to Soft-RoCE.
const RETRIES: u8 = 6;

/// See the module.
pub struct VerbsDevice {
    port: Port,
    settings: VerbsSettings,
    /// Posts of this many bytes are inline.
    inline_bytes: u32,
    reads_max: u8,
    /// The device can use memory whose pages are not locked, for what is written and read here.
    pages_on_demand: bool,
    /// Whether the next completion makes an event.
    is_armed: bool,
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
    pd: Arc<Pd>,
    context: Arc<Context>,
}

impl std::fmt::Debug for VerbsDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.name(), self.port.number())
    }
}

impl VerbsDevice {
    /// Opens what peers share of a device's port.
    pub fn open(
        context: Arc<Context>,
        chosen: &choose::Rail,
        sizes: Sizes,
        token: u64,
        settings: &VerbsSettings,
    ) -> Result<VerbsDevice> {
        let name = context.name().to_string();
        let extended = context.attributes().map_err(refused)?;
        let attributes = extended.orig_attr;
        for (what, needed, most) in [
            (
                "work requests in a queue pair",
                sizes.sends.max(sizes.receives),
                attributes.max_qp_wr,
            ),
            ("completion entries", sizes.completions, attributes.max_cqe),
        ] {
            if i64::from(needed) > i64::from(most) {
                return Err(unavailable(format!(
                    "{name} has {most} {what} and this job needs {needed}, with {} slots per peer: lower LINERATE_VERBS_SLOTS, or run fewer ranks",
                    sizes.slots
                )));
            }
        }
        let state = context.port(chosen.port).map_err(refused)?;
        let gid = chosen.gid.as_ref().map(|chosen| chosen.gid.clone());
        let port = Port::new((name, chosen.port), gid, &state, settings.mtu_bytes);
        let pd = Pd::allocate(&context).map_err(refused)?;
        let channel = CompletionChannel::create(&context).map_err(refused)?;
        let queue = CompletionQueue::create(&context, sizes.completions, Some(&channel), 0, token)
            .map_err(refused)?;
        let mut device = VerbsDevice {
            port,
            settings: settings.clone(),
            inline_bytes: 0,
            reads_max: (attributes
                .max_qp_rd_atom
                .min(attributes.max_qp_init_rd_atom))
            .clamp(1, READS_MAX) as u8,
            pages_on_demand: can_page_on_demand(&extended.odp_caps),
            is_armed: false,
            channel,
            queue,
            pd,
            context,
        };
        // Devices do not say how many inline bytes they have room for: they refuse more.
        device.inline_bytes = settings.inline_bytes;
        if device.inline_bytes > 0 && device.queue_pair(sizes).is_err() {
            device.inline_bytes = 0;
        }
        Ok(device)
    }

    /// A queue pair that is ready to be joined, with all its receives.
    fn queue_pair(&self, sizes: Sizes) -> Result<QueuePair> {
        let options = QueuePairOptions {
            kind: ibv_qp_type::IBV_QPT_RC,
            send_queue: &self.queue,
            receive_queue: &self.queue,
            shared_receives: None,
            capacity: ibv_qp_cap {
                max_send_wr: sizes.sends,
                max_recv_wr: sizes.receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: self.inline_bytes,
            },
            is_all_signaled: false,
        };
        let pair = QueuePair::create(&self.pd, &options).map_err(refused)?;
        let allowed = access::IBV_ACCESS_LOCAL_WRITE
            | access::IBV_ACCESS_REMOTE_WRITE
            | access::IBV_ACCESS_REMOTE_READ
            | access::IBV_ACCESS_REMOTE_ATOMIC;
        pair.to_init(self.port.number(), allowed).map_err(refused)?;
        for _ in 0..sizes.receives / RECEIVES_AT_ONCE {
            let posted = rdma::Queue::post_receives(&pair);
            posted.map_err(|e| unavailable(format!("{}: receives: {e}", self.name())))?;
        }
        Ok(pair)
    }

    /// Registers the memory of a device, which the port's own device fetches without a processor.
    fn register_dmabuf(&self, region: &Arc<Region>, flags: access) -> Result<Mr> {
        let RegionKind::Dmabuf(fd) = region.kind() else {
            unreachable!("asked by the caller")
        };
        let (address, bytes) = (region.view().as_ptr() as u64, region.len_bytes());
        let place = (address, bytes.max(1));
        let made = Mr::register_dmabuf(&self.pd, fd.as_fd(), 0, place, flags, region.clone());
        made.map_err(|error| {
            unavailable(format!(
                "{} cannot register a dma-buf of {bytes} bytes: {error}; use memory of the host, or a device and driver that can",
                self.name()
            ))
        })
    }
}

impl Device for VerbsDevice {
    const NAME: &'static str = "verbs";
    const IS_CONNECTED: bool = true;

    type Memory = Mr;
    type Queue = QueuePair;
    type Completion = Completion;

    fn name(&self) -> &str {
        self.port.device()
    }

    fn port(&self) -> Option<PortInUse> {
        Some(PortInUse {
            device: self.name().into(),
            number: self.port.number(),
            mtu_bytes: self.port.mtu_bytes(),
            peers_mtu_bytes: self.port.peers_mtu_bytes(),
            gid_index: self.port.gid_index(),
            is_ethernet: self.port.is_ethernet(),
            inline_bytes: self.inline_bytes,
            queue_pairs: 1,
        })
    }

    fn bytes_per_second(&self) -> f64 {
        let state = self.context.port(self.port.number());
        state.map_or(0.0, |state| gigabits(&state) * 1e9 / 8.0)
    }

    fn is_copied_at_fork(&self) -> bool {
        self.context.library().is_copied_at_fork()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.channel.fd(), self.context.event_fd()]
    }

    fn stops_at_end(&self) -> bool {
        true
    }

    fn is_there(&self) -> bool {
        self.context.port(self.port.number()).is_ok()
    }

    fn is_active(&self) -> bool {
        self.port.is_active()
    }

    fn note_down(&mut self) {
        self.port.note_down();
    }

    fn refresh(&mut self) -> Option<String> {
        let (number, before) = (self.port.number(), self.port.gid_index());
        let state = self.context.port(number);
        let gids = || asked::gids(&self.context, number);
        self.port.refresh(state.ok(), gids);
        let has_changed = self.port.gid_index() != before;
        let gid = self.port.gid().filter(|_| has_changed)?;
        Some(format!("{} has GID {gid} now", self.name()))
    }

    /// Pages of a receive's memory are not worth locking where the device can do without.
    fn register(&self, view: View, region: Option<&Arc<Region>>, is_relaxed: bool) -> Result<Mr> {
        let mut flags = access::IBV_ACCESS_LOCAL_WRITE
            | access::IBV_ACCESS_REMOTE_WRITE
            | access::IBV_ACCESS_REMOTE_READ
            | access::IBV_ACCESS_REMOTE_ATOMIC;
        if is_relaxed {
            flags |= access::IBV_ACCESS_RELAXED_ORDERING;
        }
        match region {
            Some(region) if matches!(region.kind(), RegionKind::Dmabuf(_)) => {
                return self.register_dmabuf(region, flags);
            }
            None if self.pages_on_demand => flags |= access::IBV_ACCESS_ON_DEMAND,
            _ => {}
        }
        Mr::register(&self.pd, Arc::new(Bytes::new(view, region)), flags).map_err(refused)
    }

    fn open_queue(&self, sizes: Sizes, packet_number: u32) -> Result<(QueuePair, Offer)> {
        let pair = self.queue_pair(sizes)?;
        let half = Half {
            queue_pair: pair.number(),
            packet_number,
            lid: self.port.lid(),
            mtu: self.port.mtu().0 as u8,
            is_ethernet: self.port.is_ethernet(),
            reads_max: self.reads_max,
            gid: self.port.gid_bytes(),
        };
        Ok((pair, half.emit()))
    }

    fn join(
        &mut self,
        pair: &QueuePair,
        own: &Offer,
        other: &Offer,
    ) -> std::result::Result<(), String> {
        let (own, other) = (Half::parse(own), Half::parse(other));
        let port = &self.port;
        if other.is_ethernet != port.is_ethernet() {
            return Err(format!(
                "{} is {} and the peer's rail is not",
                self.name(),
                match port.is_ethernet() {
                    true => "Ethernet",
                    false => "InfiniBand",
                }
            ));
        }
        let remote = RemoteEnd {
            queue_pair: other.queue_pair,
            packet_number: other.packet_number,
            mtu: ibv_mtu(port.mtu().0.min(u32::from(other.mtu).max(1))),
            route: Route {
                port: port.number(),
                gid: port
                    .is_ethernet()
                    .then_some((other.gid, port.gid_index() as u8)),
                lid: other.lid,
                service_level: self.settings.service_level,
                traffic_class: self.settings.traffic_class,
                ..Route::default()
            },
            reads_max: self.reads_max,
            no_receive_timer: NO_RECEIVE_TIMER,
        };
        let sending = Sending {
            packet_number: own.packet_number,
            reads_max: self.reads_max.min(other.reads_max),
            timeout: self.settings.ack_timeout,
            retries: RETRIES,
            no_receive_retries: RETRIES,
        };
        let joined = pair.to_receive(&remote);
        let joined = joined.and_then(|()| pair.to_send(&sending));
        joined.map_err(|error| {
            let cause = error.to_string();
            match other_device_here(self.name(), &other.gid) {
                Some(other) if port.is_ethernet() => format!(
                    "{cause}; the peer's {other} is on this host too, and the kernel does not carry packets of one device to another one of its own: give all ranks of the host the same one (verbs:{other}), or use the router, which shares memory within a host"
                ),
                _ => cause,
            }
        })?;
        self.port.note_peer_mtu(other.mtu);
        Ok(())
    }

    #[inline]
    fn poll(&self, room: &mut [Completion]) -> std::result::Result<usize, String> {
        self.queue.poll(room).map_err(|e| e.to_string())
    }

    fn arm(&mut self) -> bool {
        while let Ok(Some(_)) = self.channel.poll_event() {
            self.is_armed = false;
        }
        if !self.is_armed {
            self.is_armed = self.queue.request_event(false).is_ok();
        }
        // A device that arms nothing is gone.
        true
    }

    fn explain(&self, completion: &Completion) -> Failure {
        let status = completion.status();
        let is_receive = rdma::Completion::is_receive(completion);
        let text = self.context.library().status_text(status);
        Failure {
            cause: format!(
                "{} of {}: queue pair {}: {text} (vendor's code {})",
                if is_receive { "a receive" } else { "a post" },
                self.name(),
                completion.queue_pair(),
                completion.vendor_error()
            ),
            is_refused: status == ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            is_path: [
                ibv_wc_status::IBV_WC_RETRY_EXC_ERR,
                ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR,
                ibv_wc_status::IBV_WC_FATAL_ERR,
            ]
            .contains(&status),
            is_consequence: completion.is_flushed(),
        }
    }

    fn poll_news(&mut self) -> Option<(News, String)> {
        loop {
            let event = self.context.poll_event().ok().flatten()?;
            let text = self.context.library().event_text(event.kind);
            if let Some(news) = judge_event(&event, self.port.number()) {
                return Some((news, format!("{}: {text}", self.name())));
            }
        }
    }
}

/// The device of this host, other than `own`, that has this GID.
fn other_device_here(own: &str, gid: &[u8; 16]) -> Option<String> {
    let has_it = |device: &sysfs::Device| {
        let mut gids = device.ports.iter().flat_map(|port| &port.gids);
        gids.any(|other| other.bytes == *gid)
    };
    let mut others = Tree::default().devices().into_iter();
    let found = others.find(|device| device.name != own && has_it(device));
    found.map(|device| device.name)
}

/// Whether reliable queue pairs may write to and read from memory that is paged in when they do.
fn can_page_on_demand(caps: &ibv_odp_caps) -> bool {
    let needed = odp::IBV_ODP_SUPPORT_WRITE | odp::IBV_ODP_SUPPORT_READ;
    caps.general_caps & u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0) != 0
        && caps.per_transport_caps.rc_odp_caps & needed.0 == needed.0
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

/// An error of the library below.
pub fn refused(error: linerate_verbs_sys::Error) -> Error {
    unavailable(error.to_string())
}

/// The transport cannot be used, for this reason.
pub fn unavailable(reason: impl Into<String>) -> Error {
    Error::Unavailable {
        transport: "verbs".into(),
        reason: reason.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_on_demand_need_both_directions() {
        let mut caps = ibv_odp_caps::default();
        assert!(!can_page_on_demand(&caps));
        caps.per_transport_caps.rc_odp_caps =
            (odp::IBV_ODP_SUPPORT_WRITE | odp::IBV_ODP_SUPPORT_READ).0;
        assert!(!can_page_on_demand(&caps), "not in general");
        caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
        assert!(can_page_on_demand(&caps));
        caps.per_transport_caps.rc_odp_caps = odp::IBV_ODP_SUPPORT_WRITE.0;
        assert!(!can_page_on_demand(&caps));
    }
}
