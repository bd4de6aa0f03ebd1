"""Ends of jobs and bad input under torch, in real processes: python3 torch_ends.py RANKS..."""

import gc
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from datetime import timedelta

import linerate.torch
import torch
import torch.distributed as dist
from torch_group import join, start_all


def raises(kind, words, call):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
        return error
    raise AssertionError(f"no {kind.__name__} with {words}")


def again_and_again(rank, size, folder):
    """Groups are made and destroyed; nothing of them stays."""
    def cycle(name):
        join(rank, size, folder, name)
        group = dist.group.WORLD
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.get_future().wait()
        dist.destroy_process_group()
        return group

    group = cycle("first")
    # Earlier versions tell a group nothing of its end: it ends when nobody holds it.
    if linerate.torch.group.HAS_BACKEND:
        raises(linerate.InvalidArgument, ["closed"], lambda: group.allreduce([torch.ones(1)]))
    del group
    gc.collect()
    counts = []
    for n in range(4):
        cycle(f"again{n}")
        gc.collect()
        time.sleep(0.1)
        counts.append((threading.active_count(), len(os.listdir("/proc/self/fd"))))
    assert counts[0] == counts[-1], counts


def collected_anywhere(rank, size, folder):
    """The collector ends a group that nobody holds while another one of its family starts its threads."""
    before = gc.get_threshold()
    for n in range(40):
        join(rank, size, folder, f"collected{n}")
        group = dist.new_group()
        cycle = [group]
        cycle.append(cycle)
        dist.destroy_process_group(group)
        work = dist.all_reduce(torch.ones(4), async_op=True)
        gc.set_threshold(5 + n)
        del group, cycle
        work.get_future().wait()
        gc.set_threshold(*before)
        dist.destroy_process_group()


def many_groups(rank, size):
    groups = [dist.new_group() for _ in range(40)]
    tensors = [torch.full((10,), float(n)) for n in range(40)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in zip(tensors, groups)]
    for work in works if rank % 2 == 0 else reversed(works):
        work.wait()
    assert all(tensor[0] == n * size for n, tensor in enumerate(tensors))
    one = dist.new_group()
    dist.destroy_process_group(one)
    dist.all_reduce(torch.ones(1), group=groups[3])
    dist.barrier()


def abandoned(rank):
    """The future of an operation that the group's end cuts off has an error."""
    group = dist.new_group()
    if rank == 0:
        future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
        dist.destroy_process_group(group)
        raises(RuntimeError, ["destroyed before"], future.wait)
    dist.barrier()
    if rank != 0:
        dist.destroy_process_group(group)


def disagree(size):
    """Each on a group of its own, which fails on all ranks."""
    rank = dist.get_rank()
    cases = [
        lambda group: dist.all_reduce(torch.ones(3 + rank), group=group),
        lambda group: dist.all_reduce(torch.ones(3, dtype=torch.float32 if rank else torch.float64), group=group),
        lambda group: dist.broadcast(torch.ones(3), rank, group=group),
        lambda group: dist.all_reduce(torch.ones(3), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM, group=group),
    ]
    for case in cases:
        group = dist.new_group()
        error = raises(linerate.Error, ["rank"], lambda: case(group))
        assert isinstance(error.first_cause, linerate.Mismatch), error
        raises(linerate.CommunicatorFailed, [], lambda: dist.barrier(group=group))
    # A callback that fails does so where it is waited for, and nothing else fails.
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: 1 // 0)
    raises(Exception, ["division"], future.wait)
    dist.barrier()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index == 3:
            raises(linerate.Forked, [], lambda: dist.group.WORLD.allreduce([torch.ones(1)]).wait())
        return torch.tensor(index)


def forked(rank):
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=5, num_workers=2, multiprocessing_context="fork")
    assert sum(batch.sum().item() for batch in loader) == 190
    total = torch.ones(1)
    dist.all_reduce(total)


def run(rank, size, folder):
    again_and_again(rank, size, folder)
    collected_anywhere(rank, size, folder)
    join(rank, size, folder)
    many_groups(rank, size)
    if size > 1:
        disagree(size)
    # Earlier versions tell a group nothing of its end.
    if size > 1 and linerate.torch.group.HAS_BACKEND:
        abandoned(rank)
    forked(rank)
    # torch counts the groups of each rank, so this one comes after those of all ranks.
    if size > 1 and rank < 2 and torch.__version__ >= "2.1":
        pair = dist.new_group([0, 1], use_local_synchronization=True)
        dist.barrier(group=pair)
    if rank == 0:
        dist.all_reduce(torch.ones(5), async_op=True)
    else:
        work = dist.all_reduce(torch.ones(5), async_op=True)
        del work
    gc.collect()
    dist.barrier()
    print(f"rank {rank} of {size}: ends as they must be", flush=True)
    # It ends without destroying the group.


def lose_one(rank, folder, how, its):
    """A rank of three, of which rank 1 is lost in the middle of a step."""
    dist.init_process_group(
        "linerate", init_method=f"file://{folder}/{how}", rank=rank, world_size=3, timeout=timedelta(seconds=60)
    )
    dist.barrier()
    dist.group.WORLD.set_timeout(timedelta(seconds=4))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    try:
        for step in range(1000):
            if rank == 1 and step == 20:
                time.sleep(0.2)
                if how == "raise":
                    raise ValueError("in forward")
                os.kill(os.getpid(), getattr(signal, how))
            model(torch.ones(2, 4)).sum().backward()
    except Exception as error:
        its.send(str(error))
    # The end of a job with an error.
    os._exit(3)


def lose():
    fork = multiprocessing.get_context("fork")
    for how in ("SIGKILL", "SIGSTOP", "raise"):
        with tempfile.TemporaryDirectory() as folder:
            pipes = [fork.Pipe(False) for _ in range(3)]
            started = [fork.Process(target=lose_one, args=(rank, folder, how, pipes[rank][1])) for rank in range(3)]
            for process in started:
                process.start()
            for rank in (0, 2):
                assert pipes[rank][0].poll(60), (how, rank)
                told = pipes[rank][0].recv()
                assert "rank 1" in told, (how, rank, told)
                started[rank].join(60)
                assert started[rank].exitcode == 3, (how, rank, started[rank].exitcode)
            started[1].kill()
            started[1].join()
    print("ranks that are lost are named", flush=True)


if __name__ == "__main__":
    lose()
    start_all(run)
