//! [`Queue`] and [`Channel`]: completions, and waiting for them.
//!
//! A completion has a time at which it is there. Those that peers leave lie in the ring of the
//! queue's [`arena::Queue`](crate::arena::Queue) until the owner fetches them. Then they wait with
//! the owner's, ordered by time.

use crate::arena::{Arena, Entry};
use crate::faults::Random;
use crate::network::now;
use crate::pair::Core;
use crate::process::{Process, tell};
use crate::socket;
use crate::waker::Waker;
use linerate_verbs_sys::raw::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_event_type, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};
use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BinaryHeap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// How long a sleeping process waits until it tries a peer again that has not answered.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// A completion queue. It begins with the structure that C knows.
#[repr(C)]
pub struct Queue {
    pub base: ibv_cq,
    pub process: Arc<Process>,
    pub index: u32,
    device: u32,
    /// Where its device's events go.
    pub events: u64,
    inner: Mutex<Inner>,
    /// Entries of `inner`, so that a look at an empty queue takes no lock.
    waiting: AtomicUsize,
    /// Queue pairs that use it.
    pub users: AtomicUsize,
    /// Queue pairs whose peer has not answered yet.
    stalled: Mutex<Vec<Arc<Core>>>,
    has_stalled: AtomicBool,
    /// The event of its overrun was sent.
    is_over: AtomicBool,
}

#[derive(Default)]
struct Inner {
    heap: BinaryHeap<Waiting>,
    next: u64,
    armed: Option<Armed>,
    late: Late,
}

/// An event was asked for, of a completion that is there after this point.
#[derive(Clone, Copy)]
struct Armed {
    solicited_only: bool,
    order: u64,
    time: u64,
}

struct Waiting {
    entry: Entry,
    order: u64,
    /// Of a send: when it is polled, the requests of its queue pair up to this number have ended.
    sent: Option<(Arc<AtomicU64>, u64)>,
}

impl Waiting {
    fn key(&self) -> (u64, u64) {
        (self.entry.due, self.order)
    }
}
impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    /// The earliest is the greatest, which a heap gives first.
    fn cmp(&self, other: &Self) -> Order {
        other.key().cmp(&self.key())
    }
}

/// Leaves a completion for another process, or another thread of this one. False: the queue is
/// full, and broken from now on.
pub fn add(arena: &Arena, index: u32, entry: &Entry) -> bool {
    let queue = arena.queue(index);
    let guard = queue.lock.lock();
    let is_full = queue.used.fetch_add(1, Ordering::Relaxed)
        >= u64::from(queue.capacity.load(Ordering::Relaxed));
    if is_full {
        queue.used.fetch_sub(1, Ordering::Relaxed);
        queue.is_overrun.store(1, Ordering::Release);
    } else {
        let at = queue.added.load(Ordering::Relaxed);
        let place =
            (at & u64::from(queue.mask.load(Ordering::Relaxed))) * size_of::<Entry>() as u64;
        arena.put(queue.ring.load(Ordering::Relaxed), place, *entry);
        queue.added.store(at + 1, Ordering::SeqCst);
    }
    drop(guard);
    let is_wanted = match queue.armed.load(Ordering::SeqCst) {
        0 => false,
        2 => entry.is_solicited != 0 || entry.status != 0 || is_full,
        _ => true,
    };
    if is_wanted {
        queue.wake();
    }
    !is_full
}

