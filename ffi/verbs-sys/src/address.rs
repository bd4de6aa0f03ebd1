//! [`Route`]: how packets find a port, and [`AddressHandle`], a route made ready for datagrams.

use crate::bindings as c;
use crate::error::{Error, Result};
use crate::library::Kind;
use crate::memory::Pd;
use std::ptr::NonNull;
use std::sync::Arc;

/// How packets find a peer's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// The port of this side that they leave by, counted from 1.
    pub port: u8,
    /// The peer's GID and the index of this side's. Ethernet always needs them, InfiniBand across
    /// subnets.
    pub gid: Option<([u8; 16], u8)>,
    /// The peer's LID, on InfiniBand.
    pub lid: u16,
    /// Service level on InfiniBand, priority on Ethernet.
    pub service_level: u8,
    /// Traffic class of the IP header: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Hops that a packet may take; 0 means 64.
    pub hop_limit: u8,
    /// Flow label. RoCEv2 makes the UDP source port of it, by which switches spread flows.
    pub flow_label: u32,
}

const HOP_LIMIT: u8 = 64;

impl Route {
    pub(crate) fn to_raw(self) -> c::ibv_ah_attr {
        let mut raw = c::ibv_ah_attr {
            dlid: self.lid,
            sl: self.service_level,
            port_num: self.port,
            ..Default::default()
        };
        if let Some((gid, index)) = self.gid {
            raw.is_global = 1;
            raw.grh.dgid = c::ibv_gid { raw: gid };
            raw.grh.sgid_index = index;
            raw.grh.traffic_class = self.traffic_class;
            raw.grh.flow_label = self.flow_label;
            raw.grh.hop_limit = if self.hop_limit == 0 {
                HOP_LIMIT
            } else {
                self.hop_limit
            };
        }
        raw
    }
}

/// A route that datagrams can be posted with.
pub struct AddressHandle {
    pd: Arc<Pd>,
    raw: NonNull<c::ibv_ah>,
}

// SAFETY: verbs may be called from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: nothing changes it.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// Makes one.
    pub fn create(pd: &Arc<Pd>, route: &Route) -> Result<AddressHandle> {
        let library = &pd.context().library;
        let mut attributes = route.to_raw();
        // SAFETY: the domain lives, and `attributes` is complete.
        let raw = unsafe { (library.functions.create_ah)(pd.as_ptr(), &mut attributes) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::last(format!(
                "an address handle of {} for {route:?}",
                pd.context().name()
            ))
        })?;
        library.note_made(Kind::AddressHandle);
        Ok(AddressHandle {
            pd: Arc::clone(pd),
            raw,
        })
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(crate) fn as_ptr(&self) -> *mut c::ibv_ah {
        self.raw.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        let library = &self.pd.context().library;
        library.destroy(Kind::AddressHandle, self.pd.context().name(), || {
            // SAFETY: made once, destroyed once. Datagrams that were posted with it carry a copy or
            // fail.
            unsafe { (library.functions.destroy_ah)(self.raw.as_ptr()) }
        });
    }
}
