//! Receives: the queues of queue pairs, and [`Shared`] ones.

use crate::arena::{Arena, Piece, Receive};
use crate::process::{Process, tell};
use linerate_verbs_sys::raw::{ibv_event_type, ibv_recv_wr, ibv_sge, ibv_srq};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most segments of a work request, over all profiles.
pub const SEGMENTS_MAX: usize = 32;

/// A receive that was taken, with its memory.
pub struct Taken {
    pub id: u64,
    pieces: [Piece; SEGMENTS_MAX],
    count: usize,
}

impl Taken {
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[..self.count]
    }
}

fn place_bytes(segments: u32) -> u64 {
    (size_of::<Receive>() + segments as usize * size_of::<Piece>()) as u64
}

/// Makes a queue for this number of receives. False: there is no memory.
pub fn open(arena: &Arena, index: u32, requests: u32, segments: u32, events: u64) -> bool {
    let places = requests.max(1).next_power_of_two();
    let Some(ring) = arena.allocate(places as usize * place_bytes(segments) as usize) else {
        return false;
    };
    let queue = arena.receives(index);
    queue.lock.initialise();
    queue.added.store(0, Ordering::Relaxed);
    queue.taken.store(0, Ordering::Relaxed);
    queue.capacity.store(requests, Ordering::Relaxed);
    queue.mask.store(places - 1, Ordering::Relaxed);
    queue.segments_max.store(segments, Ordering::Relaxed);
    queue.limit.store(0, Ordering::Relaxed);
    queue.ring.store(ring, Ordering::Relaxed);
    queue.events.store(events, Ordering::Relaxed);
    true
}

/// Gives the memory of a queue back.
pub fn close(arena: &Arena, index: u32) {
    let queue = arena.receives(index);
    let places = u64::from(queue.mask.load(Ordering::Relaxed)) + 1;
    let bytes = places * place_bytes(queue.segments_max.load(Ordering::Relaxed));
    arena.release(queue.ring.load(Ordering::Relaxed), bytes as usize);
}

/// Adds the receives of a list; on an error, gives the first that was not added.
///
/// # Safety
/// The list is complete.
pub unsafe fn post(
    arena: &Arena,
    index: u32,
    mut list: *mut ibv_recv_wr,
) -> Result<(), (i32, *mut ibv_recv_wr)> {
    let queue = arena.receives(index);
    let _guard = queue.lock.lock();
    let segments = queue.segments_max.load(Ordering::Relaxed);
    let (ring, mask) = (
        queue.ring.load(Ordering::Relaxed),
        u64::from(queue.mask.load(Ordering::Relaxed)),
    );
    // SAFETY: our caller promises it.
    while let Some(request) = unsafe { list.as_ref() } {
        let at = queue.added.load(Ordering::Relaxed);
        if at - queue.taken.load(Ordering::Relaxed)
            >= u64::from(queue.capacity.load(Ordering::Relaxed))
        {
            return Err((libc::ENOMEM, list));
        }
        let count = request.num_sge.max(0) as u32;
        if count > segments {
            return Err((libc::EINVAL, list));
        }
        let place = (at & mask) * place_bytes(segments);
        arena.put(
            ring,
            place,
            Receive {
                id: request.wr_id,
                segments: u64::from(count),
            },
        );
        for number in 0..count as usize {
            // SAFETY: our caller promises as many segments.
            let piece = piece_of(unsafe { &*request.sg_list.add(number) });
            let offset = place + (size_of::<Receive>() + number * size_of::<Piece>()) as u64;
            arena.put(ring, offset, piece);
        }
        queue.added.store(at + 1, Ordering::Release);
        list = request.next;
    }
    Ok(())
}

/// Takes the next receive, if there is one.
pub fn take(arena: &Arena, index: u32, events_index: Option<u32>) -> Option<Taken> {
    let queue = arena.receives(index);
    let _guard = queue.lock.lock();
    let (at, added) = (
        queue.taken.load(Ordering::Relaxed),
        queue.added.load(Ordering::Relaxed),
    );
    if at == added {
        return None;
    }
    let segments = queue.segments_max.load(Ordering::Relaxed);
    let place = (at & u64::from(queue.mask.load(Ordering::Relaxed))) * place_bytes(segments);
    let ring = queue.ring.load(Ordering::Relaxed);
    let receive: Receive = arena.get(ring, place);
    let count = (receive.segments as usize).min(SEGMENTS_MAX);
    let mut pieces = [Piece::default(); SEGMENTS_MAX];
    for (number, piece) in pieces[..count].iter_mut().enumerate() {
        let offset = place + (size_of::<Receive>() + number * size_of::<Piece>()) as u64;
        *piece = arena.get(ring, offset);
    }
    queue.taken.store(at + 1, Ordering::Release);
    let limit = queue.limit.load(Ordering::Relaxed);
    if added - (at + 1) < u64::from(limit) {
        queue.limit.store(0, Ordering::Relaxed);
        if let Some(number) = events_index {
            let kind = ibv_event_type::IBV_EVENT_SRQ_LIMIT_REACHED;
            tell(queue.events.load(Ordering::Relaxed), kind, number);
        }
    }
    Some(Taken {
        id: receive.id,
        pieces,
        count,
    })
}

/// A segment as the device keeps it.
pub fn piece_of(segment: &ibv_sge) -> Piece {
    Piece {
        address: segment.addr,
        bytes: segment.length,
        key: segment.lkey,
    }
}

/// A shared receive queue; C knows its beginning.
#[repr(C)]
pub struct Shared {
    pub base: ibv_srq,
    pub process: Arc<Process>,
    /// Among all queues of receives.
    pub index: u32,
    /// Among the shared ones.
    pub number: u32,
    /// Queue pairs that take from it.
    pub users: AtomicUsize,
}
