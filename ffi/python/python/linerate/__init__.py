"""Collectives of distributed training over shared memory, TCP and RDMA.

    import linerate, numpy
    with linerate.Communicator.from_env() as comm:   # started by torchrun, mpirun, srun or linerate launch
        gradients = numpy.ones(1000, "f4")
        comm.all_reduce(gradients, op="avg")

Arguments are anything with the buffer protocol or `__dlpack__` (arrays of numpy, tensors of torch), a
`Buffer` of `Communicator.alloc`, or a tuple (address, count, type), of which a fourth item is kept alive. Counts are elements; types have names
such as 'f32', 'bf16' and 'i64'; times are seconds.
"""

from linerate._linerate import VERSION as __version__
from linerate._linerate import (
    Buffer,
    Communicator,
    CompletionQueue,
    Explanation,
    FabricTimes,
    FlushReport,
    Fusion,
    Operation,
    PartialAllreduce,
    Prediction,
    RoundReport,
    SparseAllreduce,
    SparseReport,
    SparseStep,
    StepReport,
    Trace,
    Traffic,
    algorithms,
    cost,
    fabric_times,
    fusion_plan,
    schedule,
)
from linerate.errors import (
    Aborted,
    Bootstrap,
    Cancelled,
    CommunicatorFailed,
    Error,
    Exhausted,
    Forked,
    InUse,
    InvalidArgument,
    Left,
    Malformed,
    Mismatch,
    NotFinite,
    PeerFailed,
    ReceiveCancelled,
    SystemCallFailed,
    Timeout,
    Unavailable,
)

__all__ = [
    "Aborted",
    "Bootstrap",
    "Buffer",
    "Cancelled",
    "Communicator",
    "CommunicatorFailed",
    "CompletionQueue",
    "Error",
    "Exhausted",
    "Explanation",
    "FabricTimes",
    "FlushReport",
    "Forked",
    "Fusion",
    "InUse",
    "InvalidArgument",
    "Left",
    "Malformed",
    "Mismatch",
    "NotFinite",
    "Operation",
    "PartialAllreduce",
    "PeerFailed",
    "Prediction",
    "ReceiveCancelled",
    "RoundReport",
    "SparseAllreduce",
    "SparseReport",
    "SparseStep",
    "StepReport",
    "SystemCallFailed",
    "Timeout",
    "Trace",
    "Traffic",
    "Unavailable",
    "__version__",
    "algorithms",
    "cost",
    "fabric_times",
    "fusion_plan",
    "schedule",
]
