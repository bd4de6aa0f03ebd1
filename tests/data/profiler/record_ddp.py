"""Records ddp.json: three steps of a small model on two CPU processes with DDP over gloo. Made with torch 2.15.0
(Linux, Python 3.11). Rank 0 writes the file."""

import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule


def train(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    linear, relu = torch.nn.Linear, torch.nn.ReLU
    model = torch.nn.Sequential(linear(256, 512), relu(), linear(512, 512), relu(), linear(512, 10))
    model = DistributedDataParallel(model, bucket_cap_mb=0.5)
    images = torch.randn(32, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = schedule(wait=1, warmup=1, active=3)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
        for _ in range(5):
            optimizer.zero_grad()
            model(images).sum().backward()
            optimizer.step()
            profiler.step()
    if rank == 0:
        profiler.export_chrome_trace("ddp.json")
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(train, nprocs=2)
