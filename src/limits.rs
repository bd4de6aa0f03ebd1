//! Every bound of the library, with the reason for its value. Sizes that depend on each other say
//! so in a `const` assertion.

/// Ranks in one communicator: 16,384. Memory grows with the ranks of a job and not with this bound.
pub const RANKS_MAX: u32 = 1 << 14;

/// Connections that wait to be accepted: all ranks may come at once. The kernel takes at most
/// net.core.somaxconn of them, 4096 if nobody has set it.
pub const BACKLOG: i32 = RANKS_MAX as i32;

/// Bytes of one cache line; flag lines and ring indices are aligned to it so that two writers never
/// share one.
pub const CACHE_LINE_BYTES: usize = 64;

/// Payload bytes of a flag line: 64 less the stamp (8) and the signature (8).
pub const LINE_PAYLOAD_BYTES: usize = 48;

/// Operations of one communicator whose flag lines and windows exist at the same time. A rank may
/// run this many operations ahead of the slowest one. 16 is enough to hide one scheduling quantum
/// of small operations and keeps the flag lines of 32 ranks at 128 KiB.
pub const OPERATION_SLOTS: u64 = 16;

/// Signals of one operation between one pair of ranks: arrival, data ready, done, activation.
pub const LANES: usize = 4;

/// Default bytes of a window slot: with two in flight it stays inside a 1 MiB second-level cache.
pub const WINDOW_BYTES_DEFAULT: usize = 256 * 1024;

/// Default bytes of a window slot for each thread, where a rank shares its work among several: only
/// long pieces are worth sharing. An allreduce of 64 MiB in memory that is not registered, 2 ranks
/// with 4 threads each, reaches 4.9 GB/s with slots of 256 KiB, 8.8 with 1 MiB, 12.4 with 2 MiB and
/// 10.9 with 4 MiB (16 cores of a Xeon).
pub const WINDOW_BYTES_PER_THREAD: usize = 512 * 1024;

/// The shortest and the longest window slot.
pub const WINDOW_BYTES_MIN: usize = 16 << 10;
pub const WINDOW_BYTES_MAX: usize = 16 << 20;

/// Bytes of shared scratch memory of a round, at most, on up to 64 ranks. Longer calls are cut, and
/// as many rounds as there are [`OPERATION_SLOTS`] are under way: 16 MiB in all. Of two hosts with
/// two ranks each, on 2 cores and a modelled wire of 100 Gbit/s, an allreduce of 64 MiB in memory
/// that is not mapped takes 58 to 65 ms; with rounds of 4 MiB 67 to 73, with 256 KiB 64 to 68, and
/// 56 to 59 if the ranks of a host send messages to each other.
const SHARED_BYTES: u64 = 1 << 20;

/// The part of each rank in such a round, at least: that is a message between hosts, and without a
/// bound it would have 256 bytes on 4096 ranks.
const SHARED_PART_BYTES: u64 = 16 << 10;

/// Bytes of shared scratch memory of a round, at most, on this many ranks.
pub const fn shared_bytes(ranks: u32) -> u64 {
    let parts = SHARED_PART_BYTES * ranks as u64;
    if parts > SHARED_BYTES {
        parts
    } else {
        SHARED_BYTES
    }
}

/// Default bytes of a chunk: large enough that the cost per message is below 1 % of its copy at
/// 10 GB/s, small enough that four in flight stay inside a second-level cache.
pub const CHUNK_BYTES_DEFAULT: usize = 256 * 1024;

/// Default bytes of a chunk over connections. A chunk is under way until its acknowledgement has
/// come, so the chunks in flight (2 MiB) have to fill a fast network. An allreduce of 16 MiB, 2
/// ranks over loopback, takes 4.8 ms with 128 KiB, 4.2 with 256, 4.1 with 512 and 5.2 with 1 MiB,
/// which does not stay in the second-level cache.
pub const CHUNK_BYTES_TCP: usize = 512 * 1024;

/// Chunks of one send step that may be under way at once: one on the wire, one posted, two for
/// jitter. An allreduce of 128 MiB, 2 ranks over loopback, takes 1.18 times as long with 8.
pub const CHUNKS_IN_FLIGHT: u32 = 4;

/// [`CHUNKS_IN_FLIGHT`] where a chunk is offered, granted and moved. Each of the three may wait
/// behind another chunk: two for each, and two for jitter. An all-gather of 64 MiB by 2 ranks at
/// 100 Gbit/s uses 0.98 of the wire with 8, and half of it with 4 (`tools/speed --wire`).
pub const CHUNKS_IN_FLIGHT_GRANTED: u32 = 8;

/// Messages to one peer that may be unconsumed at once. The older half is kept for the oldest
/// operation, so that later ones can never take the places that it needs (see `engine`).
pub const MESSAGES_PER_PEER: u32 = 64;

/// Messages with tags from one rank to another that may wait for their receives. The other places
/// are kept for later chunks of messages that have met a receive.
pub const TAGGED_UNMATCHED: u32 = 48;

/// Largest message that is copied through a ring instead of being read where it lies.
pub const INLINE_BYTES_MAX: usize = 4096;

/// Messages of at most [`CONTROL_BYTES`] to one peer for which there is room whatever else has been
/// sent: news of a failure must reach a rank that takes nothing. A communicator and the one that
/// replaces it send a question, its answer and the news each: six messages. Questions and answers
/// may repeat, so they get at most half of the places.
pub const URGENT_MESSAGES: u32 = 8;

/// Bytes of one shared-memory ring, a power of two: it holds a dozen of the largest records,
/// besides what is kept free.
pub const RING_BYTES: usize = 64 * 1024;

/// Bytes of a control message, including its header: room for what a handful of ranks did last.
pub const CONTROL_BYTES: usize = 512;

/// Steps of one schedule: O(ranks) for every algorithm, with room for the largest communicator.
pub const STEPS_MAX: usize = 1 << 18;

/// Schedules kept per communicator.
pub const SCHEDULES_CACHED: usize = 64;

/// Largest count of elements of one operation: keeps block arithmetic inside 64 bits.
pub const COUNT_MAX: u64 = 1 << 48;

const _: () = assert!(
    COUNT_MAX <= u64::MAX / RANKS_MAX as u64,
    "the elements of all ranks are counted in 64 bits"
);
const _: () = assert!(LINE_PAYLOAD_BYTES + 16 == CACHE_LINE_BYTES);
const _: () = assert!(OPERATION_SLOTS.is_power_of_two());
const _: () = assert!(TAGGED_UNMATCHED + 2 * CHUNKS_IN_FLIGHT_GRANTED <= MESSAGES_PER_PEER);
const _: () = assert!(
    CHUNKS_IN_FLIGHT <= CHUNKS_IN_FLIGHT_GRANTED && CHUNKS_IN_FLIGHT_GRANTED <= 8,
    "progress of a step keeps one byte of out-of-order bits"
);
const _: () = assert!(
    RING_BYTES.is_power_of_two() && RING_BYTES >= 8 * (INLINE_BYTES_MAX + CACHE_LINE_BYTES)
);
const _: () = assert!(MESSAGES_PER_PEER >= 4 * CHUNKS_IN_FLIGHT_GRANTED);
