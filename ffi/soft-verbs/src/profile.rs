//! [`Profile`]: the limits of real devices, as their owners have published them.

/// What a device says it can do.
#[derive(Debug)]
pub struct Profile {
    pub name: &'static str,
    pub queue_pairs: i32,
    pub requests: i32,
    pub segments: i32,
    pub completion_queues: i32,
    pub completions: i32,
    pub regions: i32,
    /// Reads and atomics of one queue pair under way.
    pub reads: i32,
    pub has_atomics: bool,
    /// 0: no shared queues.
    pub shared_queues: i32,
    pub shared_requests: i32,
    pub shared_segments: i32,
    pub inline_bytes: u32,
    pub vendor: u32,
    pub part: u32,
    /// It imitates reliable datagrams by reliable connections: it keeps no order among requests,
    /// reads and writes one segment and nothing inline, and is no channel adapter.
    pub is_datagrams: bool,
}

/// The sources are outputs of `ibv_devinfo -v`, but for the last two:
/// * mlx5 (ConnectX-5): github.com/open-mpi/ompi/pull/6137 and openucx/ucx/issues/10317.
/// * mlx4 (ConnectX-3): claudebarthels/infinity/issues/5.
/// * irdma (E810): deepseek-ai/3FS/issues/192.
/// * qedr: openucx/ucx/issues/5148. It ends before shared queues and atomics, so there are none
///   here.
/// * small-cq, a device without a name: ofiwg/libfabric/issues/6891. It begins with the
///   completions, so the numbers before them are mlx4's.
///
/// no-srq is mlx5 without shared queues. No output shows how many bytes may be inline: these are
/// guesses.
///
/// bnxt (Broadcom P5) is what its drivers limit themselves to: Linux, drivers/infiniband/hw/bnxt_re
/// (counts in bnxt_re.h; segments, reads, atomics and reserved requests in qplib_sp.c), and
/// rdma-core, providers/bnxt_re (inline bytes). The firmware says how many completions and requests
/// a queue has, so those are guesses.
///
/// efa-like has the numbers of an Amazon EFA (1d0f:efa1) that openucx/ucx keeps for its tests of
/// SRD; rdma-core's efadv_query_device(3) and fi_efa(7) say what they mean.
static PROFILES: [Profile; 8] = [
    MLX5,
    MLX4,
    Profile {
        name: "irdma",
        queue_pairs: 4092,
        requests: 8127,
        segments: 6,
        completion_queues: 8189,
        completions: 1_048_574,
        regions: 4_194_301,
        reads: 8,
        has_atomics: false,
        shared_queues: 0,
        shared_requests: 0,
        shared_segments: 0,
        inline_bytes: 96,
        vendor: 0x8086,
        part: 5522,
        is_datagrams: false,
    },
    Profile {
        name: "qedr",
        queue_pairs: 8568,
        requests: 32_767,
        segments: 4,
        completion_queues: 17_136,
        completions: 8_388_480,
        regions: 131_070,
        reads: 32,
        has_atomics: false,
        shared_queues: 0,
        shared_requests: 0,
        shared_segments: 0,
        inline_bytes: 128,
        vendor: 0x1077,
        part: 32_880,
        is_datagrams: false,
    },
    Profile {
        name: "small-cq",
        completions: 65_535,
        regions: 32_640,
        reads: 128,
        shared_queues: 16_384,
        shared_segments: 7,
        inline_bytes: 32,
        vendor: 0,
        part: 0,
        ..MLX4
    },
    Profile {
        name: "no-srq",
        shared_queues: 0,
        shared_requests: 0,
        shared_segments: 0,
        vendor: 0,
        part: 0,
        ..MLX5
    },
    Profile {
        name: "bnxt",
        queue_pairs: 65_536,
        requests: 65_535 - 128,
        segments: 6,
        completion_queues: 65_536,
        completions: 8_388_607,
        regions: 262_144,
        reads: 126,
        has_atomics: false,
        shared_queues: 65_536,
        shared_requests: 65_535,
        shared_segments: 6,
        inline_bytes: 96,
        vendor: 0x14e4,
        part: 0x1750,
        is_datagrams: false,
    },
    Profile {
        name: "efa-like",
        queue_pairs: 256,
        requests: 4096,
        segments: 2,
        completion_queues: 512,
        completions: 32_768,
        regions: 262_144,
        reads: 0,
        has_atomics: false,
        shared_queues: 0,
        shared_requests: 0,
        shared_segments: 0,
        inline_bytes: 32,
        vendor: 0x1d0f,
        part: 0xefa1,
        is_datagrams: true,
    },
];

const MLX5: Profile = Profile {
    name: "mlx5",
    queue_pairs: 262_144,
    requests: 32_768,
    segments: 30,
    completion_queues: 16_777_216,
    completions: 4_194_303,
    regions: 16_777_216,
    reads: 16,
    has_atomics: true,
    shared_queues: 8_388_608,
    shared_requests: 32_767,
    shared_segments: 31,
    inline_bytes: 828,
    vendor: 0x02c9,
    part: 4119,
    is_datagrams: false,
};

const MLX4: Profile = Profile {
    name: "mlx4",
    queue_pairs: 131_000,
    requests: 16_351,
    segments: 32,
    completion_queues: 65_408,
    completions: 4_194_303,
    regions: 524_032,
    reads: 16,
    has_atomics: true,
    shared_queues: 65_472,
    shared_requests: 16_383,
    shared_segments: 31,
    inline_bytes: 928,
    vendor: 0x02c9,
    part: 4099,
    is_datagrams: false,
};

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name == name)
    }
}
