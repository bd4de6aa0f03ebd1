//! Queue pairs, their posts and completions, and memory of devices, as the protocol sees them.

use crate::transport::rdma::{self, Local, Operation, Place, RECEIVES_AT_ONCE};
use linerate_verbs_sys::{BATCH, Completion, Mr, QueuePair, ReceiveRequest, Segment, SendRequest};

/// The id of every receive, by which a failed one is told from a send.
const RECEIVE_ID: u64 = u64::MAX;

impl rdma::Queue for QueuePair {
    type Segment = Segment;
    type Request<'a> = SendRequest<'a>;

    const BATCH: usize = BATCH;

    fn number(&self) -> u32 {
        self.number()
    }

    fn inline_bytes_max(&self) -> u32 {
        self.inline_bytes_max()
    }

    #[inline]
    fn request<'a>(
        id: u64,
        operation: Operation,
        local: Local<'a, Segment>,
        is_signaled: bool,
    ) -> SendRequest<'a> {
        use linerate_verbs_sys::{Local as L, Operation as O};
        SendRequest {
            id,
            operation: match operation {
                Operation::Write(place, immediate) => O::Write(named(place), immediate),
                Operation::Read(place) => O::Read(named(place)),
                Operation::FetchAndAdd { place, add } => O::FetchAndAdd {
                    place: named(place),
                    add,
                },
                Operation::CompareAndSwap {
                    place,
                    compare,
                    swap,
                } => O::CompareAndSwap {
                    place: named(place),
                    compare,
                    swap,
                },
            },
            local: match local {
                Local::Empty => L::Empty,
                Local::One(segment) => L::One(segment),
                Local::Copied(segment) => L::InlineOne(segment),
                Local::Bytes(bytes) => L::Inline(bytes),
            },
            is_signaled,
            is_solicited: false,
            is_fenced: false,
        }
    }

    #[inline]
    fn signal(request: &mut SendRequest<'static>) {
        request.is_signaled = true;
    }

    #[inline]
    fn post(&self, requests: &[SendRequest<'_>]) -> std::result::Result<(), String> {
        self.post_send(requests).map_err(|error| error.to_string())
    }

    fn post_receives(&self) -> std::result::Result<(), String> {
        const REQUESTS: [ReceiveRequest<'static>; RECEIVES_AT_ONCE as usize] = {
            let segments: &[Segment] = &[];
            let id = RECEIVE_ID;
            [ReceiveRequest { id, segments }; RECEIVES_AT_ONCE as usize]
        };
        (self.post_receive(&REQUESTS)).map_err(|error| error.to_string())
    }

    fn stop(&self) -> bool {
        self.to_error().is_ok()
    }
}

/// Keys of verbs have 32 bits.
#[inline]
fn named(place: Place) -> linerate_verbs_sys::Place {
    linerate_verbs_sys::Place {
        address: place.address,
        key: place.key as u32,
    }
}

impl rdma::Memory for Mr {
    type Segment = Segment;

    fn remote_key(&self) -> u64 {
        u64::from(self.remote_key())
    }

    fn remote_address(&self) -> u64 {
        self.address()
    }

    #[inline]
    fn segment(&self, offset: u64, bytes: u64) -> Option<Segment> {
        self.segment(usize::try_from(offset).ok()?, u32::try_from(bytes).ok()?)
    }
}

impl rdma::Segment for Segment {
    #[inline]
    fn len_bytes(&self) -> u32 {
        self.len_bytes()
    }
}

impl rdma::Completion for Completion {
    #[inline]
    fn is_receive(&self) -> bool {
        self.id() == RECEIVE_ID
    }

    #[inline]
    fn id(&self) -> u64 {
        self.id()
    }

    #[inline]
    fn queue(&self) -> u32 {
        self.queue_pair()
    }

    #[inline]
    fn is_success(&self) -> bool {
        self.is_success()
    }

    #[inline]
    fn immediate(&self) -> Option<u32> {
        self.immediate()
    }
}
