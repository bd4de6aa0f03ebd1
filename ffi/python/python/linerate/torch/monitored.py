"""torch's monitored barrier: its errors name the ranks that have not come, in the words of Gloo."""

from __future__ import annotations

import time

import linerate
import torch
from linerate.torch.tensors import memory_of

# Tags of torch are 0 or more in 31 bits.
_TAG_OF_ARRIVALS, _TAG_OF_ANSWERS = 0xFFFF_FF01, 0xFFFF_FF02


def monitored_barrier(comm: linerate.Communicator, number: int, limit: float, wait_all_ranks: bool) -> None:
    """The `number`th of a group; rank 0 waits for the others for `limit` seconds."""
    end = time.monotonic() + limit
    if comm.rank == 0:
        _ask(comm, number, limit, end, wait_all_ranks)
    else:
        _arrive(comm, number, end)


def _arrive(comm: linerate.Communicator, number: int, end: float) -> None:
    told = torch.tensor([number, 0])
    comm.send(memory_of(told), 0, _TAG_OF_ARRIVALS, async_op=True)
    while True:
        answer = torch.zeros(2, dtype=torch.int64)
        receive = comm.recv(memory_of(answer), 0, _TAG_OF_ANSWERS, async_op=True)
        # Rank 0 waits as long for each of the others, and its answer must not come too late.
        if not receive.wait(max(end + 1.0 - time.monotonic(), 0.0)):
            receive.cancel_receive()
        elif answer[0] < number:
            continue
        elif answer[1] == 0:
            return
        raise RuntimeError(
            f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting "
            "for send/recv from rank 0. Please check rank 0 logs for faulty rank."
        )


def _ask(comm: linerate.Communicator, number: int, limit: float, end: float, wait_all_ranks: bool) -> None:
    arrived: list[int] = []
    missing: list[int] = []
    for rank in range(1, comm.ranks):
        if not wait_all_ranks and not missing and time.monotonic() > end:
            text = f"Rank 0 timed out in monitoredBarrier after {int(limit * 1000)} ms."
            raise RuntimeError(f"{text} Successfully processed ranks: {', '.join(map(str, arrived)) or 'none'}")
        if _has_arrived(comm, rank, number, end):
            arrived.append(rank)
        else:
            missing.append(rank)
            if not wait_all_ranks:
                break
    answer = torch.tensor([number, len(missing)])
    for rank in arrived:
        comm.send(memory_of(answer), rank, _TAG_OF_ANSWERS, async_op=True)
    if missing:
        ranks, millis = ", ".join(map(str, missing)), int(limit * 1000)
        raise RuntimeError(
            f"[Rank 0]: Rank{'s' if len(missing) > 1 else ''} {ranks} failed to pass monitoredBarrier in {millis} ms"
        )


def _has_arrived(comm: linerate.Communicator, rank: int, number: int, end: float) -> bool:
    while True:
        said = torch.zeros(2, dtype=torch.int64)
        receive = comm.recv(memory_of(said), rank, _TAG_OF_ARRIVALS, async_op=True)
        try:
            if not receive.wait(max(end - time.monotonic(), 0.0)):
                receive.cancel_receive()
                return False
        except linerate.Error:
            return False
        # One of a barrier that has failed before is not this one.
        if said[0] >= number:
            return True
