//! [`Pair`]: a queue pair as C knows it, and [`Core`], the rest of it.
//!
//! A request moves its bytes when it is posted, through the memory of both processes. Its
//! completions have the times at which a wire would have brought them. A request whose peer does
//! not answer, or has no receive, waits with all requests behind it. It is tried again when the
//! completion queue is polled.

use crate::arena::Entry;
use crate::channel::Queue;
use crate::faults::Fault;
use crate::moving::{Failure, carry_out, may_overtake};
use crate::network::{Peer, now};
use crate::process::{Process, tell};
use crate::receives;
use crate::request::Request;
use linerate_verbs_sys::raw::{
    ibv_event_type, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_state, ibv_qp_type,
    ibv_send_flags as flag, ibv_send_wr, ibv_wc_opcode, ibv_wc_status, ibv_wr_opcode,
};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// A queue pair. It begins with the structure that C knows.
#[repr(C)]
pub struct Pair {
    pub base: ibv_qp,
    pub core: Arc<Core>,
}

/// A queue pair.
pub struct Core {
    pub process: Arc<Process>,
    pub number: u32,
    pub kind: ibv_qp_type,
    pub domain: u32,
    pub device: u32,
    pub capacity: ibv_qp_cap,
    pub is_all_signaled: bool,
    pub queues: [*mut Queue; 2],
    /// The number of the shared queue, if it takes receives from one.
    pub shared: Option<u32>,
    pub receives: u32,
    /// Where its device's events go.
    pub events: u64,
    /// As its owner knows it; peers may have brought it down already.
    state: AtomicU32,
    sending: Mutex<Sending>,
    /// Requests up to this number have ended, by the completions that were polled.
    retired: Arc<AtomicU64>,
}

// SAFETY: the queues live as long as the pair: destroying one that is used is refused.
unsafe impl Send for Core {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for Core {}

#[derive(Default)]
pub struct Sending {
    pub attributes: ibv_qp_attr,
    pub peer: Option<Arc<Peer>>,
    posted: u64,
    /// When the last completion is there: no later one is there before it.
    last_due: u64,
    /// What waits for the peer, in order.
    waiting: VecDeque<Request>,
    stall: Option<Stall>,
    /// Requests arrive, and their acknowledgements do not come back.
    is_deaf: bool,
}

/// Since when the first waiting request has been tried, and why it waits.
struct Stall {
    since: u64,
    failure: Failure,
    /// Not tried before this.
    next: u64,
    pause: u64,
}

/// A peer is asked again after this time, and after twice as long each time.
const PAUSES_NS: [u64; 2] = [2_000, 1_000_000];

impl Core {
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        process: &Arc<Process>,
        (number, kind, domain, device): (u32, ibv_qp_type, u32, u32),
        capacity: ibv_qp_cap,
        is_all_signaled: bool,
        queues: [*mut Queue; 2],
        (shared, receives): (Option<u32>, u32),
        events: u64,
    ) -> Core {
        let entry = process.arena().pair(number);
        entry.lock.initialise();
        // SAFETY: the queues live.
        let queue = unsafe { (*queues[1]).index };
        for (word, value) in [
            (&entry.state, ibv_qp_state::IBV_QPS_RESET.0),
            (&entry.kind, kind.0),
            (&entry.domain, domain),
            (&entry.access, 0),
            (&entry.datagram_key, 0),
            (&entry.peer, 0),
            (&entry.device, device),
            (&entry.receives, receives),
            (&entry.queue, queue),
            (&entry.cause, 0),
            (&entry.shared, shared.unwrap_or(0)),
        ] {
            word.store(value, Ordering::Relaxed);
        }
        entry.number.store(number, Ordering::Release);
        Core {
            process: process.clone(),
            number,
            kind,
            domain,
            device,
            capacity,
            is_all_signaled,
            queues,
            shared,
            receives,
            events,
            state: AtomicU32::new(ibv_qp_state::IBV_QPS_RESET.0),
            sending: Mutex::default(),
            retired: Arc::default(),
        }
    }

    pub fn state(&self) -> ibv_qp_state {
        self.process.notice_failures();
        ibv_qp_state(self.state.load(Ordering::Relaxed))
    }

    pub fn attributes(&self) -> ibv_qp_attr {
        self.sending.lock().unwrap().attributes
    }

