"""A process group of torch over a communicator."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import linerate
import torch
import torch.distributed as dist
from linerate.torch.work import Notifier, Work

_TYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}
for _name, _type in (("float8_e4m3fn", "f8e4m3"), ("float8_e5m2", "f8e5m2")):
    if hasattr(torch, _name):
        _TYPES[getattr(torch, _name)] = _type

_OPERATORS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.PRODUCT, "prod"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "bitand"),
    (dist.ReduceOp.BOR, "bitor"),
    (dist.ReduceOp.BXOR, "bitxor"),
    (dist.ReduceOp.AVG, "avg"),
)

WORKS_KEPT = 1024

Memory = tuple[int, int, str, object]


class _Exchange:
    """torch's Store as the exchange by which ranks meet."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, value: bytes, limit: float) -> None:
        self._store.set(key, value)

    def get(self, key: str, limit: float) -> bytes | None:
        begun = time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=max(limit, 0.001)))
        except RuntimeError:
            # All that the stores of all versions have in common: it took as long as it may.
            if time.monotonic() - begun < 0.9 * limit:
                raise
            return None
        return bytes(self._store.get(key))


class _Meeting:
    """The communicator of the default group, of which other groups are siblings."""

    lock = threading.Lock()
    world: linerate.Communicator | None = None


def _operator(op: Any) -> str:
    for known, name in _OPERATORS:
        if op == known:
            return name
    raise linerate.InvalidArgument(f"linerate has no operator {op}")


def _check(tensor: torch.Tensor) -> str:
    """The type of a tensor that can be used."""
    if tensor.device.type != "cpu":
        raise linerate.InvalidArgument(f"a tensor lies on {tensor.device}: linerate takes tensors of the CPU, copy it there")
    if tensor.layout != torch.strided:
        raise linerate.InvalidArgument(f"a tensor has the layout {tensor.layout}: linerate takes dense ones")
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        raise linerate.InvalidArgument(f"linerate has no type for elements of {tensor.dtype}")
    return dtype


def _memory(tensor: torch.Tensor) -> Memory:
    dtype = _check(tensor)
    return tensor.data_ptr(), tensor.numel(), dtype, tensor


def _one(tensors: Sequence[torch.Tensor], what: str) -> torch.Tensor:
    if len(tensors) != 1:
        raise linerate.InvalidArgument(f"{what} takes one tensor a rank, and got {len(tensors)}")
    return tensors[0]


