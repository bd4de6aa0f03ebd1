"""Every call by type, operator, layout and size, beside Gloo and beside arithmetic: torch_matrix.py RANKS...

With --list first, rank 0 prints what only one of the two backends takes.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch_group import gloo, join, start_all

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
COMPLEX = [torch.complex64, torch.complex128]
TYPES = [*INTEGERS, *FLOATS, torch.bool, *COMPLEX]
# Those that are moved only; linerate has no arithmetic for some of them, and moves bytes.
MOVED_TYPES = ["complex32", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"]
ARITHMETIC = ["SUM", "PRODUCT", "MIN", "MAX", "AVG"]
BITS = ["BAND", "BOR", "BXOR"]
LAYOUTS = ["contiguous", "strided", "transposed", "scalar", "empty"]
# Elements of f32 and i64, each in the layouts that can have it.
COUNTS = [1, 2, 7, 64, 1000, 4097, 65_536]
LARGE = 1 << 20


def values(rank, shape, dtype, seed):
    """Numbers whose sums and products over four ranks are exact in every type."""
    count = int(torch.tensor(shape).prod()) if shape else 1
    numbers = (torch.arange(count) * 5 + rank * 3 + seed) % (2 if dtype in (torch.float16, torch.bfloat16) else 3) + 1
    if dtype.is_complex:
        numbers = torch.complex(numbers.double(), (numbers - 2).double())
    elif dtype == torch.bool:
        numbers = numbers > 1
    return numbers.to(dtype).reshape(shape)


def lay(tensor, layout):
    """A copy of a tensor in this layout."""
    if layout == "strided":
        gaps = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        return gaps[..., ::2].copy_(tensor)
    if layout == "transposed":
        return torch.zeros(tensor.shape[::-1], dtype=tensor.dtype).t().copy_(tensor)
    return tensor.clone()


def shape_of(layout, count):
    return {"scalar": (), "empty": (0, 3), "strided": (count, 3), "transposed": (count, 3)}.get(layout, (count,))


def combined(op, tensors):
    """The arithmetic of an operator."""
    dtype = tensors[0].dtype
    if op in BITS:
        join_two = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[op]
    else:
        wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
        tensors = [tensor.to(wide) for tensor in tensors]
        join_two = {"PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}.get(op, torch.add)
    total = tensors[0]
    for tensor in tensors[1:]:
        total = join_two(total, tensor)
    return (total / len(tensors) if op == "AVG" else total).to(dtype)


class Case:
    """The tensors of one call on all ranks; `given(rank)` is what a rank gives."""

    def __init__(self, rank, size, dtype, op, layout, count, seed):
        self.rank, self.size, self.dtype, self.op, self.layout, self.seed = rank, size, dtype, op, layout, seed
        self.shape = shape_of(layout, count)
        self.root = seed % size

    def given(self, rank, part=0):
        return values(rank, self.shape, self.dtype, self.seed + 7 * part)

    def whole(self, rank):
        """A part for each rank, along the first dimension."""
        return torch.cat([self.given(rank, part) for part in range(self.size)])

    def lay(self, tensor):
        return lay(tensor, self.layout)

    def hole(self):
        return self.lay(torch.zeros(self.shape, dtype=self.dtype))

    def holes(self):
        return [self.hole() for _ in range(self.size)]

    def reduced(self, part=0):
        return combined(self.op, [self.given(peer, part) for peer in range(self.size)])

    def operator(self):
        return getattr(dist.ReduceOp, self.op)


# Each call gives what it has computed and what is wanted, on this rank.


def all_reduce(case, group):
    tensor = case.lay(case.given(case.rank))
    dist.all_reduce(tensor, case.operator(), group=group)
    return [tensor], [case.reduced()]


def all_reduce_async(case, group):
    tensor = case.lay(case.given(case.rank))
    dist.all_reduce(tensor, case.operator(), group=group, async_op=True).wait()
    return [tensor], [case.reduced()]


def all_reduce_coalesced(case, group):
    tensors = [case.lay(case.given(case.rank, part)) for part in range(3)]
    dist.all_reduce_coalesced(tensors, case.operator(), group=group)
    return tensors, [case.reduced(part) for part in range(3)]


def reduce(case, group):
    tensor = case.lay(case.given(case.rank))
    dist.reduce(tensor, case.root, case.operator(), group=group)
    return ([tensor], [case.reduced()]) if case.rank == case.root else ([], [])


def broadcast(case, group):
    tensor = case.lay(case.given(case.rank))
    dist.broadcast(tensor, case.root, group=group)
    return [tensor], [case.given(case.root)]


def all_gather(case, group):
    outs = case.holes()
    dist.all_gather(outs, case.lay(case.given(case.rank)), group=group)
    return outs, [case.given(peer) for peer in range(case.size)]


def all_gather_coalesced(case, group):
    # Its lists have a place per rank, with one tensor for each that is given.
    outs = [[case.hole(), case.hole()] for _ in range(case.size)]
    dist.all_gather_coalesced(outs, [case.lay(case.given(case.rank, part)) for part in range(2)], group=group)
    return sum(outs, []), [case.given(peer, part) for peer in range(case.size) for part in range(2)]


def all_gather_into_tensor(case, group):
    out = case.lay(torch.zeros_like(case.whole(0)))
    dist._all_gather_base(out, case.lay(case.given(case.rank)), group=group)
    return [out], [torch.cat([case.given(peer) for peer in range(case.size)])]


def reduce_scatter(case, group):
    out = case.hole()
    dist.reduce_scatter(out, [case.lay(case.given(case.rank, part)) for part in range(case.size)], case.operator(), group=group)
    return [out], [case.reduced(case.rank)]


def reduce_scatter_tensor(case, group):
    out = case.hole()
    # The function of torch 1.13 always sums, whatever operator it is given.
    dist._reduce_scatter_base(out, case.lay(case.whole(case.rank)), case.operator(), group=group)
    return [out], [case.reduced(case.rank)]


def gather(case, group):
    outs = case.holes() if case.rank == case.root else None
    dist.gather(case.lay(case.given(case.rank)), outs, case.root, group=group)
    return (outs, [case.given(peer) for peer in range(case.size)]) if outs else ([], [])


def scatter(case, group):
    out = case.hole()
    parts = [case.lay(case.given(case.root, part)) for part in range(case.size)]
    dist.scatter(out, parts if case.rank == case.root else None, case.root, group=group)
    return [out], [case.given(case.root, case.rank)]


def all_to_all(case, group):
    outs = case.holes()
    dist.all_to_all(outs, [case.lay(case.given(case.rank, part)) for part in range(case.size)], group=group)
    return outs, [case.given(peer, case.rank) for peer in range(case.size)]


def all_to_all_single(case, group):
    out = case.lay(torch.zeros_like(case.whole(0)))
    dist.all_to_all_single(out, case.lay(case.whole(case.rank)), group=group)
    return [out], [torch.cat([case.given(peer, case.rank) for peer in range(case.size)])]


def send_and_recv(case, group):
    following, before, out = (case.rank + 1) % case.size, (case.rank - 1) % case.size, case.hole()
    sent = dist.isend(case.lay(case.given(case.rank)), following, group=group, tag=case.seed)
    dist.recv(out, before, group=group, tag=case.seed)
    sent.wait()
    return [out], [case.given(before)]


def coalesced(case, group):
    together = next(it for name, it in vars(dist.distributed_c10d).items() if name.startswith("_coalescing_"))
    tensors = [case.lay(case.given(case.rank, part)) for part in range(3)]
    with together(group=group):
        for tensor in tensors:
            dist.all_reduce(tensor, case.operator(), group=group)
    return tensors, [case.reduced(part) for part in range(3)]


REDUCING = [all_reduce, all_reduce_async, all_reduce_coalesced, reduce, reduce_scatter, reduce_scatter_tensor]
MOVING = [broadcast, all_gather, all_gather_into_tensor, all_gather_coalesced, gather, scatter, all_to_all, all_to_all_single]
# Gloo of torch 1.13 divides by zero where nothing is to be moved.
CRASHES = torch.__version__ < "2"
# Their parts lie along a first dimension.
WITHOUT_SCALARS = {all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single}
# Later versions have others in their place.
if not hasattr(dist, "all_reduce_coalesced"):
    REDUCING.remove(all_reduce_coalesced)
if not hasattr(dist, "all_gather_coalesced"):
    MOVING.remove(all_gather_coalesced)
if torch.__version__ >= "2":
    REDUCING.append(coalesced)


def operators(dtype):
    if dtype == torch.bool:
        return ["SUM", "PRODUCT", "MIN", "MAX", *BITS]
    if dtype.is_complex:
        return ["SUM", "PRODUCT", "AVG"]
    if dtype.is_floating_point:
        return ARITHMETIC
    return [*ARITHMETIC, *BITS]


def cases(rank, size, is_all):
    """All that is tried, in one order on all ranks."""
    seed = 0
    moving = MOVING + [send_and_recv] * (size > 1)
    for dtype in TYPES if is_all else (torch.float32, torch.int64):
        for layout in LAYOUTS:
            for call in REDUCING + moving:
                if layout == "scalar" and call in WITHOUT_SCALARS:
                    continue
                for op in operators(dtype) if call in REDUCING else ["SUM"]:
                    seed += 1
                    yield call, Case(rank, size, dtype, op, layout, 5, seed)
    for dtype in (torch.float32, torch.int64):
        for count in COUNTS:
            for layout in ("contiguous", "strided"):
                for call in REDUCING + moving:
                    seed += 1
                    yield call, Case(rank, size, dtype, "MAX" if seed % 2 else "SUM", layout, count, seed)
    for dtype in [getattr(torch, name) for name in MOVED_TYPES if hasattr(torch, name)]:
        for layout in ("contiguous", "strided"):
            for call in moving:
                seed += 1
                yield call, Case(rank, size, dtype, "SUM", layout, 5, seed)
    for call in REDUCING + moving:
        seed += 1
        yield call, Case(rank, size, torch.float32, "SUM", "contiguous", LARGE // size, seed)


def is_equal(one, other):
    """torch compares no elements of some types."""
    if str(one.dtype)[6:] in MOVED_TYPES:
        one, other = one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
    return torch.equal(one, other)


def is_close(one, other, op):
    return torch.allclose(one, other) if op == "AVG" else is_equal(one, other)


def compare(got, wanted, op, what):
    assert len(got) == len(wanted), what
    for one, other in zip(got, wanted):
        assert is_close(one, other, op), f"{what}: {one} is not {other}"


def tried(call, case, group, refused, key):
    """What a call has computed, and what is wanted; None where the backend refuses it, as it did before."""
    if group is not None and CRASHES and case.layout == "empty" and call in MOVING:
        refused[key] = "it would end the process"
    if key in refused:
        return None
    try:
        return call(case, group)
    except (RuntimeError, ValueError, TypeError) as error:
        refused[key] = str(error).splitlines()[0]
        return None


def show(title, keys):
    """A line for all calls that have the same types and operators."""
    lines = {}
    for call, dtype, op, layout in sorted(keys):
        lines.setdefault((dtype, op), {}).setdefault(call, []).append(layout)
    same = {}
    for (dtype, op), calls in lines.items():
        text = ", ".join(call if len(its) >= 4 else f"{call} ({', '.join(its)})" for call, its in calls.items())
        same.setdefault(text, []).append(f"{dtype} {op}".strip())
    for text, kinds in same.items():
        print(f"{title}: {', '.join(kinds)}: {text}", flush=True)


def run(rank, size, folder):
    torch.set_num_threads(1)
    join(rank, size, folder)
    theirs = gloo()
    is_all = os.environ.get("LINERATE_TRANSPORT") != "tcp"
    refused_ours, refused_theirs, wrong, count = {}, {}, set(), 0
    for call, case in cases(rank, size, is_all):
        key = call.__name__, str(case.dtype)[6:], case.op if call in REDUCING else "", case.layout
        what = f"{' '.join(key)} {case.shape}"
        other = tried(call, case, theirs, refused_theirs, key)
        ours = tried(call, case, None, refused_ours, key)
        count += 1
        if ours is not None:
            compare(*ours, case.op, f"linerate: {what}")
            if other is not None and not all(is_close(one, right, case.op) for one, right in zip(*other)):
                # Gloo takes some tensors with gaps for tensors without, and in torch 2.6 its
                # reduce_scatter_tensor sums, whatever the operator is.
                assert case.layout in ("strided", "transposed") or call is reduce_scatter_tensor, f"Gloo: {what}"
                wrong.add(key)
    if "--list" in sys.argv and rank == 0:
        show("only linerate takes", set(refused_theirs) - set(refused_ours))
        show("only Gloo takes", set(refused_ours) - set(refused_theirs))
        show("neither takes", set(refused_ours) & set(refused_theirs))
        show("Gloo computes something else", wrong)
    only_gloo = set(refused_ours) - set(refused_theirs)
    assert not only_gloo, f"Gloo takes these: {[(key, refused_ours[key]) for key in sorted(only_gloo)]}"
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: {count} calls as Gloo and arithmetic have them", flush=True)


if __name__ == "__main__":
    start_all(run)
