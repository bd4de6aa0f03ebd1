//! What the asynchronous events of a device mean. The functions are pure; `mod.rs` acts on what
//! they say.
//!
//! Soft-RoCE (Linux 6.1) raises events of ports and of completion queues that overflow, and none of
//! queue pairs: for these the tests have recorded ones.

use linerate_verbs_sys::raw::ibv_event_type as kind;
use linerate_verbs_sys::{Event, Subject};

/// What has happened to a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// Its port carries no packets.
    PortDown,
    /// Its port carries packets again.
    PortBack,
    /// Its port may have another address.
    OtherAddress,
    /// Nothing works on it any more.
    DeviceGone,
    /// The queue pair with this number is in error.
    PairFailed(u32),
    /// Nothing that concerns it.
    Nothing,
}

/// What an event says of the rail on this port of its device.
pub fn judge_event(event: &Event, port: u8) -> News {
    let is_own_port = event.subject == Subject::Port(u32::from(port));
    match event.kind {
        kind::IBV_EVENT_PORT_ERR if is_own_port => News::PortDown,
        kind::IBV_EVENT_PORT_ACTIVE if is_own_port => News::PortBack,
        kind::IBV_EVENT_GID_CHANGE if is_own_port => News::OtherAddress,
        kind::IBV_EVENT_DEVICE_FATAL | kind::IBV_EVENT_CQ_ERR | kind::IBV_EVENT_SRQ_ERR => {
            News::DeviceGone
        }
        kind::IBV_EVENT_QP_FATAL | kind::IBV_EVENT_QP_REQ_ERR | kind::IBV_EVENT_QP_ACCESS_ERR => {
            match event.subject {
                Subject::QueuePair(number) => News::PairFailed(number),
                _ => News::Nothing,
            }
        }
        _ => News::Nothing,
    }
}
