"""The rows of the comparison: what of ours is set beside what of theirs, and what is wanted.

A row is added by adding it to `ROWS`. Ratios are speeds: 2.0 is twice as fast as the peer, 0.7 is seven tenths of the
limit. They count only within one run: absolute times differ from machine to machine and from hour to hour.
"""

from dataclasses import dataclass
from typing import Optional, Union

from commands import Command, bench, cacheline, gloo, mpi, mpich, replay, roofline

KIB = 1 << 10
MIB = 1 << 20
# Above it a row is about bytes per second, below it about time.
BANDWIDTH_BYTES_MIN = 64 * KIB


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    ours: Command
    # The other side; `None`: there is none.
    peer: Optional[Command] = None
    # A command, a time in us, or the name of a number of our own best run.
    limit: Union[Command, float, str, None] = None
    # Least ratios; `None`: shown and not judged.
    peer_ratio_min: Optional[float] = None
    limit_ratio_min: Optional[float] = None
    # Bytes per rank, and what a bandwidth is multiplied with (nccl-tests' busbw); 0: times only.
    size: int = 0
    bus_factor: float = 0.0

    @property
    def is_bandwidth(self):
        return self.size >= BANDWIDTH_BYTES_MIN

    @property
    def commands(self):
        """Each command that has to run."""
        return [command for command in (self.ours, self.peer, self.limit) if isinstance(command, Command)]


def describe_size(size):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def all_reduce(ranks, size, memory, peer=None, limit=None, **wanted):
    """A row of f32 sums in place over shared memory."""
    return Row(
        name=f"shm {ranks} ranks {memory} {describe_size(size)}",
        ours=bench("allreduce", ranks, size, memory, "shm"),
        peer=peer,
        limit=limit,
        size=size,
        bus_factor=2 * (ranks - 1) / ranks,
        **wanted,
    )


def two_ranks(memory, wanted):
    """The rows of two ranks; `wanted` maps sizes to the least ratios to the peer and to the limit."""
    return [
        all_reduce(
            2,
            size,
            memory,
            mpi(2, size),
            cacheline() if size == 8 else roofline(2, size),
            peer_ratio_min=peer,
            limit_ratio_min=limit,
        )
        for size, (peer, limit) in wanted.items()
    ]


REGISTERED = {
    8: (1.0, None),
    256 * KIB: (2.0, None),
    2 * MIB: (None, None),
    16 * MIB: (2.5, 0.7),
    128 * MIB: (4.0, 0.7),
}
CALLER = {
    8: (None, None),
    256 * KIB: (None, None),
    2 * MIB: (1.2, None),
    16 * MIB: (1.2, None),
    128 * MIB: (2.0, None),
}
# Sixteen ranks share whatever cores there are; the bound is in us.
SIXTEEN_RANKS_US_MAX = 1000.0
# Exposed communication is at most the last flush and 5 %.
EXPOSED_MAX = 1.05
ROWS = [
    *two_ranks("registered", REGISTERED),
    *two_ranks("caller", CALLER),
    all_reduce(4, 8, "registered", mpi(4, 8), cacheline(), peer_ratio_min=1.0),
    all_reduce(4, 16 * MIB, "registered", mpi(4, 16 * MIB), roofline(4, 16 * MIB), peer_ratio_min=3.0),
    all_reduce(16, 8, "registered", mpi(16, 8), limit=SIXTEEN_RANKS_US_MAX, limit_ratio_min=1.0),
    *(all_reduce(ranks, size, "registered", mpi(ranks, size), peer_ratio_min=1.0) for ranks in (32, 64, 128, 256) for size in (8, 32 * KIB)),
    Row(
        name="replay resnet50 2 ranks: exposed; limit: last flush by itself",
        ours=replay("resnet50", 2),
        limit="alone_us",
        limit_ratio_min=1 / EXPOSED_MAX,
    ),
    Row(
        name="replay resnet50 2 ranks: exposed; limit: last flush from its last gradient",
        ours=replay("resnet50", 2),
        limit="since_ready_us",
    ),
]

# Beside peers that few machines have: only where they are there, and never judged.
OTHER_ROWS = [
    Row(
        name=f"{name} beside shm 2 ranks caller {describe_size(size)}",
        ours=bench("allreduce", 2, size, "caller", "shm"),
        peer=command(2, size),
        size=size,
        bus_factor=1.0,
    )
    for name, command in (("mpich", mpich), ("gloo", gloo))
    for size in (8, 2 * MIB, 16 * MIB)
]
