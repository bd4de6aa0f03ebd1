//! An allocator that counts what one thread allocates while it is told to, and keeps the places
//! that the first ones came from.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};

/// Enough to see every place of an operation that allocates; a backtrace takes milliseconds.
const LOOKED_AT_MAX: u64 = 20;

/// What was allocated.
#[derive(Clone, Debug, Default)]
pub struct Allocated {
    /// Calls of the allocator that gave memory.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
    /// The frames of this crate in the first ones, each place once.
    pub traces: Vec<String>,
}

thread_local! {
    static IS_COUNTING: Cell<bool> = const { Cell::new(false) };
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static LOOKED_AT: Cell<u64> = const { Cell::new(0) };
    static TRACES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

impl Allocated {
    /// The sum of both.
    pub fn add(&mut self, other: Allocated) {
        self.count += other.count;
        self.bytes += other.bytes;
        let known = std::mem::take(&mut self.traces);
        self.traces = known.into_iter().chain(other.traces).collect();
        self.traces.sort();
        self.traces.dedup();
    }
}

/// Runs it and counts what this thread allocates meanwhile.
pub fn count(run: impl FnOnce()) -> Allocated {
    COUNT.set(0);
    BYTES.set(0);
    IS_COUNTING.set(true);
    run();
    IS_COUNTING.set(false);
    Allocated {
        count: COUNT.get(),
        bytes: BYTES.get(),
        traces: TRACES.take(),
    }
}

fn note(bytes: usize) {
    if !IS_COUNTING.get() {
        return;
    }
    COUNT.set(COUNT.get() + 1);
    BYTES.set(BYTES.get() + bytes as u64);
    // What follows allocates too.
    IS_COUNTING.set(false);
    TRACES.with_borrow_mut(|traces| {
        if LOOKED_AT.replace(LOOKED_AT.get() + 1) >= LOOKED_AT_MAX {
            return;
        }
        let trace = own_frames(&Backtrace::force_capture().to_string());
        if !traces.contains(&trace) {
            traces.push(trace);
        }
    });
    IS_COUNTING.set(true);
}

/// The functions of this crate in a backtrace, innermost first, with their lines.
fn own_frames(trace: &str) -> String {
    let lines: Vec<&str> = trace.lines().map(str::trim).collect();
    let is_own = |line: &&[&str]| line[1].starts_with("at ./src/");
    let frame = |line: &[&str]| {
        let name = line[0].split_once(": ").map_or(line[0], |(_, name)| name);
        format!("{name} {}", line[1])
    };
    lines
        .windows(2)
        .filter(is_own)
        .map(frame)
        .collect::<Vec<_>>()
        .join(" < ")
}

// SAFETY: everything is the system's allocator's; counting touches nothing of what it gives.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps to the contract of this very method.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller keeps to the contract of this very method.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        note(bytes);
        // SAFETY: the caller keeps to the contract of this very method, and every block is the
        // system's.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract of this very method, and every block is the
        // system's.
        unsafe { System.dealloc(block, layout) }
    }
}