def create(options: Any, group_options: Any = None) -> ProcessGroup:
    """Makes a group of torch's description of it."""
    rank, size = options.group_rank, options.group_size
    settings = {"LINERATE_TIMEOUT": str(max(options.timeout.total_seconds(), 0.001))}
    exchange, members = _Exchange(options.store), list(options.global_ranks_in_group)
    with _Meeting.lock:
        world = _Meeting.world
    if world is not None and members and not world.failure():
        communicator = world.sibling(members, "linerate", exchange)
        communicator.set_timeout(options.timeout.total_seconds())
    else:
        communicator = linerate.Communicator.join_by(rank, size, "linerate", exchange, settings)
        if not members:
            with _Meeting.lock:
                _Meeting.world = communicator
    return ProcessGroup(communicator, rank, size)


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A group of ranks whose tensors linerate moves."""

    def __init__(self, communicator: linerate.Communicator, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self.communicator = communicator
        self._notifier = Notifier(communicator)
        # torch 1.13 to 2.6 keep only the base part of a Work in C++, whose wait never ends without Python's part: that
        # is kept here until it was waited for, or the operation has ended and many have come after it.
        self._works: dict[int, Work] = {}
        self._sequence = 0

    def getBackendName(self) -> str:
        return "linerate"

    def _get_backend_name(self) -> str:
        return "linerate"

    def name(self) -> str:
        return "linerate"

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _work(
        self,
        operation: linerate.Operation | None,
        tensors: Sequence[Any],
        after: Callable[[], None] | None = None,
    ) -> Work:
        self._sequence += 1
        work = Work(operation, tensors, self._notifier, after, self._works)
        self._works[id(work)] = work
        for oldest in list(self._works.values())[:2] if len(self._works) > WORKS_KEPT else ():
            if oldest.is_completed():
                self._works.pop(id(oldest), None)
        return work

    def _inout(
        self, tensor: torch.Tensor, tensors: Sequence[Any], start: Callable[[Memory], linerate.Operation]
    ) -> Work:
        """An operation in place, by a copy where the tensor has gaps."""
        _check(tensor)
        if tensor.is_contiguous():
            return self._work(start(_memory(tensor)), tensors, None)
        copy = tensor.contiguous()
        operation = start(_memory(copy))
        return self._work(operation, tensors, lambda: _copy(tensor, copy))

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        op = "sum" if opts is None else _operator(opts.reduceOp)
        tensor = _one(tensors, "all_reduce")
        all_reduce = self.communicator.all_reduce
        return self._inout(tensor, tensors, lambda memory: all_reduce(memory, op=op, async_op=True))

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        root = 0 if opts is None else opts.rootRank
        tensor = _one(tensors, "broadcast")
        broadcast = self.communicator.broadcast
        return self._inout(tensor, tensors, lambda memory: broadcast(memory, root, async_op=True))

    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        root, op = (0, "sum") if opts is None else (opts.rootRank, _operator(opts.reduceOp))
        tensor = _one(tensors, "reduce")
        reduce = self.communicator.reduce
        return self._inout(tensor, tensors, lambda memory: reduce(memory, root, op=op, async_op=True))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        source, target = input.contiguous(), output.contiguous()
        operation = self.communicator.all_gather(_memory(source), _memory(target), async_op=True)
        return self._work(operation, [output], lambda: _copy_back(output, target))

    def allgather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        source, parts = _one(inputs, "all_gather").contiguous(), outputs[0]
        counts = [part.numel() for part in parts]
        target = source.new_empty(sum(counts))
        for part in parts:
            if part.dtype != source.dtype:
                raise linerate.InvalidArgument(f"all_gather of {source.dtype} into a tensor of {part.dtype}")
        gather = self.communicator.all_gather_v
        operation = gather(_memory(source), _memory(target), counts, async_op=True)
        return self._work(operation, outputs, lambda: _spread(target, parts))

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        op = "sum" if opts is None else _operator(opts.reduceOp)
        source, target = input.contiguous(), output.contiguous()
        operation = self.communicator.reduce_scatter(_memory(source), _memory(target), op=op, async_op=True)
        return self._work(operation, [output], lambda: _copy_back(output, target))

    def reduce_scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None) -> Work:
        op = "sum" if opts is None else _operator(opts.reduceOp)
        output = _one(outputs, "reduce_scatter")
        source, target = torch.cat([part.reshape(-1) for part in inputs[0]]), output.contiguous()
        counts = [part.numel() for part in inputs[0]]
        scatter = self.communicator.reduce_scatter_v
        operation = scatter(_memory(source), _memory(target), counts, op=op, async_op=True)
        return self._work(operation, outputs, lambda: _copy_back(output, target))

    def gather(self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        root = 0 if opts is None else opts.rootRank
        source = _one(inputs, "gather").contiguous()
        if self.rank() != root:
            operation = self.communicator.gather(_memory(source), None, root, async_op=True)
            return self._work(operation, outputs)
        parts = outputs[0]
        target = source.new_empty(source.numel() * self.size())
        operation = self.communicator.gather(_memory(source), _memory(target), root, async_op=True)
        return self._work(operation, outputs, lambda: _spread(target, parts))

    def scatter(self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None) -> Work:
        root = 0 if opts is None else opts.rootRank
        output = _one(outputs, "scatter")
        target = output.contiguous()
        source = torch.cat([part.reshape(-1) for part in inputs[0]]) if self.rank() == root else None
        given = None if source is None else _memory(source)
        operation = self.communicator.scatter(_memory(target), given, root, async_op=True)
        return self._work(operation, outputs, lambda: _copy_back(output, target))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Work:
        source, target = input.contiguous(), output.contiguous()
        counts = [self._counts(tensor, splits) for tensor, splits in ((source, input_splits), (target, output_splits))]
        exchange = self.communicator.all_to_all_v
        operation = exchange(_memory(source), counts[0], _memory(target), counts[1], async_op=True)
        return self._work(operation, [output], lambda: _copy_back(output, target))

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Elements per rank, of splits along the first dimension."""
        rows = tensor.shape[0] if tensor.dim() > 0 else tensor.numel()
        if not splits:
            if rows % self.size() != 0:
                raise linerate.InvalidArgument(f"all_to_all_single: {rows} rows are no multiple of {self.size()} ranks")
            splits = [rows // self.size()] * self.size()
        if sum(splits) != rows:
            raise linerate.InvalidArgument(f"all_to_all_single: splits {list(splits)} of {rows} rows")
        width = tensor.numel() // rows if rows else 0
        return [split * width for split in splits]

    def alltoall(self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None) -> Work:
        source = torch.cat([part.reshape(-1) for part in inputs])
        counts = [[part.numel() for part in parts] for parts in (inputs, outputs)]
        target = source.new_empty(sum(counts[1]))
        exchange = self.communicator.all_to_all_v
        operation = exchange(_memory(source), counts[0], _memory(target), counts[1], async_op=True)
        return self._work(operation, outputs, lambda: _spread(target, outputs))

    def barrier(self, opts: Any = None) -> Work:
        return self._work(self.communicator.barrier(async_op=True), [])

    def send(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        source = _one(tensors, "send").contiguous()
        operation = self.communicator.send(_memory(source), peer, tag, async_op=True)
        return self._work(operation, tensors)

    def recv(self, tensors: Sequence[torch.Tensor], peer: int, tag: int) -> Work:
        receive = self.communicator.recv
        return self._inout(_one(tensors, "recv"), tensors, lambda memory: receive(memory, peer, tag, async_op=True))

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int) -> Work:
        receive = self.communicator.recv
        return self._inout(_one(tensors, "recv"), tensors, lambda memory: receive(memory, None, tag, async_op=True))

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        op = "sum" if opts is None else _operator(opts.reduceOp)
        packed = torch.cat([tensor.reshape(-1) for tensor in tensors])
        operation = self.communicator.all_reduce(_memory(packed), op=op, async_op=True)
        return self._work(operation, tensors, lambda: _spread(packed, tensors))


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def _copy_back(output: torch.Tensor, target: torch.Tensor) -> None:
    """Copies to a tensor with gaps."""
    if target.data_ptr() != output.data_ptr():
        _copy(output, target)


def _spread(target: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copies what lies together to several tensors."""
    at = 0
    for part in parts:
        _copy(part, target[at : at + part.numel()].view(part.shape))
        at += part.numel()
