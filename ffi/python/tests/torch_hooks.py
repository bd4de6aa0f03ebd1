"""The hooks of DDP in real processes: python3 torch_hooks.py RANKS..."""

import time
import warnings

import linerate.torch
import torch
import torch.distributed as dist
from linerate.torch import hooks
from torch.nn.parallel import DistributedDataParallel
from torch_group import join, start_all


class Model(torch.nn.Module):
    """Its gradients are the inputs: whole numbers, so that sums are exact."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, 1, bias=False) for width in (40, 30, 20, 50))

    def forward(self, inputs):
        return sum(layer(part).sum() for layer, part in zip(self.layers, inputs.split([40, 30, 20, 50], 1)))


def build():
    torch.manual_seed(1)
    # Small buckets, which DDP builds anew after the first step.
    return DistributedDataParallel(Model(), bucket_cap_mb=0.0002, broadcast_buffers=False)


def steps(model, rank, count, seed, delivered, submitted, delay=0.0):
    """Steps with random whole gradients; adds what was delivered, and what this rank has given."""
    random = torch.Generator().manual_seed(100 * seed + rank)
    for _ in range(count):
        inputs = torch.randint(-8, 9, (1, 140), generator=random).float() * 4
        time.sleep(delay)
        model.zero_grad()
        model(inputs).backward()
        submitted += inputs[0]
        delivered += gradients(model)


def gradients(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def kept(state):
    return torch.cat([state["residuals"][f"layers.{n}.weight"].reshape(-1) for n in range(4)])


def conserved(delivered, submitted, left, size):
    """The mean of all that was given is what was delivered, and what is left."""
    total = submitted - left
    dist.all_reduce(total)
    torch.testing.assert_close(delivered * size, total, rtol=0, atol=0)


def sparse(rank, size):
    for options in ({"density": 0.1}, {"k": 3, "algorithm": "topka"}, {"density": 0.05, "algorithm": "topkdsa"}):
        model, delivered, submitted = build(), torch.zeros(140), torch.zeros(140)
        hook = hooks.sparse(model, **options)
        steps(model, rank, 6, 1, delivered, submitted)
        state = hook.state_dict()
        assert sorted(state["residuals"]) == [f"layers.{n}.weight" for n in range(4)]
        assert kept(state).any() and hook.reports[0].selected_local > 0
        conserved(delivered, submitted, kept(state), size)
        # A checkpoint, and another process that goes on.
        model = build()
        hook = hooks.sparse(model, **options)
        hook.load_state_dict(state)
        steps(model, rank, 4, 2, delivered, submitted)
        conserved(delivered, submitted, kept(hook.state_dict()), size)
        # The scale of gradients changes, and that of what is kept with it.
        before = kept(hook.state_dict())
        hook.scale_residuals(0.5)
        assert torch.equal(kept(hook.state_dict()), before / 2)
        hook.scale_residuals(2.0)
        assert hook.finish()
        delivered += gradients(model)
        assert hook.finish() and not gradients(model).any()
        # What was loaded, and no step has taken.
        fresh = hooks.sparse(build(), **options)
        fresh.load_state_dict(state)
        assert fresh.finish() and fresh.state_dict()["residuals"] == {}
        conserved(delivered, submitted, torch.zeros(140), size)
        assert not kept(hook.state_dict()).any()
    for state, word in (({"hook": "partial"}, "hook partial"), ({"hook": "sparse", "residuals": {"no": 1}}, "parameter no")):
        try:
            hook.load_state_dict(state)
        except linerate.InvalidArgument as error:
            assert word in str(error), error
        else:
            raise AssertionError(f"{word} was taken")


def partial(rank, size):
    for options in ({"policy": "solo"}, {"policy": "majority", "limiter": 3}, {"policy": "full"}):
        model, delivered, submitted = build(), torch.zeros(140), torch.zeros(140)
        hook = hooks.partial(model, **options)
        steps(model, rank, 6, 3, delivered, submitted, 0.02 if rank == 1 else 0.0)
        hook.finish()
        delivered += gradients(model)
        conserved(delivered, submitted, torch.zeros(140), size)
        # After finish() it goes on, and a checkpoint is empty.
        assert not hook.finish()
        assert hook.state_dict()["residuals"] == {}
        steps(model, rank, 3, 4, delivered, submitted)
        hook.finish()
        delivered += gradients(model)
        conserved(delivered, submitted, torch.zeros(140), size)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hooks.partial(DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))))
    assert any("broadcast_buffers" in str(one.message) for one in caught)


def compressed(rank, size):
    for kind in (hooks.bf16, hooks.fp16):
        model, delivered, submitted = build(), torch.zeros(140), torch.zeros(140)
        hook = kind(model)
        random = torch.Generator().manual_seed(rank)
        for _ in range(20):
            inputs = torch.rand(1, 140, generator=random) + 1
            model.zero_grad()
            model(inputs).backward()
            submitted += inputs[0]
            delivered += gradients(model)
        left = kept(hook.state_dict())
        assert left.any()
        total = submitted - left
        dist.all_reduce(total)
        # Sums of short numbers are rounded, too: only that of each rank's own is kept.
        torch.testing.assert_close(delivered * size, total, rtol=2e-2 if kind is hooks.bf16 else 2e-3, atol=0)
        hook.load_state_dict(hook.state_dict())
        assert hook.finish() and not hook.state_dict()["residuals"]
        # Infinite values, as a GradScaler's, do not stay.
        model.zero_grad()
        model(torch.full((1, 140), float("inf"))).backward()
        assert not torch.isfinite(gradients(model)).any()
        assert torch.isfinite(kept(hook.state_dict())).all()


def run(rank, size, folder):
    torch.set_num_threads(1)
    join(rank, size, folder)
    sparse(rank, size)
    partial(rank, size)
    compressed(rank, size)
    dist.destroy_process_group()
    print(f"rank {rank} of {size}: hooks keep everything", flush=True)


if __name__ == "__main__":
    start_all(run)
