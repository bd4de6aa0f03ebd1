"""Tensors of torch as memory of linerate."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from typing import Any

import linerate
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

Memory = tuple[int, int, str, object]

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
for _torch, _ours in (
    ("float8_e4m3fn", "f8e4m3"),
    ("float8_e5m2", "f8e5m2"),
    ("uint16", "u16"),
    ("uint32", "u32"),
    ("uint64", "u64"),
):
    if hasattr(torch, _torch):
        _TYPES[getattr(torch, _torch)] = _ours


def _can_register() -> bool:
    """Whether a Backend can be written in Python: with torch 2.15, and not with 2.11."""
    try:
        c10d.Backend(0, 1)
    except (TypeError, AttributeError):
        return False
    return True


HAS_BACKEND = _can_register()

_SUM = dist.ReduceOp.SUM
_OPERATORS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "avg"),
    (dist.ReduceOp.PRODUCT, "prod"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.BAND, "bitand"),
    (dist.ReduceOp.BOR, "bitor"),
    (dist.ReduceOp.BXOR, "bitxor"),
)


def operator_of(op: Any) -> str:
    """The name that linerate has for an operator of torch."""
    if op == _SUM:
        return "sum"
    for known, name in _OPERATORS:
        if op == known:
            return name
    raise linerate.InvalidArgument(f"linerate has no operator {op}")


def check(tensor: torch.Tensor) -> str:
    """The type of a tensor that can be used."""
    if not tensor.is_cpu:
        older = "" if HAS_BACKEND else "; a group of two backends, as cpu:linerate,cuda:nccl, needs a later torch, such as 2.15"
        raise linerate.InvalidArgument(f"a tensor lies on {tensor.device}: linerate takes tensors of the CPU, copy it there{older}")
    if tensor.layout != torch.strided:
        raise linerate.InvalidArgument(f"a tensor has the layout {tensor.layout}: linerate takes dense ones here")
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        raise linerate.InvalidArgument(f"linerate has no type for elements of {tensor.dtype}")
    return dtype


def memory_of(tensor: torch.Tensor, is_moved: bool = False) -> Memory:
    """A tensor without gaps as memory, which keeps the tensor; is_moved: as moved() has it."""
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None or not tensor.is_cpu or tensor.layout != torch.strided:
        if is_moved and tensor.is_cpu:
            tensor = moved(tensor)
        dtype = check(tensor)
    return tensor.data_ptr(), tensor.numel(), dtype, tensor


def plain_memory_of(tensor: torch.Tensor) -> Memory | None:
    """The memory of a tensor that can be used as it lies; None for all others."""
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None or not tensor.is_cpu or tensor.layout != torch.strided or not is_plain(tensor):
        return None
    return tensor.data_ptr(), tensor.numel(), dtype, tensor


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor is its elements, one after the other."""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor with these elements: itself, or a copy."""
    if tensor.layout != torch.strided:
        check(tensor)
    return tensor.detach() if is_plain(tensor) else tensor.detach().resolve_conj().resolve_neg().contiguous()


def packed_output(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor whose elements are copied to this one later."""
    if tensor.layout == torch.strided and is_plain(tensor):
        return tensor.detach()
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise linerate.InvalidArgument("an output has several elements at one place in memory: give a tensor that was not expanded")
    return packed(tensor)


def moved(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor for a call that only moves it: where linerate does not have its type, its bytes."""
    return tensor if tensor.dtype in _TYPES or tensor.layout != torch.strided else tensor.reshape(-1).view(torch.uint8)


def width_of(tensor: torch.Tensor) -> int:
    """The elements that moved() makes of one element."""
    return 1 if tensor.dtype in _TYPES else tensor.element_size()


def pack(tensors: Sequence[torch.Tensor], is_moved: bool = False) -> torch.Tensor:
    """A copy of several tensors, one after the other; is_moved: as moved() has each."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype:
            raise linerate.InvalidArgument(f"a list has tensors of {tensors[0].dtype} and of {tensor.dtype}: give one type")
    if not tensors:
        return torch.empty(0)
    if is_moved:
        tensors = [moved(packed(tensor)) for tensor in tensors]
    for tensor in tensors:
        check(tensor)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if source.dtype != target.dtype:
        source = source.view(target.dtype)
    if source.shape != target.shape:
        source = source.view(target.shape)
    with torch.no_grad():
        target.copy_(source)


def copying_back(outputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> Callable[[], None] | None:
    """Copies to outputs from the tensors without gaps that stood for them; None if these are the outputs."""
    pairs = [(output, target) for output, target in zip(outputs, targets) if target.data_ptr() != output.data_ptr() or not is_plain(output)]

    def copy_all() -> None:
        for output, target in pairs:
            copy(output, target)

    return copy_all if pairs else None


def apart(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that are read while others are written: those that share memory with one of these are copied."""
    written = sorted((each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in targets)
    read = []
    for each in sources:
        start, end = each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()
        before = bisect.bisect_left(written, (end, 0))
        read.append(each.clone() if before > 0 and written[before - 1][1] > start else each)
    return read


def unpack(together: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies what lies together to several tensors."""
    at = 0
    for tensor in tensors:
        count = tensor.numel() * (width_of(tensor) if together.dtype == torch.uint8 else 1)
        copy(tensor, together[at : at + count])
        at += count
