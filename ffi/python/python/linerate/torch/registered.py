"""Tensors in registered memory: collectives use them where they lie, and copy nothing."""

# torch looks at the annotations of a hook, which must be objects: no `from __future__ import annotations`.
import math
import weakref
from collections.abc import Sequence
from typing import Any

import linerate
import torch
import torch.distributed as dist
from linerate.torch.calls import Calls


def calls_of(group: Any) -> Calls:
    group = dist.distributed_c10d._get_default_group() if group is None else group
    if isinstance(group, Calls):
        return group
    backend = group._get_backend(torch.device("cpu")) if hasattr(group, "_get_backend") else None
    if isinstance(backend, Calls):
        return backend
    raise linerate.InvalidArgument("the group is not one of linerate: give one that init_process_group('linerate') has made")


def empty(*shape: int | Sequence[int], dtype: torch.dtype | None = None, group: Any = None) -> torch.Tensor:
    """A tensor of zeros in registered memory of a group: collectives of the group do not copy it.

    shape: its dimensions, as torch.empty() takes them. dtype: torch's default type if None. It stays valid after the
    group was destroyed.
    """
    sizes: list[Any] = [*shape[0]] if len(shape) == 1 and not isinstance(shape[0], int) else [*shape]
    dtype = torch.get_default_dtype() if dtype is None else dtype
    count = math.prod(sizes)
    element = torch.empty(0, dtype=dtype).element_size()
    buffer = calls_of(group).state.communicator.alloc(count * element, "u8")
    bytes_of: torch.Tensor = torch.from_dlpack(buffer)
    return bytes_of.view(dtype).view(sizes) if count else torch.empty(sizes, dtype=dtype)


def mean_of(calls: Calls, tensor: torch.Tensor) -> Any:
    """The future of a tensor's mean over the ranks, in place."""
    if tensor.dtype in (torch.float32, torch.float64):
        # The last step of the reduction divides, which spares a pass over the tensor.
        return calls.allreduce(tensor, op=dist.ReduceOp.AVG).get_future()
    # The sum of short floats could be infinite where their mean is not.
    return calls.allreduce(tensor.div_(calls.size())).get_future()


class _Buckets:
    """The buckets of a DDP module in registered memory."""

    def __init__(self, group: Any) -> None:
        self._group = group
        self._calls = calls_of(group)
        # The addresses of buckets that were moved.
        self._moved: set[int] = set()
        # Where torch cannot move a bucket: registered memory for its copy, by the bucket's index.
        self._copies: dict[int, torch.Tensor] = {}
        self._can_swap = hasattr(torch._C.StorageBase, "_swap_data_ptr_")

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        tensor: torch.Tensor = bucket.buffer()
        if self._can_swap:
            if tensor.data_ptr() not in self._moved:
                self._move(tensor)
            return mean_of(self._calls, tensor).then(lambda done: tensor)
        own = self._copies.get(bucket.index())
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            own = self._copies[bucket.index()] = empty(tensor.shape, dtype=tensor.dtype, group=self._group)
        own.copy_(tensor)
        return mean_of(self._calls, own).then(lambda done: tensor.copy_(own))

    def _move(self, tensor: torch.Tensor) -> None:
        """Moves a bucket, and all views of it, to registered memory."""
        storage: Any = tensor.untyped_storage()
        own = empty(storage.nbytes(), dtype=torch.uint8, group=self._group)
        own.copy_(torch.empty(0, dtype=torch.uint8).set_(storage))
        storage._swap_data_ptr_(own.untyped_storage())
        self._moved.add(tensor.data_ptr())


_REGISTERED: weakref.WeakKeyDictionary[Any, _Buckets] = weakref.WeakKeyDictionary()


def register(ddp: torch.nn.parallel.DistributedDataParallel) -> None:
    """Puts the buckets of a DDP module into registered memory, so that its allreduces copy nothing.

    It takes the place of the module's communication hook. Before torch 2.12 or so buckets cannot be moved, and are
    copied to registered memory and back: for ranks of one host that is slower than DDP without it.
    """
    if ddp in _REGISTERED:
        return
    buckets = _REGISTERED[ddp] = _Buckets(ddp.process_group)
    ddp.register_comm_hook(None, buckets.hook)
