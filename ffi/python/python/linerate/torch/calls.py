"""What torch asks of a group and of a backend, over a communicator."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import linerate
import torch
from linerate.torch.detail import Record
from linerate.torch.monitored import monitored_barrier
from linerate.torch.notifier import Notifier
from linerate.torch.tensors import (
    apart,
    copy,
    copying_back,
    is_plain,
    memory_of,
    operator_of,
    pack,
    packed,
    packed_output,
    plain_memory_of,
    unpack,
    width_of,
)
from linerate.torch.work import Work


# Works that nobody waits for: where all are kept, and where only those with something left to do are.
ALL_KEPT, UNFINISHED_KEPT = 1024, 64
FLAGS_KEPT = 64

# Calls that compute nothing: linerate need not have the type of what they move.
_MOVING = frozenset(("all_gather", "all_to_all", "broadcast", "gather", "recv", "scatter", "send"))
_MESSAGES = ("send", "recv")

_is_profiled = torch._C._autograd._profiler_enabled


def _one(tensors: Any, what: str) -> torch.Tensor:
    if isinstance(tensors, torch.Tensor):
        return tensors
    if len(tensors) != 1:
        raise linerate.InvalidArgument(f"{what} takes one tensor a rank, and got {len(tensors)}")
    tensor: torch.Tensor = tensors[0]
    return tensor


def _parts(lists: Any, what: str, ranks: int) -> Sequence[torch.Tensor]:
    """The list with a tensor per rank."""
    if len(lists) == 1 and not isinstance(lists[0], torch.Tensor):
        lists = lists[0]
    if len(lists) != ranks:
        raise linerate.InvalidArgument(f"{what} takes a list with a tensor for each of {ranks} ranks, and got {len(lists)}")
    parts: Sequence[torch.Tensor] = lists
    return parts


def _seconds(timeout: timedelta | None) -> float | None:
    """A timeout of torch; a negative one is the group's."""
    if timeout is None:
        return None
    seconds = timeout.total_seconds()
    return seconds if seconds > 0 else None


class State:
    """What a group of torch and its backend share."""

    def __init__(
        self, communicator: linerate.Communicator, notifier: Notifier, timeout: float, keeps_all: bool
    ) -> None:
        self.communicator = communicator
        self.notifier = notifier
        self.timeout = timeout
        # Those that nobody has waited for: all, where torch does not keep them, or those that copy
        # when they end. A caller may have dropped one, and read its result after a barrier.
        self.works: dict[int, Work] = {}
        self.keeps_all = keeps_all
        # The last ones of one element: a model in a Join context has C++ wait for such a one, and
        # read it, and all versions of torch keep only its base part then.
        self.flags: deque[Work] = deque(maxlen=FLAGS_KEPT)
        # The operations of each block of coalesced calls that is open.
        self.coalesced: list[Work] | None = None
        self.sequence = 0
        self.barriers = itertools.count(1)
        # The result of all calls that had ended when they returned.
        self.done = Work((), (), None, None, None)
        self.name, self.description = "", "undefined"
        # Where the group has met, and its ranks in the default group.
        self.store: Any = None
        self.members: list[int] = []
        # The last calls, for the text of a mismatch, if those are wanted.
        self.record: Record | None = None
        self.end: weakref.finalize[..., Any] | None = None

    def close(self) -> None:
        if self.end is not None:
            self.end()


_NO_TIME = timedelta(0)
_SUM = torch.distributed.ReduceOp.SUM
# Versions that tell a group whether its caller waits anyway.
_PlainOptions = torch.distributed.AllreduceOptions if hasattr(torch.distributed.AllreduceOptions(), "asyncOp") else None
_IS_OPERATOR = (torch.distributed.ReduceOp, type(torch.distributed.ReduceOp.SUM))


class Options:
    """The options of a call, in whatever form torch or a caller gives them."""

    __slots__ = ("op", "root", "tag", "timeout", "is_started")

    def __init__(self, opts: Any = None, op: Any = None, root: int | None = None, timeout: timedelta | None = None) -> None:
        # Calls of a group take the root in the place of the options, too.
        if isinstance(opts, int):
            opts, root = None, opts
        given = getattr(opts, "reduceOp", opts) if op is None else op
        self.op = operator_of(given) if isinstance(given, _IS_OPERATOR) else "sum"
        self.root = getattr(opts, "rootRank", 0) if root is None else root
        self.tag = 0
        limit = getattr(opts, "timeout", None) if timeout is None else timeout
        # A negative one is the group's.
        self.timeout = limit.total_seconds() if limit is not None and limit > _NO_TIME else None
        self.is_started = getattr(opts, "asyncOp", True)


