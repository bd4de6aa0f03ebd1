//! [`SimDevice`]: a device of a [`DeviceWorld`].

use super::state::{Bytes, Defect, DeviceWorld, Ended, Known, Line, Own, Piece, Post, Status};
use crate::config::VerbsSettings;
use crate::error::Result;
use crate::kernel;
use crate::memory::{Region, View};
use crate::transport::rdma::device::{
    Completion, Device, Failure, Local, Memory, OFFER_BYTES, Offer, Operation, Place, Queue,
    Segment,
};
use crate::transport::rdma::sizes::{RECEIVES_AT_ONCE, Sizes};
use crate::transport::rdma::{Parts, RdmaTransport};
use crate::transport::{PortInUse, Transport};
use crate::types::Rank;
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Bytes that a post may copy.
const INLINE_BYTES: u32 = 64;

impl DeviceWorld {
    /// The transport of a rank, which finds its peers through `control`.
    pub fn transport(
        &self,
        of_rank: (Rank, u32),
        control: Box<dyn Transport>,
        settings: &VerbsSettings,
    ) -> Result<Box<dyn Transport>> {
        match self.is_ordered() {
            true => self.transport_of::<true>(of_rank, control, settings),
            false => self.transport_of::<false>(of_rank, control, settings),
        }
    }

    fn transport_of<const ORDERED: bool>(
        &self,
        of_rank: (Rank, u32),
        control: Box<dyn Transport>,
        settings: &VerbsSettings,
    ) -> Result<Box<dyn Transport>> {
        let device = SimDevice::<ORDERED> {
            world: self.clone(),
            number: of_rank.0 as usize,
            name: format!("sim{}", of_rank.0),
        };
        let sizes = Sizes::of(settings.slots, of_rank.1.saturating_sub(1));
        let parts = Parts {
            devices: vec![device],
            sizes,
            control,
        };
        let transport = RdmaTransport::new(of_rank, parts, settings, false)?;
        Ok(Box::new(transport))
    }
}

/// A device of a rank, whose queues do posts in order or in any.
#[derive(Debug)]
pub struct SimDevice<const ORDERED: bool> {
    world: DeviceWorld,
    number: usize,
    name: String,
}

/// Memory that a device knows.
#[derive(Debug)]
pub struct SimMemory {
    world: DeviceWorld,
    at: usize,
    place: Place,
    bytes: usize,
    region: Option<Arc<Region>>,
}

/// A queue to one peer.
#[derive(Debug)]
pub struct SimQueue {
    world: DeviceWorld,
    number: u32,
}

/// A post.
#[derive(Clone, Copy, Debug)]
pub struct SimRequest<'a> {
    id: u64,
    operation: Operation,
    local: Local<'a, Piece>,
    is_signaled: bool,
}

impl Segment for Piece {
    fn len_bytes(&self) -> u32 {
        self.bytes
    }
}

impl Memory for SimMemory {
    type Segment = Piece;

    fn remote_key(&self) -> u64 {
        self.place.key
    }

    fn remote_address(&self) -> u64 {
        self.place.address
    }

    fn segment(&self, offset: u64, bytes: u64) -> Option<Piece> {
        let (offset, bytes) = (usize::try_from(offset).ok()?, u32::try_from(bytes).ok()?);
        let is_inside = offset.checked_add(bytes as usize)? <= self.bytes;
        is_inside.then_some(Piece {
            at: self.at,
            offset,
            bytes,
        })
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        match state.defect {
            Some(Defect::KeepsKeys) => state.kept.extend(self.region.take()),
            _ => state.memories[self.at] = None,
        }
    }
}

impl Completion for Ended {
    fn is_receive(&self) -> bool {
        self.is_receive
    }

    fn id(&self) -> u64 {
        self.id
    }

    fn queue(&self) -> u32 {
        self.queue
    }

    fn is_success(&self) -> bool {
        self.status == Status::Done
    }

    fn immediate(&self) -> Option<u32> {
        self.immediate
    }
}

impl Queue for SimQueue {
    type Segment = Piece;
    type Request<'a> = SimRequest<'a>;

    const BATCH: usize = 8;

    fn number(&self) -> u32 {
        self.number
    }

    fn inline_bytes_max(&self) -> u32 {
        INLINE_BYTES
    }

