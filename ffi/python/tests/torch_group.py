"""The backend of torch: python3 ffi/python/tests/torch_group.py RANKS starts so many processes."""

import faulthandler
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
HELD = []
# Of all ranks together; with_torch waits for 300 s.
SECONDS_MAX = 240


def join(rank, size, folder, name="store", seconds=60):
    dist.init_process_group(
        "linerate", init_method=f"file://{folder}/{name}", rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )


def start_all(run):
    """Runs run(rank, ranks, folder) in as many processes as each argument of the command says."""
    def watched(*arguments):
        # One that hangs says where, before the command is ended from outside.
        faulthandler.dump_traceback_later(SECONDS_MAX, exit=True)
        run(*arguments)

    for ranks in [int(argument) for argument in sys.argv[1:] if argument.isdigit()]:
        with tempfile.TemporaryDirectory() as folder:
            # Forked after torch was imported, which takes seconds, and before it has threads.
            multiprocessing.start_processes(watched, (ranks, folder), ranks, start_method="fork")


def gloo():
    """A group of Gloo to compare with, which lives as long as the process.

    torch calls its destructor with the interpreter locked, and that can wait for ever for a thread of Gloo that wants
    the interpreter (seen in torch 1.13, suspected in 2.6).
    """
    group = dist.new_group(backend="gloo")
    HELD.append(group)
    return group


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
        (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0), "sparse"),
        (lambda: dist.all_reduce(torch.zeros(3), dist.ReduceOp.BXOR), "bitxor"),
    ]
    if not linerate.torch.group.HAS_BACKEND:
        bad.append((lambda: dist.all_reduce(torch.zeros(3, device="meta")), "needs a later torch"))
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