    /// Returns when everything has ended that was moving bytes for it.
    pub fn wait_until_idle(&self) {
        drop(self.sending.lock().unwrap());
        drop(self.process.arena().pair(self.number).lock.lock());
    }

    /// Changes its state, and the attributes of its next state.
    pub fn change(&self, state: ibv_qp_state, attributes: ibv_qp_attr) {
        let entry = self.process.arena().pair(self.number);
        let mut sending = self.sending.lock().unwrap();
        {
            let _guard = entry.lock.lock();
            entry
                .access
                .store(attributes.qp_access_flags, Ordering::Relaxed);
            entry.datagram_key.store(attributes.qkey, Ordering::Relaxed);
            entry.peer.store(attributes.dest_qp_num, Ordering::Relaxed);
            entry.state.store(state.0, Ordering::Release);
        }
        self.state.store(state.0, Ordering::Relaxed);
        sending.attributes = attributes;
        sending.attributes.qp_state = state;
        match state {
            ibv_qp_state::IBV_QPS_RESET => {
                sending.waiting.clear();
                sending.stall = None;
                sending.is_deaf = false;
                sending.peer = None;
                sending.posted = 0;
                self.retired.store(0, Ordering::Relaxed);
                entry.is_taken.store(0, Ordering::Relaxed);
                if self.shared.is_none() {
                    while receives::take(self.process.arena(), self.receives, None).is_some() {}
                }
                drop(sending);
                self.forget();
            }
            ibv_qp_state::IBV_QPS_ERR => self.flush(&mut sending),
            _ => {}
        }
    }

    /// The queues forget what they have of it.
    pub fn forget(&self) {
        for queue in self.queues {
            // SAFETY: the queues live.
            unsafe { &*queue }.purge(self.number);
        }
    }

    /// A peer has brought it down, for this reason.
    pub fn fail_as_told(&self, cause: ibv_event_type) {
        let mut sending = self.sending.lock().unwrap();
        if self
            .state
            .swap(ibv_qp_state::IBV_QPS_ERR.0, Ordering::Relaxed)
            == ibv_qp_state::IBV_QPS_ERR.0
        {
            return;
        }
        self.flush(&mut sending);
        tell(self.events, cause, self.number);
    }

    /// Everything that has not ended ends as flushed.
    fn flush(&self, sending: &mut Sending) {
        sending.stall = None;
        for request in std::mem::take(&mut sending.waiting) {
            self.complete(sending, &request, ibv_wc_status::IBV_WC_WR_FLUSH_ERR, 0, 0);
        }
        match self.shared {
            Some(_) => {
                let kind = ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED;
                tell(self.events, kind, self.number);
            }
            None => self.flush_receives(),
        }
    }

    /// Also the receive that a peer had taken whose process was killed: nobody moves bytes now.
    fn flush_receives(&self) {
        let arena = self.process.arena();
        let pair = arena.pair(self.number);
        let is_taken = pair.is_taken.swap(0, Ordering::Acquire) == 1;
        let lost = is_taken.then(|| pair.taken.load(Ordering::Relaxed));
        let left = || Some(receives::take(arena, self.receives, None)?.id);
        for id in lost.into_iter().chain(std::iter::from_fn(left)) {
            let entry = Entry {
                id,
                status: ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0,
                opcode: ibv_wc_opcode::IBV_WC_RECV.0,
                pair: self.number,
                ..Entry::default()
            };
            // SAFETY: the queues live.
            unsafe { &*self.queues[1] }.add_last(entry);
        }
    }

    /// Posts receives to its own queue.
    ///
    /// # Safety
    /// As [`receives::post`].
    pub unsafe fn post_receives(
        &self,
        list: *mut linerate_verbs_sys::raw::ibv_recv_wr,
    ) -> Result<(), (i32, *mut linerate_verbs_sys::raw::ibv_recv_wr)> {
        if self.shared.is_some()
            || self.state.load(Ordering::Relaxed) == ibv_qp_state::IBV_QPS_RESET.0
        {
            return Err((libc::EINVAL, list));
        }
        if self.process.port(self.device).is_gone() {
            return Err((libc::EIO, list));
        }
        // SAFETY: our caller promises it.
        unsafe { receives::post(self.process.arena(), self.receives, list) }?;
        if self.state.load(Ordering::Relaxed) == ibv_qp_state::IBV_QPS_ERR.0 {
            self.flush_receives();
        }
        Ok(())
    }

