//! What the asynchronous events of a device mean. The function is pure; the protocol acts on what
//! it says.
//!
//! Soft-RoCE (Linux 6.1) raises events of ports and of completion queues that overflow, and none of
//! queue pairs: for these the tests have recorded ones.

use crate::transport::rdma::News;
use linerate_verbs_sys::raw::ibv_event_type as kind;
use linerate_verbs_sys::{Event, Subject};

/// What an event says of the rail on this port of its device; none: nothing that concerns it.
pub fn judge_event(event: &Event, port: u8) -> Option<News> {
    let is_own_port = event.subject == Subject::Port(u32::from(port));
    Some(match event.kind {
        kind::IBV_EVENT_PORT_ERR if is_own_port => News::Down,
        kind::IBV_EVENT_PORT_ACTIVE if is_own_port => News::Back,
        kind::IBV_EVENT_GID_CHANGE if is_own_port => News::OtherAddress,
        kind::IBV_EVENT_DEVICE_FATAL | kind::IBV_EVENT_CQ_ERR | kind::IBV_EVENT_SRQ_ERR => {
            News::Gone
        }
        kind::IBV_EVENT_QP_FATAL | kind::IBV_EVENT_QP_REQ_ERR | kind::IBV_EVENT_QP_ACCESS_ERR => {
            match event.subject {
                Subject::QueuePair(number) => News::QueueFailed(number),
                _ => return None,
            }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::judge_event;
    use crate::transport::rdma::News;
    use linerate_verbs_sys::raw::ibv_event_type as Kind;
    use linerate_verbs_sys::{Event, Subject};

    fn of(kind: Kind, subject: Subject) -> Event {
        Event { kind, subject }
    }

    #[test]
    fn an_event_means_what_it_says_of_this_port_and_of_queue_pairs() {
        let pair = Subject::QueuePair(17);
        for (event, news) in [
            (
                of(Kind::IBV_EVENT_QP_FATAL, pair),
                Some(News::QueueFailed(17)),
            ),
            (
                of(Kind::IBV_EVENT_QP_REQ_ERR, pair),
                Some(News::QueueFailed(17)),
            ),
            (
                of(Kind::IBV_EVENT_QP_ACCESS_ERR, pair),
                Some(News::QueueFailed(17)),
            ),
            (of(Kind::IBV_EVENT_COMM_EST, pair), None),
            (of(Kind::IBV_EVENT_SQ_DRAINED, pair), None),
            (
                of(Kind::IBV_EVENT_PORT_ERR, Subject::Port(2)),
                Some(News::Down),
            ),
            (of(Kind::IBV_EVENT_PORT_ERR, Subject::Port(1)), None),
            (
                of(Kind::IBV_EVENT_PORT_ACTIVE, Subject::Port(2)),
                Some(News::Back),
            ),
            (of(Kind::IBV_EVENT_PORT_ACTIVE, Subject::Port(1)), None),
            (
                of(Kind::IBV_EVENT_GID_CHANGE, Subject::Port(2)),
                Some(News::OtherAddress),
            ),
            (
                of(Kind::IBV_EVENT_DEVICE_FATAL, Subject::Device),
                Some(News::Gone),
            ),
            (
                of(Kind::IBV_EVENT_CQ_ERR, Subject::CompletionQueue(0)),
                Some(News::Gone),
            ),
            (
                of(Kind::IBV_EVENT_SRQ_ERR, Subject::SharedReceiveQueue(0)),
                Some(News::Gone),
            ),
        ] {
            assert_eq!(judge_event(&event, 2), news, "{event:?}");
        }
    }
}
