"""Mismatches with TORCH_DISTRIBUTED_DEBUG=DETAIL, which name the calls of all ranks: torch_detail.py RANKS..."""

import inspect
import os

import linerate.torch
import torch
import torch.distributed as dist
from torch_group import join, start_all


def line():
    """The caller's file and line, as a text of an error names it."""
    frame = inspect.currentframe().f_back
    return f"{os.path.abspath(frame.f_code.co_filename)}:{frame.f_lineno}"


SAID = []


def told(*words):
    """Keeps what the line of this rank's call must say."""
    SAID[:] = words


# The calls of even and of odd ranks. told() stands on the line of the call, which line() gives.


def other_shape(rank, **how):
    if rank % 2 == 0:
        return told(line(), "float32 (3,)") or dist.all_reduce(torch.ones(3), **how)
    return told(line(), "float32 (2, 4)") or dist.all_reduce(torch.ones(2, 4), **how)


def other_type(rank, **how):
    if rank % 2 == 0:
        return told(line(), "float32 (5,)") or dist.all_reduce(torch.ones(5), **how)
    return told(line(), "int64 (5,)") or dist.all_reduce(torch.ones(5, dtype=torch.int64), **how)


def other_call(rank, **how):
    if rank % 2 == 0:
        return told(line(), "all_reduce sum float32 (5,)") or dist.all_reduce(torch.ones(5), **how)
    return told(line(), "broadcast root 0 float32 (5,)") or dist.broadcast(torch.ones(5), 0, **how)


def other_operator(rank, **how):
    if rank % 2 == 0:
        return told(line(), "all_reduce sum") or dist.all_reduce(torch.ones(5), **how)
    return told(line(), "all_reduce max") or dist.all_reduce(torch.ones(5), dist.ReduceOp.MAX, **how)


def other_root(rank, **how):
    if rank % 2 == 0:
        return told(line(), "reduce sum root 0") or dist.reduce(torch.ones(5), 0, **how)
    return told(line(), "reduce sum root 1") or dist.reduce(torch.ones(5), 1, **how)


def other_gather(rank, **how):
    if rank % 2 == 0:
        out = torch.zeros(4 * dist.get_world_size())
        return told(line(), "all_gather float32 (4,)") or dist._all_gather_base(out, torch.ones(4), **how)
    return told(line(), "all_reduce sum float32 (4,)") or dist.all_reduce(torch.ones(4), **how)


CASES = [other_shape, other_type, other_call, other_operator, other_root, other_gather]
WAYS = ["waited", "started", "by future"]


def differ(rank, size, case, way):
    group = dist.new_group()
    # Calls in which the ranks agree are not named.
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=group)
    try:
        work = case(rank, group=group, async_op=way != "waited")
        if way == "started":
            work.wait()
        elif way == "by future":
            work.get_future().wait()
        # A rank that only gives something may be through before the others see it.
        dist.barrier(group=group)
    except RuntimeError as error:
        text = str(error)
        if isinstance(error, linerate.Error):
            assert isinstance(error.first_cause, linerate.Mismatch), error
        else:
            assert way == "by future", error
    else:
        raise AssertionError(f"{case.__name__} was taken")
    # What all ranks have said must stand in the text of each.
    every = [None] * size
    dist.all_gather_object(every, list(SAID))
    for peer, words in enumerate(every):
        its = [one for one in text.splitlines() if one.strip().startswith(f"rank {peer}:")]
        assert its and all(word in its[-1] for word in words), f"{case.__name__}, {way}: {words} of rank {peer}: {text}"
        assert "call 4" in its[-1], its


def messages(rank, size):
    """A message of another type than what is received."""
    group = dist.new_group()
    try:
        if rank == 0:
            dist.send(torch.ones(3), 1, group=group, tag=5)
        elif rank == 1:
            dist.recv(torch.ones(3, dtype=torch.int64), 0, group=group, tag=5)
        dist.barrier(group=group)
    except linerate.Error as error:
        assert isinstance(error.first_cause, linerate.Mismatch), error
        words = ["rank 0: send to 1, tag 5, float32 (3,)", "rank 1: recv from 0, tag 5, int64 (3,)"]
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError("a message of another type was taken")


def run(rank, size, folder):
    dist.set_debug_level(dist.DebugLevel.DETAIL)
    # What the library tells of each operation is not looked at; exceptions go to the parent.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    join(rank, size, folder)
    for case in CASES:
        for way in WAYS:
            differ(rank, size, case, way)
    messages(rank, size)
    # A rank that does not come to tell its call does not hold up the others for ever.
    dist.set_debug_level(dist.DebugLevel.OFF)
    group = dist.new_group()
    try:
        other_shape(rank, group=group)
    except linerate.Error as error:
        assert isinstance(error.first_cause, linerate.Mismatch) and len(str(error).splitlines()) == 1, error
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: a mismatch names the calls of all", flush=True)


if __name__ == "__main__":
    start_all(run)