impl Queue {
    pub fn new(
        process: &Arc<Process>,
        (context, device, events): (*mut ibv_context, u32, u64),
        entries: u32,
        channel: *mut Channel,
        token: *mut libc::c_void,
    ) -> Result<Box<Queue>, i32> {
        let index = process.new_queue().ok_or(libc::ENOMEM)?;
        let places = entries.next_power_of_two();
        let ring = process
            .arena()
            .allocate(places as usize * size_of::<Entry>());
        let Some(ring) = ring else {
            process.end_queue(index);
            return Err(libc::ENOMEM);
        };
        let queue = process.arena().queue(index);
        queue.lock.initialise();
        for word in [&queue.used, &queue.added, &queue.fetched] {
            word.store(0, Ordering::Relaxed);
        }
        queue.capacity.store(entries, Ordering::Relaxed);
        queue.mask.store(places - 1, Ordering::Relaxed);
        queue.ring.store(ring, Ordering::Relaxed);
        queue.armed.store(0, Ordering::Relaxed);
        queue.is_overrun.store(0, Ordering::Relaxed);
        queue.note_look();
        // SAFETY: null, or a channel that lives.
        let socket = unsafe { channel.as_ref() }.map_or(0, |channel| channel.waker.socket.name);
        queue.channel.store(socket, Ordering::Relaxed);
        let base = ibv_cq {
            context,
            channel: channel.cast(),
            cq_context: token,
            handle: index,
            cqe: entries as i32,
            ..Default::default()
        };
        Ok(Box::new(Queue {
            base,
            process: process.clone(),
            index,
            device,
            events,
            inner: Mutex::new(Inner {
                late: Late::new(process.settings.plan.late_ns, index),
                ..Inner::default()
            }),
            waiting: AtomicUsize::new(0),
            users: AtomicUsize::new(0),
            stalled: Mutex::default(),
            has_stalled: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        }))
    }

    /// Gives its place back; nobody uses it any more.
    pub fn end(&self) {
        let queue = self.process.arena().queue(self.index);
        let places = queue.mask.load(Ordering::Relaxed) as usize + 1;
        let ring = queue.ring.load(Ordering::Relaxed);
        self.process
            .arena()
            .release(ring, places * size_of::<Entry>());
        self.process.end_queue(self.index);
    }

    /// A send of this process has a completion.
    pub fn add_own(&self, entry: Entry, sent: (Arc<AtomicU64>, u64)) {
        let queue = self.process.arena().queue(self.index);
        let used = queue.used.fetch_add(1, Ordering::Relaxed);
        if used >= u64::from(queue.capacity.load(Ordering::Relaxed)) {
            queue.used.fetch_sub(1, Ordering::Relaxed);
            queue.is_overrun.store(1, Ordering::Release);
            return;
        }
        let mut inner = self.inner.lock().unwrap();
        let is_armed = inner.armed.is_some();
        inner.push(entry, Some(sent));
        self.waiting.store(inner.heap.len(), Ordering::Release);
        drop(inner);
        if is_armed {
            queue.wake();
        }
    }

    /// Adds the completion of a receive, to be polled after all others that its queue pair has
    /// here.
    pub fn add_last(&self, entry: Entry) {
        let mut inner = self.inner.lock().unwrap();
        self.fetch(&mut inner);
        let of_pair = inner
            .heap
            .iter()
            .filter(|waiting| waiting.entry.pair == entry.pair);
        let due = of_pair.map(|waiting| waiting.entry.due).max().unwrap_or(0);
        drop(inner);
        add(self.process.arena(), self.index, &Entry { due, ..entry });
    }

    /// Takes completions whose time has come.
    pub fn poll(&self, room: &mut [ibv_wc]) -> usize {
        self.advance();
        // Completions that were there when the device vanished can still be polled.
        let end = self.process.port(self.device).end();
        let queue = self.process.arena().queue(self.index);
        let has_more = queue.added.load(Ordering::Acquire) != queue.fetched.load(Ordering::Relaxed);
        if !has_more && self.waiting.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let mut inner = self.inner.lock().unwrap();
        self.fetch(&mut inner);
        let (mut count, mut time) = (0, 0);
        while let (Some(place), Some(first)) = (room.get_mut(count), inner.heap.peek()) {
            if first.entry.due > time {
                time = now().min(end);
                if first.entry.due > time {
                    break;
                }
            }
            let taken = inner.heap.pop().expect("it was looked at");
            *place = to_c(&taken.entry);
            if let Some((retired, number)) = taken.sent {
                retired.fetch_max(number, Ordering::Relaxed);
            }
            count += 1;
        }
        self.waiting.store(inner.heap.len(), Ordering::Release);
        queue.used.fetch_sub(count as u64, Ordering::Relaxed);
        count
    }

