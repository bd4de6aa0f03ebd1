"""The rows of the `ofi` transport over libfabric's software providers: messages beside fi_pingpong on the same provider, and
sums beside Open MPI on it.
"""

import json

from commands import Command, bench, mpi, read_last_number
from rows import MIB, Row, describe_size

# What half a round trip may take, of that of fi_pingpong; by bytes.
TIMES_MAX = {64: 1.5, MIB: 1.25}
ITERATIONS = {64: 20_000, MIB: 300}


def read_latency(text):
    """Half of a round trip."""
    (result,) = json.loads(text)["results"]
    return {"us": result["time_us"]["p50"]}


def send_lat(provider, size):
    argv = ("linerate", "perf", "send_lat", "--local", "--transport", f"ofi:{provider}", "-s", str(size))
    return Command(argv + ("-n", str(ITERATIONS[size]), "--check", "0", "--no-rotate", "--json", "-"), read_latency)


def fi_pingpong(provider, size):
    argv = ("python3", "pingpong_local", "fi_pingpong", provider, str(size), str(ITERATIONS[size]))
    return Command(argv, read_last_number)


def open_mpi(provider, size):
    """Its messages by libfabric."""
    return mpi(2, size, ("-mca", "pml", "cm", "-mca", "mtl", "ofi", "-mca", "mtl_ofi_provider_include", provider))


ROWS = [
    Row(
        name=f"ofi {provider} send_lat {describe_size(size)}; peer: fi_pingpong",
        ours=send_lat(provider, size),
        peer=fi_pingpong(provider, size),
        peer_ratio_min=1 / most,
    )
    for provider in ("shm", "tcp;ofi_rxm")
    for size, most in TIMES_MAX.items()
] + [
    Row(
        name=f"ofi tcp;ofi_rxm 2 ranks {describe_size(size)}",
        ours=bench("allreduce", 2, size, "registered", "ofi:tcp;ofi_rxm"),
        peer=open_mpi("tcp;ofi_rxm", size),
        peer_ratio_min=1.0,
        size=size,
        bus_factor=1.0,
    )
    for size in (MIB, 16 * MIB)
]
