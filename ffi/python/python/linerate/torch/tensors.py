"""Tensors of torch as memory of linerate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import linerate
import torch
import torch.distributed as dist

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
    for known, name in _OPERATORS:
        if op == known:
            return name
    raise linerate.InvalidArgument(f"linerate has no operator {op}")


def check(tensor: torch.Tensor) -> str:
    """The type of a tensor that can be used."""
    if not tensor.is_cpu:
        raise linerate.InvalidArgument(f"a tensor lies on {tensor.device}: linerate takes tensors of the CPU, copy it there")
    if tensor.layout != torch.strided:
        raise linerate.InvalidArgument(f"a tensor has the layout {tensor.layout}: linerate takes dense ones here")
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        raise linerate.InvalidArgument(f"linerate has no type for elements of {tensor.dtype}")
    return dtype


def memory_of(tensor: torch.Tensor) -> Memory:
    """A tensor without gaps as memory, which keeps the tensor."""
    dtype = check(tensor)
    return tensor.data_ptr(), tensor.numel(), dtype, tensor


def pack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A copy of several tensors, one after the other."""
    for tensor in tensors:
        check(tensor)
        if tensor.dtype != tensors[0].dtype:
            raise linerate.InvalidArgument(f"a list has tensors of {tensors[0].dtype} and of {tensor.dtype}: give one type")
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]) if tensors else torch.empty(0)


def copy(target: torch.Tensor, source: torch.Tensor) -> None:
    with torch.no_grad():
        target.copy_(source)


def copy_back(output: torch.Tensor, target: torch.Tensor) -> None:
    """Copies to a tensor with gaps from the one without that stood for it."""
    if target.data_ptr() != output.data_ptr():
        copy(output, target)


def unpack(packed: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copies what lies together to several tensors."""
    at = 0
    for tensor in tensors:
        copy(tensor, packed[at : at + tensor.numel()].view(tensor.shape))
        at += tensor.numel()