    /// Moves what peers have left to what waits.
    fn fetch(&self, inner: &mut Inner) {
        let arena = self.process.arena();
        let queue = arena.queue(self.index);
        let (added, mut at) = (
            queue.added.load(Ordering::SeqCst),
            queue.fetched.load(Ordering::Relaxed),
        );
        let (ring, mask) = (
            queue.ring.load(Ordering::Relaxed),
            u64::from(queue.mask.load(Ordering::Relaxed)),
        );
        while at != added {
            inner.push(
                arena.get(ring, (at & mask) * size_of::<Entry>() as u64),
                None,
            );
            at += 1;
        }
        queue.fetched.store(at, Ordering::Release);
        self.waiting.store(inner.heap.len(), Ordering::Release);
    }

    /// Retries what waits for peers, and notices failures that they have caused.
    fn advance(&self) {
        self.process.notice_failures();
        if self.has_stalled.load(Ordering::Acquire) {
            self.has_stalled.store(false, Ordering::Relaxed);
            let stalled = std::mem::take(&mut *self.stalled.lock().unwrap());
            stalled.into_iter().for_each(|pair| pair.advance());
        }
        let is_overrun = self
            .process
            .arena()
            .queue(self.index)
            .is_overrun
            .load(Ordering::Acquire)
            != 0;
        if is_overrun && !self.is_over.swap(true, Ordering::Relaxed) {
            tell(self.events, ibv_event_type::IBV_EVENT_CQ_ERR, self.index);
        }
    }

    /// A queue pair whose peer does not answer yet: [`Core::advance`] is called until it does.
    pub fn note_stalled(&self, pair: Arc<Core>, is_news: bool) {
        self.stalled.lock().unwrap().push(pair);
        self.has_stalled.store(true, Ordering::Release);
        // A process that sleeps has to wake by its timer and try again.
        let queue = self.process.arena().queue(self.index);
        if is_news && queue.armed.load(Ordering::Relaxed) != 0 {
            queue.wake();
        }
    }

    /// Asks for an event of the next completion.
    pub fn arm(&self, solicited_only: bool) {
        let mut inner = self.inner.lock().unwrap();
        self.fetch(&mut inner);
        inner.armed = Some(Armed {
            solicited_only,
            order: inner.next,
            time: now(),
        });
        let value = 1 + u32::from(solicited_only);
        let queue = self.process.arena().queue(self.index);
        // A peer that was killed while it woke the channel may have left `is_woken` set.
        queue.note_look();
        queue.armed.store(value, Ordering::SeqCst);
        let is_early = queue.added.load(Ordering::SeqCst) != queue.fetched.load(Ordering::Relaxed);
        let waits = inner.heap.iter().any(|waiting| waiting.entry.due != 0);
        drop(inner);
        // This wakes the process that waits on the channel, which then sets its timer.
        if is_early || waits || self.has_stalled.load(Ordering::Acquire) {
            queue.wake();
        }
    }

    /// Whether the event that was asked for has come; else when to look again.
    fn take_event(&self, time: u64) -> Result<(), u64> {
        self.process.arena().queue(self.index).note_look();
        self.advance();
        let mut inner = self.inner.lock().unwrap();
        let is_gone = self.process.port(self.device).is_gone();
        let Some(armed) = inner.armed.filter(|_| !is_gone) else {
            return Err(u64::MAX);
        };
        self.fetch(&mut inner);
        let is_it = |waiting: &&Waiting| {
            let entry = &waiting.entry;
            let is_new = waiting.order >= armed.order || entry.due > armed.time;
            is_new && (!armed.solicited_only || entry.is_solicited != 0 || entry.status != 0)
        };
        let next = inner
            .heap
            .iter()
            .filter(is_it)
            .map(|waiting| waiting.entry.due)
            .min();
        match next {
            Some(due) if due <= time => {
                inner.armed = None;
                self.process
                    .arena()
                    .queue(self.index)
                    .armed
                    .store(0, Ordering::Relaxed);
                Ok(())
            }
            _ => {
                let again = match self.has_stalled.load(Ordering::Acquire) {
                    true => time + LOOK_AGAIN_NS,
                    false => u64::MAX,
                };
                Err(next.unwrap_or(u64::MAX).min(again))
            }
        }
    }

