"""DistributedDataParallel over linerate beside Gloo, parameter by parameter: torch_ddp.py RANKS..."""

import contextlib

import linerate.torch  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch_group import gloo, join, start_all

STEPS = 20


class Net(torch.nn.Module):
    """Layers of several sizes, a buffer, and a branch that some steps do not use."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = torch.nn.Linear(12, 40), torch.nn.BatchNorm1d(40)
        self.branch, self.last = torch.nn.Linear(40, 40), torch.nn.Linear(40, 3)

    def forward(self, inputs, with_branch=True):
        hidden = self.norm(self.first(inputs)).relu()
        if with_branch:
            hidden = hidden + self.branch(hidden).relu()
        return self.last(hidden)


class Words(torch.nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self):
        super().__init__()
        self.words, self.last = torch.nn.Embedding(30, 8, sparse=True), torch.nn.Linear(8, 2)

    def forward(self, indices):
        return self.last(self.words(indices).mean(1))


def batches(rank, steps):
    random = torch.Generator().manual_seed(rank)
    return [torch.randn(6, 12, generator=random) for _ in range(steps)]


def train(group, build, inputs, step, **options):
    """The parameters and buffers after each step."""
    torch.manual_seed(7)
    model = DistributedDataParallel(build(), process_group=group, **options)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.05), []
    for number, batch in enumerate(inputs):
        optimizer.zero_grad()
        step(model, batch, number)
        optimizer.step()
        seen.append([one.detach().clone() for one in (*model.parameters(), *model.module.buffers())])
    return seen


def plain(model, batch, number):
    model(batch).square().mean().backward()


def beside_gloo(rank, theirs, what, build=Net, inputs=None, step=plain, tolerance=None, **options):
    inputs = batches(rank, STEPS) if inputs is None else inputs
    ours, other = (train(group, build, inputs, step, **options) for group in (None, theirs))
    for number, (one, two) in enumerate(zip(ours, other)):
        for index, (left, right) in enumerate(zip(one, two)):
            where = f"{what}, step {number}, parameter {index}"
            torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance, msg=lambda text: f"{where}: {text}")


def unused(rank):
    """Another branch on each rank, and none on all in some steps."""
    def step(model, batch, number):
        model(batch, with_branch=number % 4 != 3 and (number + rank) % 2 == 0).square().mean().backward()

    return step


def accumulated(model, batch, number):
    """The gradients of two batches before one allreduce."""
    with model.no_sync():
        model(batch).square().mean().backward()
    model(batch.flip(0) * 0.5).square().mean().backward()


def uneven(rank, size, theirs):
    """Ranks with more and fewer batches."""
    results = []
    for group in (None, theirs):
        for divides in (True, False):
            torch.manual_seed(7)
            model = DistributedDataParallel(Net(), process_group=group, bucket_cap_mb=0.003)
            optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.05), 0
            with model.join(divide_by_initial_world_size=divides):
                for batch in batches(rank, 4 + 3 * rank):
                    optimizer.zero_grad()
                    model(batch).square().mean().backward()
                    optimizer.step()
                    steps += 1
            assert steps == 4 + 3 * rank
            results.append([one.detach().clone() for one in model.parameters()])
    # An exception where torch is asked for one, on all ranks that still have batches.
    model = DistributedDataParallel(torch.nn.Linear(12, 2))
    is_told = False
    try:
        with model.join(throw_on_early_termination=True):
            for batch in batches(rank, 2 + rank):
                model(batch).sum().backward()
    except RuntimeError as error:
        is_told = "exhausted" in str(error) or "terminat" in str(error)
    assert is_told == (size > 1)


def words(rank, size, theirs):
    random = torch.Generator().manual_seed(rank)
    inputs = [torch.randint(0, 30, (4, 5), generator=random) for _ in range(STEPS)]
    beside_gloo(rank, theirs, "sparse gradients", Words, inputs)
    beside_gloo(rank, theirs, "sparse gradients in views", Words, inputs, gradient_as_bucket_view=True)


def hooks(rank, theirs):
    """torch's own hooks, which chain futures of linerate's operations."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
        def step(model, batch, number, hook=hook):
            if number == 0:
                model.register_comm_hook(model.process_group, hook)
            plain(model, batch, number)

        # Sums of short numbers are rounded, in an order of each backend.
        beside_gloo(rank, theirs, hook.__name__, step=step, tolerance=2e-3)

    def power(model, batch, number):
        if number == 0:
            state = powerSGD_hook.PowerSGDState(model.process_group, matrix_approximation_rank=2, start_powerSGD_iter=3)
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        plain(model, batch, number)

    # Its callbacks wait for futures of allreduces that they start.
    beside_gloo(rank, theirs, "powerSGD", step=power, tolerance=2e-3, bucket_cap_mb=25)


def zero(rank, size, theirs):
    """An optimizer whose state is spread over the ranks, and ends with the model in one Join."""
    try:
        from torch.distributed.optim import ZeroRedundancyOptimizer
    except ValueError:
        # The build of torch 1.13 for Python 3.11 cannot import it.
        return
    results = []
    for group in (dist.group.WORLD, theirs):
        torch.manual_seed(7)
        model = DistributedDataParallel(Net(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, process_group=group, lr=0.05, momentum=0.9)
        with Join([model, optimizer]):
            for batch in batches(rank, 3 + rank):
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                optimizer.step()
        optimizer.consolidate_state_dict()
        results.append([one.detach() for one in model.parameters()])
    for left, right in zip(*results):
        torch.testing.assert_close(left, right)


def sync_batch_norm():
    """torch has it for other devices than the CPU: it says so, and nothing waits."""
    model = torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)))
    try:
        DistributedDataParallel(model)(torch.ones(3, 4))
    except ValueError as error:
        assert "SyncBatchNorm" in str(error), error
    else:
        raise AssertionError("SyncBatchNorm takes tensors of the CPU: compare it with Gloo")


def run(rank, size, folder):
    torch.set_num_threads(1)
    join(rank, size, folder)
    theirs = gloo()
    for megabytes in (0.0001, 0.003, 25):
        beside_gloo(rank, theirs, f"buckets of {megabytes} MB", bucket_cap_mb=megabytes)
    beside_gloo(rank, theirs, "gradients in views", bucket_cap_mb=0.003, gradient_as_bucket_view=True)
    beside_gloo(rank, theirs, "static graph", bucket_cap_mb=0.003, static_graph=True)
    beside_gloo(rank, theirs, "unused parameters", bucket_cap_mb=0.003, step=unused(rank), find_unused_parameters=True)
    beside_gloo(rank, theirs, "no_sync", bucket_cap_mb=0.003, step=accumulated)
    beside_gloo(rank, theirs, "buffers of their own", broadcast_buffers=False)
    words(rank, size, theirs)
    with contextlib.suppress(ImportError):
        hooks(rank, theirs)
    uneven(rank, size, theirs)
    zero(rank, size, theirs)
    sync_batch_norm()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print(f"{size} ranks: DDP as over Gloo", flush=True)


if __name__ == "__main__":
    start_all(run)
