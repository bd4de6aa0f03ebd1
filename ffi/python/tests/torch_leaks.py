"""Groups made and destroyed many times leave nothing behind: torch_leaks.py [--long] RANKS..."""

import gc
import os
import sys
import time
from datetime import timedelta

import linerate.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch_group import start_all

# Cycles of one rank and of more, of which the first ones are not compared.
ALONE, TOGETHER = (1000, 300) if "--long" in sys.argv else (300, 60)
FIRST_SHARE = 0.3
# Memory that may grow by chance: pages of the allocator, tables of Python. A leaked group has
# several hundred KiB.
SLACK_BYTES = 6 << 20


def held():
    """Threads, descriptors and resident bytes of this process."""
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")), resident


def cycle(rank, size, folder, number, is_compared):
    if size == 1:
        where = {"store": dist.HashStore()}
    else:
        where = {"init_method": f"file://{folder}/{number}"}
    dist.init_process_group("linerate", rank=rank, world_size=size, timeout=timedelta(seconds=60), **where)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    dist.all_reduce(tensor, async_op=True).wait()
    # Its thread must end with the group.
    dist.all_reduce(tensor, async_op=True).get_future().wait()
    pair = dist.new_group()
    dist.barrier(group=pair)
    assert tensor[0] == size**3
    # Nobody waits for it: what it holds is let go by the next group's operations at the latest.
    if not is_compared:
        dist.all_reduce(tensor, async_op=True)
    dist.destroy_process_group()


def run(rank, size, folder):
    torch.set_num_threads(1)
    cycles = ALONE if size == 1 else TOGETHER
    first = int(cycles * FIRST_SHARE)
    for number in range(cycles):
        cycle(rank, size, folder, number, number + 1 in (first, cycles))
        if number + 1 == first:
            before = held()
    after = held()
    # What has ended may still be listed for a moment.
    for _ in range(100):
        if after[0] <= before[0] and after[1] <= before[1]:
            break
        time.sleep(0.02)
        after = held()
    assert after[0] <= before[0] and after[1] <= before[1], f"threads and descriptors: {before[:2]}, then {after[:2]}"
    grown = after[2] - before[2]
    assert grown < SLACK_BYTES, f"memory grew by {grown >> 10} KiB in {cycles - first} cycles"
    if rank == 0:
        print(f"{size} ranks, {cycles} cycles: memory grew by {grown >> 10} KiB in the last {cycles - first}", flush=True)


if __name__ == "__main__":
    start_all(run)
