"""The rows of the C interface: a C program beside a Rust program with the same loops (`ffi/capi/benches/speed.c`,
`ffi/capi/examples/speed.rs`), and what queues and batches do, on two ranks.
"""

from commands import Command, read_last_number
from rows import KIB, Row, describe_size

# What a call may cost more than from Rust.
MORE_US_MAX = 0.03
QUEUE_MAX = 1.2
COMMUNICATORS_MAX = 1.3
# Least speed of 64 all-gathers in one operation, to 64 operations.
BATCH_MIN = {2 * KIB: 3.0, 64 * KIB: 1.0}


def program(name, *arguments, transport="shm", read=read_last_number):
    argv = ("env", f"LINERATE_TRANSPORT={transport}", "linerate", "launch", "-n", "2", "--", name)
    return Command(argv + tuple(map(str, arguments)), read)


def read_with_allowance(text):
    """The time that the other side may take."""
    return {"us": read_last_number(text)["us"] + MORE_US_MAX}


def batch(transport, size, least):
    return Row(
        name=f"capi {transport} batch of 64 all-gathers of {describe_size(size)}; peer: 64 operations",
        ours=program("capi_speed", "batch", size, transport=transport),
        peer=program("capi_speed", "single", size, transport=transport),
        peer_ratio_min=least,
    )


ROWS = [
    Row(
        name="capi linerate_run of 8 B; peer: Rust; limit: Rust and 30 ns",
        ours=program("capi_speed", "run"),
        peer=program("rust_speed", "run"),
        limit=program("rust_speed", "run", read=read_with_allowance),
        limit_ratio_min=1.0,
    ),
    Row(
        name="capi 1000 operations of 64 B into a queue; peer: Rust",
        ours=program("capi_speed", "queue"),
        peer=program("rust_speed", "queue"),
        peer_ratio_min=1 / QUEUE_MAX,
    ),
    Row(
        name="capi 40 operations of 64 B on 40 communicators; peer: on one",
        ours=program("capi_speed", "communicators", 40),
        peer=program("capi_speed", "communicators", 1),
        peer_ratio_min=1 / COMMUNICATORS_MAX,
    ),
    *(batch(transport, size, least) for transport in ("shm", "tcp") for size, least in BATCH_MIN.items()),
]
