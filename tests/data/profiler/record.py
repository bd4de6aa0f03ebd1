"""Records cpu.json: three steps of a small model on the CPU. Made with torch 2.15.0 (Linux, Python 3.11)."""

import torch
from torch.profiler import ProfilerActivity, profile, schedule

torch.manual_seed(1)
linear, relu = torch.nn.Linear, torch.nn.ReLU
model = torch.nn.Sequential(linear(256, 512), relu(), linear(512, 512), relu(), linear(512, 10))
images = torch.randn(32, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = schedule(wait=1, warmup=1, active=3)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=steps) as profiler:
    for _ in range(5):
        optimizer.zero_grad()
        model(images).sum().backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace("cpu.json")
