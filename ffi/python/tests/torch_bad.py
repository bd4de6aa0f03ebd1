"""Bad input and interruptions under torch, in real processes: torch_bad.py RANKS..."""

import multiprocessing
import os
import signal
import threading
from datetime import timedelta

import linerate.torch
import torch
import torch.distributed as dist
from torch_ends import raises
from torch_group import join, start_all

FORK = multiprocessing.get_context("fork")

# Debian 13 builds torch without libuv.
LIBUV = {"use_libuv": False} if os.environ.get("USE_LIBUV") == "0" else {}


def overlapping(rank, size):
    """Memory that is an input and an output, but not as an operation in place has it: refused on every rank."""
    whole = torch.zeros(4 * size)
    whole[4 * rank : 4 * rank + 4] = rank
    dist._all_gather_base(whole, whole[4 * rank : 4 * rank + 4])
    assert torch.equal(whole, torch.arange(size).float().repeat_interleave(4)), whole
    if size == 1:
        return
    wrong = 4 * ((rank + 1) % size)
    cases = [
        (lambda: dist._all_gather_base(whole, whole[wrong : wrong + 4]), "all-gather"),
        (lambda: dist._all_gather_base(whole, whole[2:6]), "all-gather"),
        (lambda: dist._reduce_scatter_base(whole[1:5], whole), "reduce-scatter"),
        (lambda: dist.all_to_all_single(whole, whole), "all-to-all"),
        (lambda: dist.all_to_all_single(whole[1 : 1 + 2 * size], whole[: 2 * size]), "all-to-all"),
    ]
    for case, word in cases:
        raises(linerate.InvalidArgument, [word, "overlap"], case)
    raises(linerate.InvalidArgument, ["expanded"], lambda: dist.all_reduce(torch.ones(1).expand(3)))
    raises(linerate.InvalidArgument, ["expanded"], lambda: dist.all_to_all_single(torch.ones(1).expand(size), torch.ones(size)))
    # Nothing has failed by that.
    dist.barrier()


def views(rank, size):
    """Tensors whose memory is not their value: conjugated and negated ones."""
    complexes = torch.full((3,), complex(rank, 2))
    parts = [torch.zeros(3, dtype=torch.complex64) for _ in range(size)]
    dist.all_gather(parts, complexes.conj().resolve_conj())
    ours = torch.full((3,), complex(rank, 2))
    imaginary = ours.conj().imag
    assert imaginary.is_neg()
    dist.all_reduce(imaginary)
    assert torch.equal(ours, torch.tensor([complex(rank, 2 * size)] * 3)), ours
    group, got = dist.group.WORLD, torch.zeros(3, dtype=torch.complex64)
    if size > 1 and rank == 0:
        group.send([complexes.conj()], 1, 9).wait()
    elif rank == 1:
        group.recv([got], 0, 9).wait()
        assert torch.equal(got, torch.full((3,), complex(0, -2))), got


def two_threads(size):
    """Two threads in one group, whose calls are the same: results are right, whatever the order on each rank."""
    group, outcomes = dist.new_group(), []

    def work():
        try:
            for _ in range(100):
                tensor = torch.ones(5)
                dist.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.full((5,), float(size))), tensor
            outcomes.append(None)
        except linerate.Error as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 2, outcomes
    assert all(one is None or isinstance(one.first_cause, linerate.Mismatch) for one in outcomes), outcomes
    dist.barrier()


def interrupted(rank, size):
    """Ctrl-C ends a wait; the operation goes on, and so does the group."""
    group = dist.new_group()
    calls = {
        "a call": lambda tensor: dist.all_reduce(tensor, group=group),
        "a wait": lambda tensor: dist.all_reduce(tensor, group=group, async_op=True).wait(),
        "a barrier": lambda tensor: dist.barrier(group=group),
    }
    for name, call in calls.items():
        tensor = torch.ones(3)
        if rank == 0:
            timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
            timer.start()
            raises(KeyboardInterrupt, [], lambda: call(tensor))
            timer.join()
        # The others come when the wait has ended.
        dist.barrier()
        if rank != 0:
            call(tensor)
            assert name == "a barrier" or tensor[0] == size, (name, tensor)
    # That is over now on all ranks.
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=group)
    assert tensor[0] == size


def another_version(rank, size, folder):
    """Rank 0 is of another version: what it puts into the store is not what the others know."""
    exchange = linerate.torch.group._Exchange
    put = exchange.put
    if rank == 0:
        exchange.put = lambda self, key, value, limit: put(self, key, value.replace(b"linerate-1", b"linerate-2"), limit)
    # A rank that cannot take part tells rank 0, which tells the others.
    raises(linerate.Error, ["rank", "another version"], lambda: join(rank, size, folder, "other", 20))
    exchange.put = put


def destroyed(rank, size, folder):
    join(rank, size, folder, "destroyed")
    group, tensor = dist.group.WORLD, torch.ones(2)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    dist.destroy_process_group()
    # It says what it said, as long as somebody holds it.
    assert work.is_completed() and work.wait() and tensor[0] == size
    raises(Exception, ["init_process_group"], lambda: dist.all_reduce(tensor))
    raises(Exception, ["init_process_group"], lambda: linerate.torch.empty(3))
    # Earlier versions of torch tell a group nothing of its end.
    if linerate.torch.group.HAS_BACKEND:
        for call in (lambda: group.allreduce([tensor]), group.barrier, lambda: group.send([tensor], 1 % size, 0)):
            raises(linerate.InvalidArgument, ["closed"], call)


def run(rank, size, folder):
    if size > 1:
        another_version(rank, size, folder)
    destroyed(rank, size, folder)
    join(rank, size, folder)
    overlapping(rank, size)
    views(rank, size)
    two_threads(size)
    if size > 1:
        interrupted(rank, size)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: bad input is refused by name", flush=True)


def serve(port, end):
    """The process of a store, which is killed."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=20), wait_for_workers=False, **LIBUV)
    port.send(store.port)
    end.wait()


def meet(rank, port, is_there, told):
    """One of two ranks of three, for a third that never comes."""
    exchange = linerate.torch.group._Exchange
    get = exchange.get

    def watched(self, key, limit):
        is_there.set()
        return get(self, key, limit)

    exchange.get = watched
    store = dist.TCPStore("127.0.0.1", port, None, False, timedelta(seconds=20), wait_for_workers=False, **LIBUV)
    try:
        dist.init_process_group("linerate", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=60))
        told.send("it has met")
    except RuntimeError as error:
        told.send(str(error))


def store_dies():
    """The store of the ranks is killed while they meet: an error, long before the timeout."""
    port, its = FORK.Pipe(False)
    server = FORK.Process(target=serve, args=(its, FORK.Event()))
    server.start()
    number, ranks = port.recv(), []
    for rank in (0, 2):
        is_there, (told, its) = FORK.Event(), FORK.Pipe(False)
        process = FORK.Process(target=meet, args=(rank, number, is_there, its))
        process.start()
        ranks.append((rank, process, is_there, told))
    for _, _, is_there, _ in ranks:
        assert is_there.wait(30)
    server.kill()
    server.join()
    for rank, process, _, told in ranks:
        assert told.poll(40), f"rank {rank} has not noticed that the store is gone"
        text = told.recv()
        assert "rank" in text and "exchange" in text, text
        process.join()
    print("a store that dies is an error of all ranks", flush=True)


if __name__ == "__main__":
    store_dies()
    start_all(run)
