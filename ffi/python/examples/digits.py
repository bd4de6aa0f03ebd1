"""Trains a small network on scikit-learn's digits with DDP, and prints loss, accuracy and time in communication.

    torchrun --nproc_per_node 2 digits.py --backend linerate --hook sparse
    linerate launch -n 2 -- python3 digits.py --backend gloo
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch.nn.parallel import DistributedDataParallel

HOOKS = {
    "none": {},
    "bf16": {},
    "fp16": {},
    "sparse": {"density": 0.05},
    "partial": {"policy": "majority"},
}


def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
    )


def load():
    """Images of 64 pixels, from 0 to 1, and what they show: 1500 to train with, then 297 to try."""
    digits = load_digits()
    return torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)


def accuracy_of(model, data, target):
    with torch.no_grad():
        return (model(data).argmax(1) == target).float().mean().item()


def train(model, data, target, epochs, batch):
    """Steps over this rank's share. Returns the optimizer, and the mean loss of this rank in the last epoch."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss_of = torch.nn.CrossEntropyLoss()
    rank, size = dist.get_rank(), dist.get_world_size()
    # All ranks make as many steps.
    count = len(data) // (size * batch) * size * batch
    for epoch in range(epochs):
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))[rank:count:size]
        losses = []
        for chosen in order.split(batch):
            loss = loss_of(model(data[chosen]), target[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return optimizer, sum(losses) / len(losses)


def mean_of(value):
    """The mean over the ranks."""
    tensor = torch.tensor([value])
    dist.all_reduce(tensor)
    return tensor.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser(description="DDP on the digits of scikit-learn")
    parser.add_argument("--backend", choices=["gloo", "linerate"], default="linerate")
    parser.add_argument("--hook", choices=sorted(HOOKS), default="none", help="of linerate.torch.hooks")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32, help="samples of a rank in a step")
    options = parser.parse_args()
    if options.backend == "linerate":
        import linerate.torch
    elif options.hook != "none":
        parser.error("--hook needs --backend linerate")
    torch.set_num_threads(1)
    dist.init_process_group(options.backend)
    data, target = load()
    model = DistributedDataParallel(build())
    hook = None
    if options.hook != "none":
        hook = getattr(linerate.torch.hooks, options.hook)(model, **HOOKS[options.hook])
    begun = time.perf_counter()
    optimizer, loss = train(model, data[:1500], target[:1500], options.epochs, options.batch)
    seconds = time.perf_counter() - begun
    loss = mean_of(loss)
    if hook is not None and hook.finish():
        optimizer.step()
    accuracy = accuracy_of(model.module, data[1500:], target[1500:])
    # The same steps without communication.
    alone = DistributedDataParallel(build())
    begun = time.perf_counter()
    with alone.no_sync():
        train(alone, data[:1500], target[:1500], options.epochs, options.batch)
    communication = max(seconds - (time.perf_counter() - begun), 0.0)
    if dist.get_rank() == 0:
        print(
            f"backend {options.backend}, hook {options.hook}, {dist.get_world_size()} ranks: loss {loss:.6f}, "
            f"accuracy {accuracy:.3f}, {seconds:.2f} s, of which communication {communication:.2f} s"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