    /// Posts the requests of a list; on an error, gives the first that was not posted.
    ///
    /// # Safety
    /// The list is complete, and its memory is readable where it is inline.
    pub unsafe fn post(
        self: &Arc<Core>,
        mut list: *mut ibv_send_wr,
    ) -> Result<(), (i32, *mut ibv_send_wr)> {
        self.process.notice_failures();
        let mut sending = self.sending.lock().unwrap();
        // SAFETY: our caller promises it.
        while let Some(raw) = unsafe { list.as_ref() } {
            let state = ibv_qp_state(self.state.load(Ordering::Relaxed));
            let is_ready = [
                ibv_qp_state::IBV_QPS_RTS,
                ibv_qp_state::IBV_QPS_SQD,
                ibv_qp_state::IBV_QPS_ERR,
            ]
            .contains(&state);
            let used = sending.posted - self.retired.load(Ordering::Relaxed).min(sending.posted);
            let refusal = match raw.num_sge.max(0) as u32 > self.capacity.max_send_sge.max(1) {
                true => libc::EINVAL,
                false if !is_ready => libc::EINVAL,
                false if used >= u64::from(self.capacity.max_send_wr) => libc::ENOMEM,
                false => 0,
            };
            if refusal != 0 {
                return Err((refusal, list));
            }
            // SAFETY: our caller promises it.
            let request = unsafe { Request::of(raw, self.kind, self.capacity.max_inline_data) };
            let mut request = request.map_err(|errno| (errno, list))?;
            if self.process.settings.profile.is_datagrams
                && request.is_remote()
                && (request.is_inline() || request.segments_count() > 1)
            {
                return Err((libc::EINVAL, list));
            }
            request.fault = self.process.strike(self.device);
            if self.process.port(self.device).is_gone() {
                return Err((libc::EIO, list));
            }
            sending.posted += 1;
            request.number = sending.posted;
            request.lands_at = self.process.faults.landing_time();
            match (state, sending.waiting.is_empty(), request.lands_at) {
                (ibv_qp_state::IBV_QPS_ERR, ..) => self.complete(
                    &mut sending,
                    &request,
                    ibv_wc_status::IBV_WC_WR_FLUSH_ERR,
                    0,
                    0,
                ),
                (_, true, 0) => self.try_one(&mut sending, request, true),
                (_, is_first, _) => {
                    sending.waiting.push_back(request);
                    if is_first {
                        // SAFETY: the queues live.
                        unsafe { &*self.queues[0] }.note_stalled(self.clone(), true);
                    }
                }
            }
            self.carry_ahead(&mut sending);
            list = raw.next;
        }
        Ok(())
    }

    /// Tries what waits again.
    pub fn advance(self: &Arc<Core>) {
        if self.process.port(self.device).is_gone() {
            return;
        }
        let mut sending = self.sending.lock().unwrap();
        if sending
            .stall
            .as_ref()
            .is_some_and(|stall| now() < stall.next)
        {
            drop(sending);
            // SAFETY: the queues live.
            unsafe { &*self.queues[0] }.note_stalled(self.clone(), false);
            return;
        }
        self.carry_ahead(&mut sending);
        while let Some(request) = self.take_due(&mut sending) {
            let count = sending.waiting.len();
            self.try_one(&mut sending, request, false);
            if sending.waiting.len() > count {
                break;
            }
        }
        self.carry_ahead(&mut sending);
        if sending.stall.is_none() && !sending.waiting.is_empty() {
            // SAFETY: the queues live.
            unsafe { &*self.queues[0] }.note_stalled(self.clone(), false);
        }
    }

    /// Carries out what need not wait for its turn: requests behind a lost acknowledgement, and
    /// those that may overtake others.
    fn carry_ahead(&self, sending: &mut Sending) {
        if !sending.is_deaf && !self.process.faults.plan.is_landing_late() {
            return;
        }
        let (time, mut waits) = (now(), false);
        let mut waiting = std::mem::take(&mut sending.waiting);
        for request in &mut waiting {
            match request.carried {
                Some(Ok(_)) => continue,
                Some(Err(_)) => break,
                None => {}
            }
            let may_pass = may_overtake(self, sending, request);
            if (may_pass || !waits) && (sending.is_deaf || request.lands_at <= time) {
                let carried = carry_out(self, sending, request);
                let is_over = matches!(carried, Ok(_) | Err(Failure::Over(_)));
                request.carried = is_over.then_some(carried);
            }
            match request.carried {
                Some(Ok(_)) => {}
                None if may_pass => waits = true,
                _ => break,
            }
        }
        sending.waiting = waiting;
    }