    /// Forgets the completions of a queue pair that is destroyed, if the plan says that its device
    /// does so.
    pub fn purge(&self, number: u32) {
        let mut inner = self.inner.lock().unwrap();
        self.fetch(&mut inner);
        let before = inner.heap.len();
        if !self.process.settings.plan.keeps_completions {
            inner.heap.retain(|waiting| waiting.entry.pair != number);
        }
        inner.late.forget(number);
        let gone = (before - inner.heap.len()) as u64;
        self.waiting.store(inner.heap.len(), Ordering::Release);
        let queue = self.process.arena().queue(self.index);
        queue.used.fetch_sub(gone, Ordering::Relaxed);
        drop(inner);
        self.stalled
            .lock()
            .unwrap()
            .retain(|pair| pair.number != number);
    }
}

impl Inner {
    fn push(&mut self, mut entry: Entry, sent: Option<(Arc<AtomicU64>, u64)>) {
        if self.late.most_ns > 0 {
            entry.due = self.late.due(&entry, sent.is_some());
        }
        let order = self.next;
        self.next += 1;
        self.heap.push(Waiting { entry, order, sent });
    }
}

/// Delays completions by chance.
struct Late {
    /// The longest delay; 0: none is delayed.
    most_ns: u64,
    random: Random,
    /// When the last completions of a queue pair's sends and receives are there: the next ones are
    /// not there before.
    last: BTreeMap<(u32, bool), u64>,
}

impl Default for Late {
    fn default() -> Late {
        Late::new(0, 0)
    }
}

impl Late {
    fn new(most_ns: u64, seed: u32) -> Late {
        Late {
            most_ns,
            random: Random(seed.into()),
            last: BTreeMap::new(),
        }
    }

    /// When a completion is there.
    fn due(&mut self, entry: &Entry, is_send: bool) -> u64 {
        let due = entry.due.max(now()) + self.random.below(self.most_ns + 1);
        let last = self.last.entry((entry.pair, is_send)).or_default();
        *last = due.max(*last);
        *last
    }

    fn forget(&mut self, pair: u32) {
        self.last.retain(|known, _| known.0 != pair);
    }
}

fn to_c(entry: &Entry) -> ibv_wc {
    let mut to = ibv_wc {
        wr_id: entry.id,
        status: ibv_wc_status(entry.status),
        opcode: ibv_wc_opcode(entry.opcode),
        byte_len: entry.bytes,
        qp_num: entry.pair,
        src_qp: entry.source,
        wc_flags: entry.flags,
        ..Default::default()
    };
    to.__bindgen_anon_1.imm_data = entry.immediate;
    to
}

/// A completion channel. It begins with the structure that C knows.
#[repr(C)]
pub struct Channel {
    pub base: ibv_comp_channel,
    waker: Waker,
    queues: Mutex<Vec<*mut Queue>>,
}

impl Channel {
    pub fn new(context: *mut ibv_context) -> io::Result<Box<Channel>> {
        let waker = Waker::new()?;
        let base = ibv_comp_channel {
            context,
            fd: waker.raw_fd(),
            refcnt: 0,
        };
        Ok(Box::new(Channel {
            base,
            waker,
            queues: Mutex::default(),
        }))
    }

    pub fn add(&self, queue: *mut Queue) {
        self.queues.lock().unwrap().push(queue);
    }

    pub fn remove(&self, queue: *mut Queue) {
        self.queues.lock().unwrap().retain(|known| *known != queue);
    }

    /// Whether queues use it.
    pub fn is_used(&self) -> bool {
        !self.queues.lock().unwrap().is_empty()
    }

    /// The next queue with an event; waits for one unless the descriptor does not block.
    pub fn next(&self) -> Result<*mut Queue, i32> {
        loop {
            if let Some(queue) = self.take() {
                return Ok(queue);
            }
            self.waker.wait()?;
        }
    }

    fn take(&self) -> Option<*mut Queue> {
        self.waker.socket.drain();
        let queues = self.queues.lock().unwrap();
        let (time, mut wake) = (now(), u64::MAX);
        for (place, &queue) in queues.iter().enumerate() {
            // SAFETY: a queue leaves the list before it is destroyed.
            match unsafe { &*queue }.take_event(time) {
                Ok(()) => {
                    // The others are looked at next time.
                    if place + 1 < queues.len() {
                        socket::send(self.waker.socket.name, &[1]);
                    }
                    return Some(queue);
                }
                Err(again) => wake = wake.min(again),
            }
        }
        self.waker.set_timer(wake);
        None
    }
}