def _to(peer: int, tag: int) -> Options:
    options = Options(root=peer)
    options.tag = tag
    return options


class Calls:
    """The calls of a group: tensors in, a Work out."""

    state: State

    def rank(self) -> int:
        raise NotImplementedError

    def size(self) -> int:
        raise NotImplementedError

    # Names and settings.

    def getBackendName(self) -> str:
        return "linerate"

    def _get_backend_name(self) -> str:
        return "linerate"

    def name(self) -> str:
        return "linerate"

    def _set_sequence_number_for_group(self) -> None:
        self.state.sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.state.sequence

    def set_timeout(self, timeout: timedelta) -> None:
        self.state.timeout = timeout.total_seconds()
        self.state.communicator.set_timeout(self.state.timeout)

    _set_default_timeout = set_timeout

    # What all calls have.

    def _run(
        self,
        name: str,
        tensors: Sequence[Any],
        start: Callable[..., linerate.Operation | None],
        options: Options,
        after: Callable[[], None] | None = None,
        inputs: Sequence[Any] = (),
    ) -> Work:
        """Starts a call, or runs it where its caller waits for it anyway."""
        state = self.state
        # torch compares the numbers of ranks: messages have none.
        if name not in _MESSAGES:
            state.sequence += 1
        if state.record is not None:
            state.record.note(name, tensors, inputs, options.op, options.root, options.tag)
            start = state.record.explaining(start)
        # Defaults are not given: that makes a short call a tenth faster.
        how: dict[str, Any] = {"async_op": True} if options.is_started else {}
        if options.timeout is not None:
            how["timeout"] = options.timeout
        if _is_profiled():
            # torch's profiler shows it by name, bytes and group.
            with torch.autograd.profiler.record_function(f"linerate:{name} {_describe(tensors)} {state.name}"):
                operation = start(**how)
        else:
            operation = start(**how)
        if operation is None:
            if after is not None:
                after()
            return state.done
        kept = state.works if state.keeps_all or after is not None else None
        work = Work((operation,), tensors, state.notifier, after, kept)
        work.record, work.is_message = state.record, name in _MESSAGES
        if state.coalesced is not None:
            state.coalesced.append(work)
        if len(tensors) == 1 and isinstance(tensors[0], torch.Tensor) and tensors[0].numel() == 1:
            state.flags.append(work)
        if len(state.works) > (ALL_KEPT if state.keeps_all else UNFINISHED_KEPT):
            # Nobody waits for the oldest any more. Those that have not ended are the newest now.
            for oldest in list(itertools.islice(state.works.values(), 2)):
                state.works.pop(id(oldest), None)
                if not oldest.is_completed():
                    state.works[id(oldest)] = oldest
        return work

    def _inout(
        self,
        name: str,
        tensor: torch.Tensor,
        tensors: Sequence[Any],
        call: Callable[..., Any],
        options: Options,
        after: Callable[[], None] | None = None,
    ) -> Work:
        """A call in place, by a copy where the tensor has gaps."""
        if tensor.layout == torch.strided and not is_plain(tensor):
            gapless = packed_output(tensor)
            return self._inout(name, gapless, tensors, call, options, lambda: copy(tensor, gapless))
        memory = memory_of(tensor, name in _MOVING)
        return self._run(name, tensors, partial(call, memory), options, after)

    def _outs(
        self,
        name: str,
        call: Callable[..., Any],
        source: torch.Tensor,
        target: torch.Tensor,
        options: Options,
        after: Callable[[], None] | None,
        tensors: Sequence[Any],
    ) -> Work:
        """A call from one tensor to another."""
        is_moved = name in _MOVING
        given, taken = memory_of(source, is_moved), memory_of(target, is_moved)
        return self._run(name, tensors, partial(call, given, taken), options, after, [source])

    # Collectives.

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None) -> Work:
        state = self.state
        if type(opts) is _PlainOptions and not opts.asyncOp and opts.reduceOp == _SUM and opts.timeout < _NO_TIME:
            # A blocking sum as dist.all_reduce() has it. The way of all other calls takes 5.0 us for
            # 8 bytes, this one 3.5.
            is_simple = type(tensors) is list and len(tensors) == 1 and state.record is None and not _is_profiled()
            memory = plain_memory_of(tensors[0]) if is_simple else None
            if memory is not None:
                state.sequence += 1
                state.communicator.all_reduce(memory)
                return state.done
        tensor = _one(tensors, "all_reduce")
        options = Options(opts, op=op, timeout=timeout)
        if tensor.layout == torch.sparse_coo:
            return self._allreduce_sparse(tensor, options)
        call = partial(self.state.communicator.all_reduce, op=options.op)
        return self._inout("all_reduce", tensor, [tensor], call, options)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        options = Options(opts)
        together = pack(tensors)
        start = partial(self.state.communicator.all_reduce, memory_of(together), op=options.op)
        return self._run("all_reduce_coalesced", tensors, start, options, lambda: unpack(together, tensors))

    def _allreduce_sparse(self, tensor: torch.Tensor, options: Options) -> Work:
        """The sum of sparse tensors: all ranks' entries are gathered, and added. It waits."""
        if options.op not in ("sum", "avg"):
            raise linerate.InvalidArgument(f"all_reduce of a sparse tensor has the operator sum, not {options.op}")
        own = tensor.detach().coalesce()
        shape = torch.tensor([own._nnz(), own.sparse_dim(), *own.shape])
        shapes = shape.new_empty(self.size(), len(shape))
        self._allgather_base(shapes, shape).wait()
        if not (shapes[:, 1:] == shape[1:]).all():
            raise linerate.InvalidArgument(
                f"all_reduce of sparse tensors: rank {self.rank()} has the shape {tuple(own.shape)}, "
                f"and the ranks have {[tuple(one[2:].tolist()) for one in shapes]}"
            )
        counts = shapes[:, 0].tolist()
        indices = [own._indices().new_empty(own.sparse_dim(), count) for count in counts]
        values = [own._values().new_empty(count, *own._values().shape[1:]) for count in counts]
        self.allgather([indices], [own._indices()]).wait()
        self.allgather([values], [own._values()]).wait()
        # Each step coalesces, so that the sum has one order on all ranks.
        total = torch.sparse_coo_tensor(indices[0], values[0], own.shape).coalesce()
        for index, value in zip(indices[1:], values[1:]):
            total = (total + torch.sparse_coo_tensor(index, value, own.shape)).coalesce()
        if options.op == "avg":
            total = total / self.size()
        copy(tensor, total)
        return Work((), [tensor], None, None, self.state.works)

    def allreduce_sparse(self, tensors: Any, opts: Any = None) -> Work:
        return self._allreduce_sparse(_one(tensors, "all_reduce"), Options(opts))

    def broadcast(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None) -> Work:
        tensor = _one(tensors, "broadcast")
        options = Options(opts, root=root, timeout=timeout)
        root, broadcast = options.root, self.state.communicator.broadcast
        return self._inout("broadcast", tensor, [tensor], partial(broadcast, root=root), options)

    def reduce(
        self, tensors: Any, opts: Any = None, op: Any = None, timeout: timedelta | None = None, *, root: int | None = None
    ) -> Work:
        tensor = _one(tensors, "reduce")
        options = Options(opts, op=op, root=root, timeout=timeout)
        root, op, reduce = options.root, options.op, self.state.communicator.reduce
        return self._inout("reduce", tensor, [tensor], partial(reduce, root=root, op=op), options)

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        source, target, options = packed(input), packed_output(output), Options(opts)
        gather, after = self.state.communicator.all_gather, copying_back([output], [target])
        return self._outs("all_gather", gather, source, target, options, after, [output])

    all_gather_single = _allgather_base

    def allgather(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None
    ) -> Work:
        source, options = packed(_one(input_tensors, "all_gather")), Options(opts, timeout=timeout)
        parts = _parts(output_tensors, "all_gather", self.size())
        for part in parts:
            if part.dtype != source.dtype:
                raise linerate.InvalidArgument(f"all_gather of {source.dtype} into a tensor of {part.dtype}")
        targets = [packed_output(part) for part in parts]
        (source,) = apart([source], targets)
        start = partial(self.state.communicator.all_gather_v, memory_of(source, True), [memory_of(each, True) for each in targets])
        return self._run("all_gather", [list(parts)], start, options, copying_back(parts, targets), [source])

    def allgather_coalesced(self, output_lists: Sequence[Sequence[torch.Tensor]], input_list: Sequence[torch.Tensor], opts: Any = None) -> Work:
        if output_lists and len(output_lists) != self.size():
            raise linerate.InvalidArgument(f"all_gather_coalesced takes a list for each of {self.size()} ranks, and got {len(output_lists)}")
        source, options = pack(input_list, is_moved=True), Options(opts)
        target = source.new_empty(self.size(), source.numel())
        gather = self.state.communicator.all_gather

        def after() -> None:
            for row, parts in zip(target, output_lists):
                unpack(row, parts)

        return self._outs("all_gather", gather, source, target, options, after, output_lists)

    def allgather_into_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        return self._together([self._allgather_base(out, own) for out, own in zip(outputs, inputs)], outputs, opts)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def _reduce_scatter_base(self, outputTensor: torch.Tensor, inputTensor: torch.Tensor, opts: Any = None) -> Work:
        source, target, options = packed(inputTensor), packed_output(outputTensor), Options(opts)
        op, scatter = options.op, self.state.communicator.reduce_scatter
        call = partial(scatter, op=op)
        return self._outs("reduce_scatter", call, source, target, options, copying_back([outputTensor], [target]), [outputTensor])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(
        self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, op: Any = None
    ) -> Work:
        output, options = _one(output_tensors, "reduce_scatter"), Options(opts, op=op, timeout=timeout)
        parts = _parts(input_tensors, "reduce_scatter", self.size())
        target = packed_output(output)
        sources = apart([packed(part) for part in parts], [target])
        scatter = self.state.communicator.reduce_scatter_v
        start = partial(scatter, [memory_of(each) for each in sources], memory_of(target), op=options.op)
        return self._run("reduce_scatter", [output], start, options, copying_back([output], [target]), sources)

    def reduce_scatter_tensor_coalesced(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Work:
        each = Options(opts)
        each.is_started = True
        works = []
        for out, own in zip(outputs, inputs):
            source, target = packed(own), packed_output(out)
            scatter = self.state.communicator.reduce_scatter
            call = partial(scatter, op=each.op)
            works.append(self._outs("reduce_scatter", call, source, target, each, copying_back([out], [target]), [out]))
        return self._together(works, outputs, opts)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None) -> Work:
        options = Options(opts, root=root, timeout=timeout)
        source, root = packed(_one(input_tensors, "gather")), options.root
        gather, counts = self.state.communicator.gather_v, [source.numel() * width_of(source)] * self.size()
        if self.rank() != root:
            if output_tensors and output_tensors[0]:
                raise linerate.InvalidArgument(f"gather: rank {self.rank()} is not the root, and has a list of outputs")
            start = partial(gather, memory_of(source, True), counts, None, root)
            return self._run("gather", [], start, options, inputs=[source])
        parts = _parts(output_tensors, "gather", self.size())
        for part in parts:
            if part.dtype != source.dtype or part.numel() != source.numel():
                raise linerate.InvalidArgument(
                    f"gather of {source.numel()} elements of {source.dtype} into {part.numel()} of {part.dtype}"
                )
        targets = [packed_output(part) for part in parts]
        (source,) = apart([source], targets)
        start = partial(gather, memory_of(source, True), counts, [memory_of(each, True) for each in targets], root)
        return self._run("gather", [list(parts)], start, options, copying_back(parts, targets), [source])

    def gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        options = Options(opts)
        source, target, root = packed(input), packed_output(output), options.root
        taken = memory_of(target, True) if self.rank() == root else None
        start = partial(self.state.communicator.gather, memory_of(source, True), taken, root)
        return self._run("gather", [output], start, options, copying_back([output], [target]), [source])

    gather_into_tensor = gather_single

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, timeout: timedelta | None = None, *, root: int | None = None) -> Work:
        options = Options(opts, root=root, timeout=timeout)
        output, root = _one(output_tensors, "scatter"), options.root
        target = packed_output(output)
        counts, given = [target.numel() * width_of(target)] * self.size(), None
        if self.rank() == root:
            parts = _parts(input_tensors, "scatter", self.size())
            for part in parts:
                if part.numel() != output.numel():
                    raise linerate.InvalidArgument(f"scatter of {part.numel()} elements into {output.numel()}")
            given = [memory_of(each, True) for each in apart([packed(part) for part in parts], [target])]
        start = partial(self.state.communicator.scatter_v, memory_of(target, True), counts, given, root)
        return self._run("scatter", [output], start, options, copying_back([output], [target]))

    def alltoall_base(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Any = None,
    ) -> Work:
        source, target, options = packed(input), packed_output(output), Options(opts)
        sent, received = self._counts(source, input_split_sizes), self._counts(target, output_split_sizes)
        given, taken = memory_of(source, True), memory_of(target, True)
        start = partial(self.state.communicator.all_to_all_v, given, sent, taken, received)
        return self._run("all_to_all", [output], start, options, copying_back([output], [target]), [source])

    all_to_all_single = alltoall_base

    def _counts(self, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """Elements per rank, of splits along the first dimension."""
        rows = tensor.shape[0] if tensor.dim() > 0 else tensor.numel()
        if not splits:
            if rows % self.size() != 0:
                raise linerate.InvalidArgument(f"all_to_all_single: {rows} rows are no multiple of {self.size()} ranks")
            splits = [rows // self.size()] * self.size()
        if sum(splits) != rows or len(splits) != self.size():
            raise linerate.InvalidArgument(f"all_to_all_single: splits {list(splits)} of {rows} rows for {self.size()} ranks")
        width = tensor.numel() // rows * width_of(tensor) if rows else 0
        return [split * width for split in splits]

    def alltoall(self, output_tensors: Sequence[torch.Tensor], input_tensors: Sequence[torch.Tensor], opts: Any = None) -> Work:
        options, parts = Options(opts), _parts(output_tensors, "all_to_all", self.size())
        targets = [packed_output(part) for part in parts]
        sources = apart([packed(part) for part in _parts(input_tensors, "all_to_all", self.size())], targets)
        given, taken = ([memory_of(each, True) for each in both] for both in (sources, targets))
        start = partial(self.state.communicator.all_to_all_v, given, None, taken, None)
        return self._run("all_to_all", list(parts), start, options, copying_back(parts, targets), sources)

    def barrier(self, opts: Any = None, timeout: timedelta | None = None) -> Work:
        options = Options(opts, timeout=timeout)
        works = list(self.state.works.values())
        after = (lambda: _finish(works)) if works else None
        return self._run("barrier", [], self.state.communicator.barrier, options, after)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier whose errors name the ranks that have not come, in the words of Gloo."""
        # A backend is given options in place of the time.
        given: timedelta | None = getattr(timeout, "timeout", timeout)
        limit = self.state.timeout if given is None or given < timedelta(0) else given.total_seconds()
        monitored_barrier(self.state.communicator, next(self.state.barriers), limit, wait_all_ranks)

    # Messages.

    def send(self, tensors: Any, dstRank: int, tag: int = 0) -> Work:
        tensor, send = packed(_one(tensors, "send")), self.state.communicator.send
        memory = memory_of(tensor, True)
        start = partial(send, memory, dstRank, tag)
        return self._run("send", tensors, start, _to(dstRank, tag))

    def recv(self, tensors: Any, srcRank: int, tag: int = 0) -> Work:
        receive = self.state.communicator.recv
        call = partial(receive, peer=srcRank, tag=tag)
        return self._inout("recv", _one(tensors, "recv"), tensors, call, _to(srcRank, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        receive = self.state.communicator.recv
        call = partial(receive, tag=tag)
        return self._inout("recv", _one(tensors, "recv"), tensors, call, _to(-1, tag))

    # Several calls as one.

    def _together(self, works: Sequence[Work], tensors: Sequence[Any], opts: Any = None) -> Work:
        operations = [operation for work in works for operation in work._operations]

        def after() -> None:
            for work in works:
                work._finish()

        work = Work(operations, tensors, self.state.notifier, after, self.state.works)
        work.record = self.state.record
        if not getattr(opts, "asyncOp", True):
            work.wait()
        return work

    def _start_coalescing(self, device: Any = None) -> None:
        self.state.coalesced = []

    def _end_coalescing(self, device: Any = None) -> Work:
        works, self.state.coalesced = self.state.coalesced or [], None
        return self._together(works, [])

    # Ends.

    def shutdown(self) -> None:
        self.state.close()

    def abort(self) -> None:
        self.state.communicator.abort("the process group was aborted")
        self.state.close()


def _finish(works: Sequence[Work]) -> None:
    """After a barrier the collectives before it have ended, also those that nobody has waited for."""
    for work in works:
        with contextlib.suppress(linerate.Error):
            if not work.is_completed() and not work.is_message:
                work.wait()


def _describe(tensors: Sequence[Any]) -> str:
    flat = [one for each in tensors for one in (each if isinstance(each, (list, tuple)) else [each])]
    return f"{sum(one.numel() * one.element_size() for one in flat if isinstance(one, torch.Tensor))} B"

