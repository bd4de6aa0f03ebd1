"""The rows of the backend of torch beside Gloo of the same torch, in one program (`benches/peers/torch_speed.py`)."""

from commands import Command, bench, read_last_number, roofline
from rows import MIB, Row, describe_size

# Least speeds to Gloo, and to `linerate bench` with the same kind of memory.
PLAIN = {MIB: (5.0, 0.85), 16 * MIB: (5.0, 0.85), 128 * MIB: (5.0, 0.85)}
REGISTERED = {MIB: (12.0, 0.9), 16 * MIB: (12.0, 0.9), 128 * MIB: (8.0, 0.9)}

# The gradients of torch_speed.py's DDP rows: 25 layers of 1,000 by 1,000, each with its bias.
DDP_BYTES = 25 * (1000 * 1000 + 1000) * 4 // 64 * 64


def program(backend, ranks, *arguments):
    argv = ("linerate", "launch", "-n", str(ranks), "--", "torch_speed", f"--backend={backend}")
    return Command(argv + tuple(map(str, arguments)), read_last_number)


def row(name, ranks, *arguments, least, is_registered=False, **more):
    return Row(
        name=f"torch {name}",
        ours=program("linerate", ranks, *arguments, *(["registered"] if is_registered else [])),
        peer=program("gloo", ranks, *arguments),
        peer_ratio_min=least,
        **more,
    )


def all_reduces(memory, wanted, is_registered):
    return [
        row(
            f"all_reduce 2 ranks {memory} {describe_size(size)}; limit: bench",
            2,
            "all_reduce",
            size,
            least=least,
            is_registered=is_registered,
            limit=bench("allreduce", 2, size, memory, "shm"),
            limit_ratio_min=of_bench,
            size=size,
            bus_factor=1.0,
        )
        for size, (least, of_bench) in wanted.items()
    ]


ROWS = [
    row("all_reduce 1 rank 8 B", 1, "all_reduce", 8, least=2.0),
    row("all_reduce 2 ranks 8 B", 2, "all_reduce", 8, least=10.0),
    *all_reduces("caller", PLAIN, False),
    *all_reduces("registered", REGISTERED, True),
    row("all_reduce 4 ranks 16 MiB", 4, "all_reduce", 16 * MIB, least=3.0, size=16 * MIB, bus_factor=1.5),
    row("all_gather_into_tensor 2 ranks 16 MiB", 2, "all_gather", 16 * MIB, least=4.0),
    row("reduce_scatter_tensor 2 ranks 16 MiB", 2, "reduce_scatter", 16 * MIB, least=4.0),
    row("DDP 25 M parameters 2 ranks: exposed; limit: memory", 2, "ddp", least=4.0, limit=roofline(2, DDP_BYTES)),
    row(
        "DDP 25 M parameters 2 ranks registered: exposed; limit: memory",
        2,
        "ddp",
        least=8.0,
        is_registered=True,
        limit=roofline(2, DDP_BYTES),
    ),
    row("DDP 25 M parameters 4 ranks: step", 4, "ddp_step", least=1.2),
    row("FSDP2 2 ranks: step", 2, "fsdp", least=1.2),
]
