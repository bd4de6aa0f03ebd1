"""What torch's documentation and its tests of Gloo promise beyond the collectives themselves: torch_promises.py RANKS..."""

import os
import warnings
from datetime import timedelta

import linerate.torch
import torch
import torch.distributed as dist
from torch_ends import raises
from torch_group import check, join, start_all

IS_LATER = torch.__version__ >= "2.1"
HAS_BACKEND = linerate.torch.group.HAS_BACKEND


def names(rank, size):
    assert dist.is_available() and dist.is_initialized() and dist.Backend.LINERATE.lower() == "linerate"
    assert dist.get_backend() == "linerate" and dist.Backend("LINERATE") == "linerate"
    assert dist.group.WORLD.name() == "linerate"
    assert (dist.get_rank(), dist.get_world_size()) == (rank, size)
    if IS_LATER:
        assert dist.is_backend_available("linerate")
        assert str(dist.get_backend_config()) in ("cpu:linerate", "linerate"), dist.get_backend_config()
        group = dist.new_group(group_desc="a description", timeout=timedelta(seconds=30))
        assert group.group_desc == "a description" and group.group_name
        assert dist.get_process_group_ranks(group) == list(range(size))


def outside(rank, size):
    """A rank that is not of a group calls nothing by it."""
    group = dist.new_group([0], timeout=timedelta(seconds=20))
    tensor = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if rank == 0:
            assert dist.get_world_size(group) == 1
            dist.all_reduce(tensor, group=group)
        else:
            assert group == dist.GroupMember.NON_GROUP_MEMBER
            assert dist.get_rank(group) == -1
            dist.all_reduce(tensor, group=group)
    check(tensor, torch.ones(2), "a group of rank 0")
    if not IS_LATER:
        # torch 1.13 makes them with CUDA only.
        return
    halves, _ = dist.new_subgroups(group_size=1) if size % 2 else dist.new_subgroups(group_size=2)
    dist.all_reduce(tensor, group=halves)
    check(tensor, torch.full((2,), 1.0 if size % 2 else 2.0), "subgroups")


def sequence_numbers(rank, size):
    """The numbers of all ranks are equal, whatever messages they have sent."""
    for group in (dist.group.WORLD, dist.new_group()):
        if size > 1 and rank == 0:
            dist.send(torch.ones(1), 1, group=group)
        elif rank == 1:
            dist.recv(torch.ones(1), 0, group=group)
        before = group._get_sequence_number_for_group()
        dist.all_reduce(torch.ones(3), group=group)
        assert group._get_sequence_number_for_group() == before + 1
        numbers = [None] * size
        dist.all_gather_object(numbers, before, group=group)
        assert numbers == [before] * size, numbers


def objects(rank, size):
    gathered = [None] * size if rank == 0 else None
    dist.gather_object({"rank": rank}, gathered)
    assert rank != 0 or gathered == [{"rank": peer} for peer in range(size)]
    mine = [None]
    dist.scatter_object_list(mine, [f"for {peer}" for peer in range(size)] if rank == 0 else None)
    assert mine == [f"for {rank}"]
    if IS_LATER and size > 1 and hasattr(dist, "send_object_list"):
        got = [None, None]
        if rank == 0:
            dist.send_object_list(["a", {"b": 2}], 1)
        elif rank == 1:
            assert dist.recv_object_list(got, 0) == 0 and got == ["a", {"b": 2}]


def direct(rank, size):
    """Calls of a group, with options, and by position and name."""
    group, last = dist.group.WORLD, size - 1
    tensor = torch.full((2,), float(rank + 1))
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    group.allreduce([tensor.clone()], options).wait()
    largest = tensor.clone()
    group.allreduce(largest, dist.ReduceOp.MAX).wait()
    check(largest, torch.full((2,), float(size)), "allreduce by position")
    reduced = tensor.clone()
    group.reduce(reduced, last, dist.ReduceOp.MAX).wait()
    assert rank != last or reduced[0] == size, reduced
    outs = [torch.zeros(2) for _ in range(size)]
    group.allgather(output_tensors=[outs], input_tensors=[tensor]).wait()
    wanted = [torch.full((2,), float(peer + 1)) for peer in range(size)]
    for one, other in zip(outs, wanted):
        check(one, other, "allgather by name")
    gathered = [torch.zeros(2) for _ in range(size)] if rank == last else []
    group.gather(gathered, tensor, last).wait()
    for one, other in zip(gathered, wanted):
        check(one, other, "gather by position")
    got = torch.zeros(2)
    group.scatter(got, wanted if rank == last else [], last).wait()
    check(got, wanted[rank], "scatter by position")
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.MIN
    group.reduce_scatter([got], [[tensor.clone() for _ in range(size)]], options).wait()
    check(got, torch.ones(2), "reduce_scatter with options")
    work = group.broadcast(tensor, last)
    assert work.wait(timedelta(seconds=20)) and work.is_completed()
    check(tensor, wanted[last], "broadcast by position")


