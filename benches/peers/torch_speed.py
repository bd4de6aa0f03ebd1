"""Times of torch.distributed over one backend: torch_speed.py --backend=NAME WHAT [BYTES] [registered]

WHAT: all_reduce, all_gather, reduce_scatter (of BYTES of f32, in place or into a tensor), ddp (a step less the same step
without communication), ddp_step, fsdp (a whole step). Prints on rank 0: WHAT, then the median in us.

Steps of DDP zero their gradients in place, so that these stay in DDP's buckets in both kinds of step. Gradients that are
dropped are new tensors after each step, which only the step with communication copies to the buckets: torch's own work,
16 to 24 ms for 25 million parameters with a hook that does nothing.
"""

import ctypes
import statistics
import sys
import time

import torch
import torch.distributed as dist

TIMED_S = 1.0
STEPS = 50
# Layers of a thousand by a thousand: 25 million parameters.
LAYERS, WIDTH = 25, 1000


def median_of(call):
    """Of calls that all ranks make, each timed on its own; a warm-up first."""
    for _ in range(3):
        call()
    begun = time.perf_counter()
    call()
    count = torch.tensor([min(max(int(TIMED_S / (time.perf_counter() - begun)), 10), 5000)])
    dist.broadcast(count, 0)
    times = []
    dist.barrier()
    for _ in range(int(count)):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return statistics.median(times)


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def step(model, data):
    begun = time.perf_counter()
    model(data).sum().backward()
    seconds = time.perf_counter() - begun
    model.zero_grad(set_to_none=False)
    return seconds


def of_ddp(is_registered):
    """A step, and the same step without communication, in turns."""
    model, data = torch.nn.parallel.DistributedDataParallel(build(), gradient_as_bucket_view=True), torch.ones(4, WIDTH)
    if is_registered:
        linerate.torch.register(model)
    steps, alone = [], []
    for turn in range(STEPS + 3):
        dist.barrier()
        seconds = step(model, data)
        with model.no_sync():
            lonely = step(model, data)
        if turn >= 3:
            steps.append(seconds)
            alone.append(lonely)
    return statistics.median(steps), statistics.median(alone)


def of_fsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = build(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    data = torch.ones(4, WIDTH)
    times = [step(model, data) for _ in range(STEPS // 2)]
    return statistics.median(times[3:])


# What a step frees stays with the process (M_TRIM_THRESHOLD, M_MMAP_THRESHOLD). Otherwise it is chance which of two steps
# that are compared gets its pages anew from the kernel: none of them, 2,000 or 13,000.
for option, value in ((-1, 1 << 30), (-3, 32 << 20)):
    ctypes.CDLL(None).mallopt(option, value)
backend, what, is_registered = sys.argv[1].removeprefix("--backend="), sys.argv[2], sys.argv[-1] == "registered"
if backend == "linerate":
    import linerate.torch
torch.set_num_threads(1)
dist.init_process_group(backend)
count = int(sys.argv[3]) // 4 if len(sys.argv) > 3 and sys.argv[3].isdigit() else 0
empty = linerate.torch.empty if is_registered else torch.zeros
if what == "all_reduce":
    tensor = empty(count)
    seconds = median_of(lambda: dist.all_reduce(tensor))
elif what == "all_gather":
    part, whole = torch.zeros(count // dist.get_world_size()), torch.zeros(count)
    seconds = median_of(lambda: dist.all_gather_into_tensor(whole, part))
elif what == "reduce_scatter":
    part, whole = torch.zeros(count // dist.get_world_size()), torch.zeros(count)
    seconds = median_of(lambda: dist.reduce_scatter_tensor(part, whole))
elif what == "ddp":
    with_others, alone = of_ddp(is_registered)
    seconds = max(with_others - alone, 1e-6)
elif what == "ddp_step":
    seconds = of_ddp(is_registered)[0]
elif what == "fsdp":
    seconds = of_fsdp()
else:
    sys.exit(__doc__)
if dist.get_rank() == 0:
    print(what, f"{seconds * 1e6:.2f}")
dist.destroy_process_group()