def sparse_tensors(rank, size, theirs):
    """The sum of sparse tensors, as Gloo has it."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        dense = torch.zeros(7, 3, dtype=dtype)
        dense[rank] = rank + 1
        dense[5, 1] = 2
        # Rows twice, which are added; and a rank with nothing.
        ours, other = (dense.to_sparse(dims) if rank != 2 else torch.zeros_like(dense).to_sparse(dims) for dims in (2, 2))
        dist.all_reduce(ours)
        dist.all_reduce(other, group=theirs)
        check(ours.to_dense(), other.to_dense(), f"all_reduce of sparse {dtype}")
        rows = dense.to_sparse(1)
        dist.all_reduce(rows)
        wanted = torch.zeros(7, 3, dtype=dtype)
        for peer in range(size):
            wanted[peer] += peer + 1
            wanted[5, 1] = 2 * size if peer < 5 else wanted[5, 1]
        check(rows.to_dense(), wanted, f"all_reduce of sparse rows {dtype}")


def monitored(rank, size):
    group = dist.group.WORLD
    if rank != 0 or size == 1:
        group.monitored_barrier(timedelta(seconds=10))
    else:
        group.monitored_barrier(timedelta(seconds=10), wait_all_ranks=True)
    # The last rank does not come to this one.
    if size > 1:
        try:
            if rank != size - 1:
                group.monitored_barrier(timedelta(milliseconds=300))
        except RuntimeError as error:
            name = f"Rank {size - 1} failed to pass monitoredBarrier in 300 ms" if rank == 0 else "successfully reached"
            assert name in str(error), error
        else:
            assert rank == size - 1
    dist.barrier()


def coalesced(rank, size):
    if torch.__version__ < "2":
        return
    together = next(it for name, it in vars(dist.distributed_c10d).items() if name.startswith("_coalescing_"))
    tensors = [torch.full((n + 1,), float(rank + 1)) for n in range(3)]
    with together():
        for tensor in tensors:
            dist.all_reduce(tensor)
    total = float(sum(range(1, size + 1)))
    for n, tensor in enumerate(tensors):
        check(tensor, torch.full((n + 1,), total), "coalesced all_reduce")
    outs = [torch.zeros(size * 2), torch.zeros(size * 3)]
    with together(async_ops=True) as block:
        for out, width in zip(outs, (2, 3)):
            dist.all_gather_into_tensor(out, torch.full((width,), float(rank)))
    block.wait()
    for out, width in zip(outs, (2, 3)):
        check(out, torch.arange(size).float().repeat_interleave(width), "coalesced all_gather")
    outs = [torch.zeros(2), torch.zeros(3)]
    with together():
        for out in outs:
            dist.reduce_scatter_tensor(out, torch.full((size * out.numel(),), float(rank + 1)))
    for out in outs:
        check(out, torch.full_like(out, total), "coalesced reduce_scatter")


def functional(rank, size):
    """What FSDP2 and DTensor stand on; with a Backend only."""
    if not linerate.torch.group.HAS_BACKEND:
        return
    import torch.distributed._functional_collectives as functional_collectives
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    total = float(sum(range(1, size + 1)))
    out = functional_collectives.all_reduce(torch.full((4,), float(rank + 1)), "sum", dist.group.WORLD)
    check(out + 0, torch.full((4,), total), "functional all_reduce")
    out = functional_collectives.all_gather_tensor(torch.full((2,), float(rank)), 0, dist.group.WORLD)
    check(out + 0, torch.arange(size).float().repeat_interleave(2), "functional all_gather_tensor")
    out = functional_collectives.reduce_scatter_tensor(torch.full((2 * size,), float(rank + 1)), "sum", 0, dist.group.WORLD)
    check(out + 0, torch.full((2,), total), "functional reduce_scatter_tensor")
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(size * 6).float().reshape(size * 2, 3)
    tensor = distribute_tensor(whole, mesh, [Shard(0)])
    check(tensor.redistribute(mesh, [Replicate()]).to_local(), whole, "DTensor")
    ones = distribute_tensor(torch.ones(3, 2), mesh, [Replicate()])
    check((tensor @ ones).full_tensor(), whole @ torch.ones(3, 2), "DTensor's product")
    if size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        data = torch.full((1,), float(rank))
        dist.all_reduce(data, group=mesh.get_group("columns"))
        check(data, torch.full((1,), float(rank // 2 * 4 + 1)), "a mesh of 2 x 2")
    from torch.distributed.fsdp import fully_shard

    losses = []
    for is_sharded in (False, True):
        torch.manual_seed(3)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        if is_sharded:
            fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        random, seen = torch.Generator().manual_seed(5), []
        for _ in range(5):
            loss = model(torch.randn(8, 8, generator=random)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        losses.append(seen)
    torch.testing.assert_close(*losses)


def registered(rank, size):
    """Registered tensors, and buckets of DDP in registered memory."""
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = linerate.torch.empty(10, 3, dtype=dtype)
        assert tensor.shape == (10, 3) and not tensor.any()
        tensor += rank + 1
        copied = dist.group.WORLD.communicator.unregistered_bytes
        dist.all_reduce(tensor)
        assert dist.group.WORLD.communicator.unregistered_bytes == copied
        check(tensor, torch.full((10, 3), sum(range(1, size + 1)), dtype=dtype), f"registered {dtype}")
    assert linerate.torch.empty(0).shape == (0,) and linerate.torch.empty((2, 2)).shape == (2, 2)
    models = []
    for is_registered in (False, True):
        torch.manual_seed(7)
        model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 3))
        ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.002)
        if is_registered:
            linerate.torch.register(ddp)
        optimizer, random = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.Generator().manual_seed(rank)
        for step in range(8):
            # DDP builds its buckets anew after the first step.
            if step == 4:
                copied = dist.group.WORLD.communicator.unregistered_bytes
            optimizer.zero_grad()
            ddp(torch.randn(16, 20, generator=random)).square().mean().backward()
            optimizer.step()
        assert (dist.group.WORLD.communicator.unregistered_bytes == copied) is is_registered
        models.append(ddp)
    for plain, ours in zip(models[0].parameters(), models[1].parameters()):
        torch.testing.assert_close(plain, ours)


def more_types(rank, size, theirs):
    """Types that only some calls of Gloo take, and what is asked of a group directly."""
    for dtype in (torch.bool, torch.bfloat16, torch.complex64, torch.int16):
        ours = torch.tensor([rank % 2, 1, 0]).to(dtype)
        parts = [torch.zeros_like(ours) for _ in range(size)]
        dist.all_gather(parts, ours)
        for peer, part in enumerate(parts):
            check(part, torch.tensor([peer % 2, 1, 0]).to(dtype), f"all_gather {dtype}")
        ours = torch.tensor([rank, 2, 3]).to(dtype)
        dist.broadcast(ours, 0)
        check(ours, torch.tensor([0, 2, 3]).to(dtype), f"broadcast {dtype}")
    ours = torch.full((5,), complex(rank, 1))
    dist.all_reduce(ours)
    check(ours, torch.full((5,), complex(sum(range(size)), size)), "all_reduce of complex numbers")
    ours = torch.full((5,), float(rank), dtype=torch.bfloat16)
    dist.all_reduce(ours)
    check(ours, torch.full((5,), float(sum(range(size))), dtype=torch.bfloat16), "all_reduce of bf16")
    for op in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR):
        ours, other = torch.tensor([rank + 1, 6]), torch.tensor([rank + 1, 6])
        dist.all_reduce(ours, op)
        dist.all_reduce(other, op, group=theirs)
        check(ours, other, f"all_reduce {op}")
    ours = torch.full((4,), float(rank))
    dist.all_reduce(ours, dist.ReduceOp.AVG)
    check(ours, torch.full((4,), sum(range(size)) / size), "all_reduce AVG")
    large = torch.arange(1 << 20).float() * (rank + 1)
    dist.all_reduce(large)
    check(large, torch.arange(1 << 20).float() * sum(range(1, size + 1)), "all_reduce of 4 MiB")
    # A part of a tensor, a transposed one, uneven parts.
    whole = torch.zeros(6, 4)
    dist.broadcast(whole.t(), 0)
    dist.all_reduce(whole[2:4].add_(rank + 1))
    check(whole[2:4], torch.full((2, 4), float(sum(range(1, size + 1)))), "all_reduce of rows")
    assert not whole[:2].any() and not whole[4:].any()
    uneven = [torch.zeros(peer + 1) for peer in range(size)]
    dist.all_gather(uneven, torch.full((rank + 1,), float(rank)))
    for peer, part in enumerate(uneven):
        check(part, torch.full((peer + 1,), float(peer)), "uneven all_gather")
    group, ours = dist.group.WORLD, torch.ones(2)
    for start in (lambda: group.allreduce([ours]), lambda: group.allreduce(ours), lambda: group.broadcast(ours, 0), group.barrier):
        work = start()
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None
    check(ours, torch.full((2,), float(size * size)), "calls of the group")
    work = dist.all_reduce(torch.ones(3), async_op=True)
    while not work.is_completed():
        pass
    check(work.result()[0], torch.full((3,), float(size)), "a result")
    group.set_timeout(timedelta(seconds=50))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(1000))
    names = [event.name for event in profile.events()]
    assert any(name.startswith("linerate:all_reduce 4000 B") for name in names), names


def run(rank, size, folder):
    join(rank, size, folder)
    theirs = gloo()
    against_gloo(rank, size, theirs)
    if size > 1:
        messages(rank, size)
    groups_and_futures(rank, size)
    train(rank, size, theirs)
    refuse(rank, size)
    more_types(rank, size, theirs)
    sparse_tensors(rank, size, theirs)
    monitored(rank, size)
    coalesced(rank, size)
    functional(rank, size)
    registered(rank, size)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: all as Gloo has it", flush=True)


if __name__ == "__main__":
    start_all(run)
