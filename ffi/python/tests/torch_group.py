"""The backend of torch: python3 ffi/python/tests/torch_group.py RANKS starts so many processes."""

import os
import sys
import tempfile
from datetime import timedelta

import linerate
import linerate.torch  # noqa: F401
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

TYPES = [torch.float64, torch.float32, torch.uint8, torch.int8, torch.int32, torch.int64]
OPERATORS = ["SUM", "PRODUCT", "MIN", "MAX"]


def values(rank, shape, dtype):
    count = int(torch.tensor(shape).prod()) if shape else 1
    return ((torch.arange(count) * 3 + rank * 5) % 7 + 1).to(dtype).reshape(shape)


def check(got, wanted, what):
    assert torch.equal(got, wanted), f"{what}: {got} is not {wanted}"


def against_gloo(rank, size, theirs):
    """Every call gives what Gloo gives."""
    # Gloo's reduce leaves what it wants on the other ranks; only the root's is compared.
    for dtype in TYPES:
        for shape in ((), (0,), (5,), (3, 4), (1000, 33)):
            own = values(rank, shape, dtype)
            for op in OPERATORS:
                ours, other = own.clone(), own.clone()
                dist.all_reduce(ours, getattr(dist.ReduceOp, op))
                dist.all_reduce(other, getattr(dist.ReduceOp, op), group=theirs)
                check(ours, other, f"all_reduce {op} {dtype} {shape}")
                ours = own.clone()
                dist.reduce(ours, 0, getattr(dist.ReduceOp, op))
                if rank == 0:
                    check(ours, other, f"reduce {op} {dtype} {shape}")
            ours = own.clone()
            dist.broadcast(ours, size - 1)
            check(ours, values(size - 1, shape, dtype), f"broadcast {dtype} {shape}")
            parts = [torch.zeros_like(own) for _ in range(size)]
            dist.all_gather(parts, own)
            for peer, part in enumerate(parts):
                check(part, values(peer, shape, dtype), f"all_gather {dtype} {shape}")
            gathered = [torch.zeros_like(own) for _ in range(size)] if rank == 0 else None
            dist.gather(own, gathered)
            if rank == 0:
                for peer, part in enumerate(gathered):
                    check(part, values(peer, shape, dtype), f"gather {dtype} {shape}")
            given = [values(peer, shape, dtype) for peer in range(size)] if rank == 0 else None
            ours = torch.zeros_like(own)
            dist.scatter(ours, given)
            check(ours, own, f"scatter {dtype} {shape}")
    for dtype in TYPES:
        total = sum(values(peer, (2 * size, 3), dtype) for peer in range(size)).to(dtype)
        mine = values(rank, (2 * size, 3), dtype)
        ours = torch.zeros(2, 3, dtype=dtype)
        dist._reduce_scatter_base(ours, mine)
        check(ours, total[2 * rank : 2 * rank + 2], f"reduce_scatter_tensor {dtype}")
        ours.zero_()
        dist.reduce_scatter(ours, list(mine.chunk(size)))
        check(ours, total[2 * rank : 2 * rank + 2], f"reduce_scatter {dtype}")
        ours = torch.zeros(2 * size * size, 3, dtype=dtype)
        dist._all_gather_base(ours, mine)
        check(ours, torch.cat([values(peer, (2 * size, 3), dtype) for peer in range(size)]), f"all_gather_into_tensor {dtype}")
        ours = torch.zeros(2 * size, 3, dtype=dtype)
        dist.all_to_all_single(ours, mine)
        wanted = [values(peer, (2 * size, 3), dtype)[2 * rank : 2 * rank + 2] for peer in range(size)]
        check(ours, torch.cat(wanted), f"all_to_all_single {dtype}")
        lists = [torch.zeros(2, 3, dtype=dtype) for _ in range(size)]
        dist.all_to_all(lists, list(mine.chunk(size)))
        for part, one in zip(lists, wanted):
            check(part, one, f"all_to_all {dtype}")
    # Uneven splits, tensors with gaps, objects.
    splits = [peer + 1 for peer in range(size)]
    ours = torch.zeros(size * (rank + 1), 2)
    dist.all_to_all_single(ours, torch.full((sum(splits), 2), float(rank)), [rank + 1] * size, splits)
    check(ours, torch.arange(size).float().repeat_interleave(rank + 1)[:, None].expand(-1, 2), "uneven all_to_all_single")
    gaps = torch.zeros(6, 4)[:, ::2]
    gaps += rank + 1
    dist.all_reduce(gaps)
    check(gaps, torch.full((6, 2), float(sum(range(1, size + 1)))), "all_reduce with gaps")
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": peer} for peer in range(size)]
    told = [{"from": rank}]
    dist.broadcast_object_list(told, 1 % size)
    assert told == [{"from": 1 % size}]
    dist.barrier()