def timeouts(rank, size):
    """A wait may have a limit; the operation goes on. A group has its own, which its calls keep."""
    group = dist.new_group(timeout=timedelta(seconds=40))
    if size > 1:
        tensor = torch.ones(2)
        if rank == 0:
            work = dist.all_reduce(tensor, group=group, async_op=True)
            raises(linerate.Timeout, ["has not ended"], lambda: work.wait(timedelta(milliseconds=50)))
            dist.barrier()
            work.wait()
        else:
            dist.barrier()
            dist.all_reduce(tensor, group=group)
        check(tensor, torch.full((2,), float(size)), "after a wait that was too short")
    # Before 2.15 torch's function reaches backends only, which a group of linerate does not have.
    if HAS_BACKEND:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1), group)
    else:
        group.set_timeout(timedelta(seconds=1))
    if size > 1:
        if rank == 0:
            raises(linerate.Timeout, ["rank"], lambda: dist.barrier(group=group))
        dist.barrier()


def barrier_implies_wait(rank, size):
    """Operations that nobody has waited for have ended after a barrier, and so have their copies."""
    for group in (dist.group.WORLD, dist.new_group()):
        tensors = [torch.full((100, 100), float(n)) for n in range(16)]
        gaps = [torch.full((100, 100), float(n))[:, ::2] for n in range(16)]
        lists = [torch.zeros(50) for _ in range(size)]
        for tensor in tensors + gaps:
            dist.all_reduce(tensor, group=group, async_op=True)
        dist.all_gather(lists, torch.full((50,), float(rank)), group=group, async_op=True)
        dist.barrier(group=group)
        for n, (tensor, gap) in enumerate(zip(tensors, gaps)):
            check(tensor, torch.full((100, 100), float(n * size)), "an allreduce before a barrier")
            check(gap, torch.full((100, 50), float(n * size)), "an allreduce with gaps before a barrier")
        for peer, one in enumerate(lists):
            check(one, torch.full((50,), float(peer)), "an all_gather before a barrier")
        dist.all_reduce(gaps[0], group=group, async_op=True)
        dist.barrier(group=group, async_op=True).wait()
        check(gaps[0], torch.zeros(100, 50), "an allreduce before a barrier that was started")


def waits_in_callbacks(rank, size):
    """A callback may start an allreduce and wait for its future; and wait for one that was there before."""
    later = dist.all_reduce(torch.full((3,), 2.0), async_op=True)
    last = later.get_future()

    def again(done):
        first = dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]
        return first + last.wait()[0]

    result = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(again).then(lambda it: it.value() * 2).wait()
    check(result, torch.full((3,), 2.0 * (size * size + 2 * size)), "waits in callbacks")
    # A future from outside, whose operation ends long after the callback has begun to wait for it.
    inside, outside = dist.new_group(), dist.new_group()
    if rank == 0 and size > 1:
        outer = dist.all_reduce(torch.ones(2), group=outside, async_op=True).get_future()
        inner = dist.all_reduce(torch.ones(2), group=inside, async_op=True).get_future().then(lambda done: outer.wait()[0])
        dist.barrier()
        dist.barrier()
        check(inner.wait(), torch.full((2,), float(size)), "a future from outside")
    elif size > 1:
        dist.barrier()
        dist.all_reduce(torch.ones(2), group=inside)
        dist.barrier()
        dist.all_reduce(torch.ones(2), group=outside)


def modes(rank, size):
    """Tensors with a gradient, and those of the inference mode."""
    leaf = torch.ones(3, requires_grad=True)
    dist.all_reduce(leaf)
    check(leaf.detach(), torch.full((3,), float(size)), "a tensor with a gradient")
    with torch.inference_mode():
        tensor, parts = torch.ones(4)[::2], [torch.zeros(2) for _ in range(size)]
        dist.all_reduce(tensor)
        dist.all_gather(parts, tensor)
        check(parts[-1], torch.full((2,), float(size)), "in inference mode")
    from torch.distributed import nn

    value = torch.full((3,), float(rank + 1), requires_grad=True)
    nn.all_reduce(value * 2).sum().backward()
    check(value.grad, torch.full((3,), 2.0 * size), "a gradient through all_reduce")
    value.grad = None
    torch.stack(nn.all_gather(value)).square().sum().backward()
    check(value.grad, torch.full((3,), 2.0 * size * (rank + 1)), "a gradient through all_gather")


