"""Gloo's allreduce through torch.distributed: f32, sum, in place, over the loopback interface.

A time is that of the slowest rank of an iteration, each started after a barrier; printed is the median.
usage: allreduce_gloo.py RANKS BYTES...
prints per size, on rank 0: allreduce BYTES ITERATIONS MEDIAN_US
"""

import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

# Of one size, seconds; and the bounds of the iterations, with their warm-up.
TIMED_S = 0.5
PROBES = 3
ITERATIONS = (10, 500)


def once(tensor):
    dist.barrier()
    start = time.perf_counter()
    dist.all_reduce(tensor)
    return time.perf_counter() - start


def slowest(times):
    tensor = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor.tolist()


def measure(rank, ranks, port, sizes):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    for size in sizes:
        tensor = torch.zeros(size // 4)
        once(tensor)
        probe = statistics.mean(slowest([once(tensor) for _ in range(PROBES)]))
        iterations = int(min(max(TIMED_S / probe, ITERATIONS[0]), ITERATIONS[1]))
        for _ in range(iterations // 5):
            once(tensor)
        times = slowest([once(tensor) for _ in range(iterations)])
        if rank == 0:
            print(f"allreduce {size} {iterations} {statistics.median(times) * 1e6:.3f}", flush=True)
    dist.destroy_process_group()


def main():
    ranks, sizes = int(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    multiprocessing.spawn(measure, (ranks, port, sizes), ranks)


if __name__ == "__main__":
    main()