    /// The next request whose turn it is, if it can be carried out now.
    fn take_due(&self, sending: &mut Sending) -> Option<Request> {
        let time = now();
        let is_due = |request: &Request| request.carried.is_some() || request.lands_at <= time;
        let at = match self.process.settings.profile.is_datagrams {
            true => sending.waiting.iter().position(is_due)?,
            false => sending.waiting.front().is_some_and(is_due).then_some(0)?,
        };
        sending.waiting.remove(at)
    }

    /// Carries a request out, or puts it back in front of what waits.
    fn try_one(self: &Arc<Core>, sending: &mut Sending, mut request: Request, is_new: bool) {
        let carried = request.carried.take();
        let carried = carried.unwrap_or_else(|| carry_out(self, sending, &request));
        let failure = match carried {
            Ok(_) if sending.is_deaf || request.fault == Some(Fault::Lose) => {
                (request.carried, sending.is_deaf) = (Some(carried), true);
                Failure::NoAnswer
            }
            Ok((bytes, due)) => {
                sending.stall = None;
                return self.complete(sending, &request, ibv_wc_status::IBV_WC_SUCCESS, bytes, due);
            }
            Err(failure) => failure,
        };
        let time = now();
        let stall = sending
            .stall
            .take()
            .filter(|stall| stall.failure == failure && !is_new);
        let stall = stall.unwrap_or(Stall {
            since: time,
            failure,
            next: 0,
            pause: PAUSES_NS[0],
        });
        match failure.deadline(stall.since, &sending.attributes) {
            Some(deadline) if deadline <= time => {
                self.complete(sending, &request, failure.status(), 0, 0);
                self.fail(sending, failure);
            }
            _ => {
                sending.stall = Some(Stall {
                    next: time + stall.pause,
                    pause: (2 * stall.pause).min(PAUSES_NS[1]),
                    ..stall
                });
                sending.waiting.push_front(request);
                // SAFETY: the queues live.
                unsafe { &*self.queues[0] }.note_stalled(self.clone(), is_new);
            }
        }
    }

    /// Brings it down after an error of a request of its own.
    fn fail(&self, sending: &mut Sending, failure: Failure) {
        let entry = self.process.arena().pair(self.number);
        {
            let _guard = entry.lock.lock();
            entry
                .state
                .store(ibv_qp_state::IBV_QPS_ERR.0, Ordering::Release);
        }
        self.state
            .store(ibv_qp_state::IBV_QPS_ERR.0, Ordering::Relaxed);
        sending.attributes.qp_state = ibv_qp_state::IBV_QPS_ERR;
        self.flush(sending);
        if failure == Failure::Over(ibv_wc_status::IBV_WC_LOC_QP_OP_ERR) {
            tell(self.events, ibv_event_type::IBV_EVENT_QP_FATAL, self.number);
        }
    }

    fn complete(
        &self,
        sending: &mut Sending,
        request: &Request,
        status: ibv_wc_status,
        bytes: u32,
        due: u64,
    ) {
        let is_success = status == ibv_wc_status::IBV_WC_SUCCESS;
        let is_wanted = self.is_all_signaled || request.flags & flag::IBV_SEND_SIGNALED.0 != 0;
        if is_success && !is_wanted {
            return;
        }
        let opcode = match request.opcode {
            ibv_wr_opcode::IBV_WR_SEND | ibv_wr_opcode::IBV_WR_SEND_WITH_IMM => {
                ibv_wc_opcode::IBV_WC_SEND
            }
            ibv_wr_opcode::IBV_WR_RDMA_READ => ibv_wc_opcode::IBV_WC_RDMA_READ,
            ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP => ibv_wc_opcode::IBV_WC_COMP_SWAP,
            ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_wc_opcode::IBV_WC_FETCH_ADD,
            _ => ibv_wc_opcode::IBV_WC_RDMA_WRITE,
        };
        sending.last_due = sending.last_due.max(due);
        let entry = Entry {
            due: sending.last_due,
            id: request.id,
            status: status.0,
            opcode: opcode.0,
            bytes,
            pair: self.number,
            ..Entry::default()
        };
        // SAFETY: the queues live.
        unsafe { &*self.queues[0] }.add_own(entry, (self.retired.clone(), request.number));
    }
}
