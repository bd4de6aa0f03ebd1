"""Trains a small network on scikit-learn's digits with fully_shard (FSDP2), and prints loss and accuracy.

    torchrun --nproc_per_node 2 fsdp.py --backend linerate

Needs a torch in which fully_shard works on tensors of the CPU: 2.15 does, 2.6 does not.
"""

import argparse
import time

import torch
import torch.distributed as dist
from digits import accuracy_of, build, load, mean_of, train
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser(description="FSDP2 on the digits of scikit-learn")
    parser.add_argument("--backend", choices=["gloo", "linerate"], default="linerate")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank in a step")
    options = parser.parse_args()
    if options.backend == "linerate":
        import linerate.torch  # noqa: F401
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    data, target = load()
    model, mesh = build(), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    begun = time.perf_counter()
    _, loss = train(model, data[:1500], target[:1500], options.epochs, options.batch)
    seconds = time.perf_counter() - begun
    loss = mean_of(loss)
    accuracy = accuracy_of(model, data[1500:], target[1500:])
    if dist.get_rank() == 0:
        print(
            f"backend {options.backend}, {dist.get_world_size()} ranks, sharded: loss {loss:.6f}, "
            f"accuracy {accuracy:.3f}, {seconds:.2f} s"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