def refused(rank, size):
    """What cannot be is said, and nothing is broken by it."""
    group = dist.group.WORLD
    raises(Exception, ["root"], lambda: group.broadcast([torch.ones(1)], size + 3).wait())
    raises(linerate.InvalidArgument, ["one tensor"], lambda: group.allreduce([torch.ones(1), torch.ones(1)]))
    raises(linerate.InvalidArgument, ["ranks"], lambda: group.allgather([[torch.ones(1)] * (size + 1)], [torch.ones(1)]))
    raises(linerate.InvalidArgument, ["float64"], lambda: group.allgather([[torch.ones(1).double()] * size], [torch.ones(1)]))
    raises(linerate.InvalidArgument, ["splits"], lambda: group.alltoall_base(torch.ones(size), torch.ones(size), [9] * size, [1] * size))
    raises(linerate.InvalidArgument, ["one type"], lambda: group.allreduce_coalesced([torch.ones(1), torch.ones(1).double()]))
    if hasattr(dist, "_make_nccl_premul_sum"):
        scaled = dist._make_nccl_premul_sum(0.5)
        raises(linerate.InvalidArgument, ["operator"], lambda: group.allreduce([torch.ones(1)], scaled))
    dist.barrier()


def splits(rank, size):
    """Groups of groups by split_group, which later versions have for backends that can."""
    if not HAS_BACKEND or not hasattr(dist, "split_group"):
        return
    even, odd = list(range(0, size, 2)), list(range(1, size, 2))
    part = dist.split_group(split_ranks=[even, odd] if odd else [even], group_desc="halves")
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=part)
    mine = odd if rank in odd else even
    check(tensor, torch.full((2,), float(len(mine))), "a half")
    assert dist.get_process_group_ranks(part) == mine and part.group_desc == "halves"
    # A group of a half: the last of its ranks, the others are of none.
    last = dist.split_group(part, split_ranks=[[len(mine) - 1]])
    if rank == mine[-1]:
        dist.all_reduce(tensor, group=last)
        check(tensor, torch.full((2,), float(len(mine))), "one of a half")
    else:
        assert last is dist.GroupMember.NON_GROUP_MEMBER
    dist.barrier()


def of_a_device(rank, size, folder):
    """A backend for the CPU beside another one, as in cpu:linerate,cuda:nccl; there is no GPU, and none is used."""
    dist.init_process_group(
        "cpu:linerate,cuda:gloo", init_method=f"file://{folder}/devices", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    group = dist.group.WORLD
    assert isinstance(group._get_backend(torch.device("cpu")), linerate.torch.group.Backend)
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    check(work.get_future().wait()[0], torch.full((3,), float(size * size)), "all_reduce of one device")
    dist.broadcast(tensor, 0)
    gathered = torch.zeros(2 * size)
    dist.all_gather_into_tensor(gathered, torch.full((2,), float(rank)))
    check(gathered, torch.arange(size).float().repeat_interleave(2), "all_gather_into_tensor of one device")
    dist.barrier()
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    sub = dist.new_group()
    dist.all_reduce(tensor, group=sub)
    check(tensor, torch.full((3,), float(size**3)), "all_reduce of another group")
    if size > 1:
        following, before, got = (rank + 1) % size, (rank - 1) % size, torch.zeros(1)
        sent = dist.isend(torch.full((1,), float(rank)), following)
        dist.recv(got, before)
        sent.wait()
        check(got, torch.full((1,), float(before)), "recv of one device")
    future = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda done: done.value()[0] + 1)
    check(future.wait(), torch.full((2,), size + 1.0), "a future of one device")
    told = [{"from": rank}]
    dist.broadcast_object_list(told, 0)
    assert told == [{"from": 0}] and linerate.torch.empty(3).shape == (3,)
    part = dist.split_group(split_ranks=[list(range(size))])
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=part)
    check(tensor, torch.full((2,), float(size)), "a split group of one device")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
    model(torch.full((1, 2), float(rank + 1))).sum().backward()
    check(model.module.weight.grad, torch.full((1, 2), (size + 1) / 2), "DDP of one device")
    dist.destroy_process_group()


def run(rank, size, folder):
    torch.set_num_threads(1)
    join(rank, size, folder)
    names(rank, size)
    outside(rank, size)
    sequence_numbers(rank, size)
    objects(rank, size)
    direct(rank, size)
    barrier_implies_wait(rank, size)
    waits_in_callbacks(rank, size)
    modes(rank, size)
    refused(rank, size)
    splits(rank, size)
    timeouts(rank, size)
    dist.destroy_process_group()
    if HAS_BACKEND:
        of_a_device(rank, size, folder)
    if rank == 0:
        print(f"{size} ranks: as torch promises", flush=True)


if __name__ == "__main__":
    os.environ.pop("TORCH_DISTRIBUTED_DEBUG", None)
    start_all(run)
