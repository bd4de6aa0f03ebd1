"""linerate on a modelled wire (`tools/speed --wire`): soft-verbs gives completions when a wire of the chosen rate would have
brought them, and the row says which share of its payload linerate uses. An allreduce adds, too: its limit is the wire or
what the cores add, the lesser of the two.

Above 8192 bytes nothing is moved (`bytes=none`), so that a row shows what linerate's own work allows; its twin at 25 Gbit/s
moves and checks every byte. Two processes of this machine share it: a core each, or less where others run.

What a message costs stands beside perftest on the same device.

Read first: ffi/soft-verbs/README.md, rdma.py (how perftest's rows are taken).
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import peers
import rdma
import table
from rows import KIB, MIB, describe_size

# What a packet of RoCEv2 has besides its payload, the gap to the next one with it; and what the first packet has more.
PACKET_BYTES, MESSAGE_BYTES, MTU = 82, 16, 4096
LATENCY = "2us"
# Least shares of the wire's payload by its rate in Gbit/s.
SHARE_MIN = {25: 0.9, 100: 0.98, 200: 0.98, 400: 0.95}
GATHER_MIN = {100: 0.95, 200: 0.9}
# Of the wire, or of what the cores add, if that is less.
ALLREDUCE_MIN = 0.9
# Of what registered memory is to reach.
CALLER_MIN = 0.8
TIMEOUT = 120


def case(name, rate, size, arguments, wanted, key, is_moved):
    """`arguments` of linerate; `key`: the figure of its first result, in GB/s."""
    return {
        "name": f"{name} {describe_size(size)} at {rate} Gbit/s{', bytes moved' if is_moved else ''}",
        "rate": rate,
        "size": size,
        "arguments": [*arguments, "--transport", "verbs", "--check", str(int(is_moved)), "--json", "-"],
        "wanted": wanted,
        "key": key,
        "bytes": "all" if is_moved else "none",
    }


def perf(test, rate, size, is_moved=False):
    return case(test, rate, size, ["perf", test, "--local", "-s", str(size), "--no-rotate"], SHARE_MIN[rate], "bw", is_moved)


def gather(collective, rate, size, memory="registered"):
    arguments = ["bench", collective, "--ranks", "2", "-b", str(size), "-e", str(size), "--memory", memory, "--no-rotate"]
    arguments += ["--placement", "in-place"]
    wanted = ALLREDUCE_MIN if collective == "allreduce" else GATHER_MIN.get(rate)
    if memory == "caller":
        wanted *= CALLER_MIN
    name = collective if memory == "registered" else f"{collective} of caller's memory"
    return case(name, rate, size, arguments, wanted, "busbw", False)


CASES = [
    *(perf(test, rate, size) for rate in (100, 200, 400) for test in ("write_bw", "send_bw", "read_bw") for size in (64 * KIB, MIB)),
    perf("write_bw", 25, MIB, True),
    *(gather(collective, rate, 64 * MIB) for rate in GATHER_MIN for collective in ("all-gather", "broadcast", "allreduce")),
    *(gather(collective, 100, 64 * MIB, "caller") for collective in ("all-gather", "allreduce")),
]

# Beside perftest. soft-verbs has none of the newer calls for sending; without -F perftest stops where clocks change.
PERFTEST_FLAGS = {"peer_flags": ["--use_old_post_send"]}
PERFTEST_RATE = 100
PERFTEST_CASES = [
    # The same number of messages per second is the least.
    rdma.bandwidth("write_bw", 8, 100_000, 1.0, ("-q", "8")) | PERFTEST_FLAGS,
    # perftest's loop posts and polls, and does nothing else.
    rdma.latency("write_lat", 8, 20_000, None) | PERFTEST_FLAGS | {"longer_us_max": 0.3},
]


def payload(rate, size):
    """GB/s of payload that the wire carries of messages of this length."""
    packets = -(-size // MTU)
    return rate / 8 * size / (size + packets * PACKET_BYTES + MESSAGE_BYTES)


def add_rate(roofline, size):
    """The bandwidth in GB/s of an allreduce of two ranks that only adds: each core adds half of a buffer to another."""
    done = subprocess.run([str(roofline), "1", "2", str(size)], capture_output=True, text=True, check=True, timeout=TIMEOUT)
    return size / float(done.stdout.split()[-1]) / 1e3


def measure(linerate, rounds, wanted, tell):
    """The best of the rounds of each case."""
    library = pathlib.Path(linerate).resolve().parent / "libsoft_verbs.so"
    if not library.exists():
        return [], [f"{library} is missing: cargo build --release --workspace"]
    cases = [one for one in CASES if wanted(one["name"])]
    sizes = {one["size"] for one in cases if is_sum(one)}
    roofline = library.parent.parent / "peers" / "roofline"
    if sizes:
        roofline.parent.mkdir(parents=True, exist_ok=True)
        why_not = peers.compile_to(roofline, "roofline", *peers.ROOFLINE)
        if why_not:
            return [], [why_not]
    found = {one["name"]: [] for one in cases}
    failures = {one["name"]: [] for one in cases}
    sums = {size: 0.0 for size in sizes}
    for number in range(rounds):
        for size in sizes:
            sums[size] = max(sums[size], add_rate(roofline, size))
        for one in cases:
            tell(f"round {number + 1} of {rounds}: {one['name']}")
            own = environment(library, one["rate"], one["bytes"])
            argv = [linerate, *one["arguments"]]
            done = subprocess.run(argv, capture_output=True, text=True, env=os.environ | own, timeout=TIMEOUT)
            try:
                found[one["name"]].append(json.loads(done.stdout)["results"][0][one["key"]])
            except (ValueError, KeyError, IndexError, TypeError):
                failures[one["name"]].append((done.stderr.strip() or done.stdout.strip())[-300:])
    return [judge(one, found[one["name"]], failures[one["name"]], sums.get(one["size"])) for one in cases], []


def measure_perftest(linerate, rounds, wanted, tell):
    """What a message costs beside perftest; why that was not measured, if it was not."""
    cases = [one for one in PERFTEST_CASES if wanted(one["name"])]
    if not cases:
        return [], []
    if not shutil.which("ib_write_bw"):
        return [], ["perftest is missing: apt-get install perftest"]
    library = pathlib.Path(linerate).resolve().parent / "libsoft_verbs.so"
    with tempfile.TemporaryDirectory() as folder:
        # perftest is linked to libibverbs, and finds this in its place.
        (pathlib.Path(folder) / "libibverbs.so.1").symlink_to(library)
        # perftest's memory is no memfd: ours goes the same way.
        own = os.environ | environment(library, PERFTEST_RATE, "all", "map=none") | {"LD_LIBRARY_PATH": folder}
        argv = [sys.executable, str(rdma.HERE / "rdma_guest.py"), "--device", "soft0"]
        lines, code = rdma.collect(argv, linerate, cases, rounds, tell, env=own)
    skipped = [f"rdma_guest.py: exit code {code}"] if code else []
    return [rdma.judge(one, lines) for one in cases], skipped


def environment(library, rate, moved, *more):
    words = [f"rate={rate}gbit", f"latency={LATENCY}", f"mtu={MTU}", f"bytes={moved}", "host=each", *more]
    return {"LINERATE_IBVERBS_LIB": str(library), "SOFT_VERBS": ",".join(words)}


def is_sum(one):
    return one["arguments"][1] == "allreduce"


def judge(one, values, failures, sums=None):
    limit = payload(one["rate"], one["size"])
    if is_sum(one) and sums:
        limit = min(limit, sums)
    ours = max(values, default=None)
    share = ours / limit if ours else None
    met = None if share is None or one["wanted"] is None else share >= one["wanted"]
    return {
        "name": one["name"],
        "ours": ours,
        "limit": limit,
        "share": share,
        "share_min": one["wanted"],
        "met": met,
        "failures": failures,
    }


def build(results):
    """The table, and what failed."""
    number = lambda value: "-" if value is None else f"{value:.2f}"
    rows = [("modelled wire", "GB/s", "limit", "share", "wanted", "met")]
    for result in results:
        met = {True: "yes", False: "NO", None: "-"}[result["met"]]
        rows.append((result["name"], *(number(result[key]) for key in ("ours", "limit", "share", "share_min")), met))
    lines = table.align(rows)
    lines.insert(1, "-" * len(lines[0]))
    for result in results:
        lines.extend(f"failed: {result['name']}: {text}" for text in result["failures"])
    judged = [result["met"] for result in results if result["met"] is not None]
    lines.append(f"{sum(judged)} of {len(judged)} wanted shares met" if judged else "nothing was judged")
    return "\n".join(lines)