    fn request<'a>(
        id: u64,
        operation: Operation,
        local: Local<'a, Piece>,
        is_signaled: bool,
    ) -> SimRequest<'a> {
        SimRequest {
            id,
            operation,
            local,
            is_signaled,
        }
    }

    fn signal(request: &mut SimRequest<'static>) {
        request.is_signaled = true;
    }

    fn post(&self, requests: &[SimRequest<'_>]) -> std::result::Result<(), String> {
        let mut state = self.world.lock();
        let at = self.number as usize;
        for request in requests {
            let local = match request.local {
                Local::Empty => Bytes::Copied(Vec::new()),
                Local::Bytes(bytes) => Bytes::Copied(bytes.to_vec()),
                Local::One(piece) => Bytes::Registered(piece),
                Local::Copied(piece) => {
                    let device = state.queues[at].device;
                    let Some(Own::At(view)) = state.own_bytes(device, &Bytes::Registered(piece))
                    else {
                        state.end(at, request.id, Status::Broken, None);
                        continue;
                    };
                    let mut bytes = vec![0; view.len_bytes()];
                    kernel::read(view, 0, &mut bytes);
                    Bytes::Copied(bytes)
                }
            };
            let source = match (&local, request.operation) {
                (Bytes::Registered(piece), Operation::Write(..)) if !state.is_ordered => {
                    state.source_of(state.queues[at].device, *piece)
                }
                _ => None,
            };
            let line = &mut state.queues[at];
            if line.is_stopped {
                state.end(at, request.id, Status::Flushed, None);
                continue;
            }
            line.posts.push_back(Post {
                id: request.id,
                operation: request.operation,
                local,
                is_signaled: request.is_signaled,
                source,
                is_written: Vec::new(),
            });
            assert!(line.posts.len() <= line.posts_max, "a queue overflows");
            if state.defect == Some(Defect::EndsEarly) {
                state.end(at, request.id, Status::Done, None);
            }
        }
        Ok(())
    }

    fn post_receives(&self) -> std::result::Result<(), String> {
        self.world.lock().queues[self.number as usize].receives += RECEIVES_AT_ONCE;
        Ok(())
    }

    fn stop(&self) -> bool {
        let mut state = self.world.lock();
        match state.is_ordered {
            true => state.stop(self.number as usize),
            false => state.finish(self.number as usize),
        }
        true
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        let mut state = self.world.lock();
        let is_ordered = state.is_ordered;
        let line = &mut state.queues[self.number as usize];
        // Without connected queues, posts go on.
        if is_ordered || line.peer.is_none() {
            line.is_stopped = true;
            line.posts.clear();
        }
        (line.receives, line.is_dropped) = (0, true);
        let device = line.device;
        state.forget(device, self.number);
    }
}

impl<const ORDERED: bool> Device for SimDevice<ORDERED> {
    const NAME: &'static str = "rdma";
    const IS_CONNECTED: bool = ORDERED;

    type Memory = SimMemory;
    type Queue = SimQueue;
    type Completion = Ended;

    fn name(&self) -> &str {
        &self.name
    }

    fn port(&self) -> Option<PortInUse> {
        Some(PortInUse {
            device: self.name.as_str().into(),
            number: 1,
            mtu_bytes: 4096,
            peers_mtu_bytes: None,
            gid_index: 0,
            is_ethernet: false,
            inline_bytes: INLINE_BYTES,
            queue_pairs: 1,
        })
    }

    fn bytes_per_second(&self) -> f64 {
        0.0
    }

    fn is_copied_at_fork(&self) -> bool {
        true
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn stops_at_end(&self) -> bool {
        true
    }

    fn register(&self, view: View, region: Option<&Arc<Region>>, _: bool) -> Result<SimMemory> {
        let mut state = self.world.lock();
        let at = state.memories.len();
        let place = state.name(at, view);
        state.memories.push(Some(Known {
            view,
            place,
            device: self.number,
        }));
        Ok(SimMemory {
            world: self.world.clone(),
            at,
            place,
            bytes: view.len_bytes(),
            region: region.cloned(),
        })
    }

    fn open_queue(&self, sizes: Sizes, _: u32) -> Result<(SimQueue, Offer)> {
        let mut state = self.world.lock();
        let number = state.queues.len() as u32;
        state.places = sizes.completions as usize;
        state.queues.push(Line {
            device: self.number,
            peer: None,
            posts: VecDeque::new(),
            posts_max: sizes.sends as usize,
            receives: sizes.receives,
            is_stopped: false,
            is_dropped: false,
        });
        let mut offer = [0; OFFER_BYTES];
        offer[..4].copy_from_slice(&number.to_le_bytes());
        let world = self.world.clone();
        Ok((SimQueue { world, number }, offer))
    }

    fn join(
        &mut self,
        queue: &SimQueue,
        _: &Offer,
        other: &Offer,
    ) -> std::result::Result<(), String> {
        let peer = u32::from_le_bytes([other[0], other[1], other[2], other[3]]);
        let mut state = self.world.lock();
        if peer as usize >= state.queues.len() {
            return Err(format!("there is no queue {peer}"));
        }
        state.queues[queue.number as usize].peer = Some(peer);
        Ok(())
    }

    fn poll(&self, room: &mut [Ended]) -> std::result::Result<usize, String> {
        let mut state = self.world.lock();
        state.hurry(self.number);
        let ended = &mut state.ended[self.number];
        let count = ended.len().min(room.len());
        for (place, one) in room.iter_mut().zip(ended.drain(..count)) {
            *place = one;
        }
        for (piece, sum) in room[..count].iter().filter_map(|one| one.source) {
            let now = state.source_of(self.number, piece);
            let is_there = now.is_some_and(|now| now.1 == sum);
            assert!(
                is_there,
                "the source of a write changed before its completion"
            );
        }
        Ok(count)
    }

    fn arm(&mut self) -> bool {
        true
    }

    fn explain(&self, ended: &Ended) -> Failure {
        Failure {
            cause: format!("{}: queue {}: {:?}", self.name, ended.queue, ended.status),
            is_refused: ended.status == Status::Refused,
            is_path: ended.status == Status::Broken,
            is_consequence: ended.status == Status::Flushed,
        }
    }
}