def messages(rank, size):
    following, before = (rank + 1) % size, (rank - 1) % size
    mine, other = torch.full((4,), rank), torch.zeros(4, dtype=torch.long)
    work = dist.isend(mine, following, tag=3)
    dist.recv(other, before, tag=3)
    work.wait()
    check(other, torch.full((4,), before), "recv")
    if rank == 0:
        seen = set()
        for _ in range(size - 1):
            source = dist.recv(other)
            check(other, torch.full((4,), source), "recv of any")
            seen.add(source)
        assert seen == set(range(1, size))
    else:
        dist.send(mine, 0)
    # What follows has the same tag, and is not for the receives above.
    dist.barrier()
    operations = [dist.P2POp(dist.isend, mine, following), dist.P2POp(dist.irecv, other, before)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    check(other, torch.full((4,), before), "batch_isend_irecv")


def groups_and_futures(rank, size):
    even = dist.new_group([peer for peer in range(size) if peer % 2 == 0])
    whole = dist.new_group()
    # Waited for in another order on each rank.
    data, more = torch.ones(3), torch.ones(300_000)
    works = [dist.all_reduce(data, group=whole, async_op=True), dist.all_reduce(more, async_op=True)]
    for work in works if rank == 0 else reversed(works):
        work.wait()
    assert data[0] == more[-1] == size
    if rank % 2 == 0:
        data = torch.ones(2)
        dist.all_reduce(data, group=even)
        assert data[0] == len(range(0, size, 2))
    work = dist.all_reduce(torch.ones(1000), async_op=True)
    future = work.get_future().then(lambda one: one.value()[0] * 2).then(lambda one: one.value() + 1)
    check(future.wait(), torch.full((1000,), 2.0 * size + 1), "chained futures")
    # Nobody holds these.
    for _ in range(50):
        dist.all_reduce(torch.ones(10_000), async_op=True)
    dist.barrier()


def train(rank, size, theirs, steps=10):
    """DDP over linerate and over Gloo: the same parameters, bit by bit, up to the order of sums of two."""
    models = []
    for group in (None, theirs):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 3))
        ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.01)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        random = torch.Generator().manual_seed(rank)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = ddp(torch.randn(16, 20, generator=random)).square().mean()
            loss.backward()
            optimizer.step()
        models.append(ddp)
    for ours, other in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(ours, other)

    def halved(state, bucket):
        future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
        return future.then(lambda one: one.value()[0] / (2 * size))

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
    ddp.register_comm_hook(None, halved)
    ddp(torch.full((1, 4), float(rank + 1))).sum().backward()
    check(ddp.module.weight.grad, torch.full((1, 4), (size + 1) / 4), "a hook's gradient")


def refuse(rank, size):
    """Bad input is an exception on every rank, by name."""
    bad = [
        (lambda: dist.all_reduce(torch.zeros(3, device="meta")), "meta"),
        (lambda: dist.all_reduce(torch.ones(2).to_sparse()), "sparse"),
        (lambda: dist.all_reduce(torch.zeros(3), dist.ReduceOp.BXOR), "bitxor"),
    ]
    if size > 1:
        bad.append((lambda: dist.all_to_all_single(torch.zeros(size + 1), torch.zeros(size + 1)), "multiple"))
    for call, word in bad:
        try:
            call()
        except linerate.InvalidArgument as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{word} was taken")
    dist.barrier()


def run(rank, size, folder):
    dist.init_process_group(
        "linerate", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    theirs = dist.new_group(backend="gloo")
    against_gloo(rank, size, theirs)
    if size > 1:
        messages(rank, size)
    groups_and_futures(rank, size)
    train(rank, size, theirs)
    refuse(rank, size)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: all as Gloo has it", flush=True)


if __name__ == "__main__":
    for ranks in map(int, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            multiprocessing.spawn(run, (ranks, folder), ranks)
