"""linerate beside perftest, over Soft-RoCE in one boot of a guest (tools/rdma-vm), in turns; medians of the rounds.

A virtual machine's processors may be one real core for tenths of a second and two for the next ones: whatever occupies both, as
both ends of every run here do, then takes twice as long, perftest too. So each round starts both sides several times, in
turns and equally often, and takes the best of each; how far the processors were two is measured before each round and told.

Ratios are speeds, as in the other tables: 1.00 is as fast as perftest. What an allreduce reaches is set beside what
`ib_write_bw -b` moves per direction, and what the rest of its time went to is measured by collectives that lack one part of it:

* wire: its bytes at the rate of `ib_write_bw -b`;
* reduction: a reduce-scatter moves as many bytes as an all-gather, and adds them up besides;
* control: an allreduce of 8 bytes, which is all announcements, signals and waits for them;
* waits: what is left. Most of it is that a chunk has to be there before it is added, and added before it goes back.

Read first: rdma_guest.py (how a number is taken).
"""

import json
import pathlib
import statistics
import subprocess
import sys

import table
from rows import KIB, MIB, describe_size

HERE = pathlib.Path(__file__).resolve().parent
VM = HERE.parents[1] / "tools" / "rdma-vm"
# What one run takes at most, boot and all, times the runs of a round.
SECONDS_PER_RUN = 12

# Least ratios to perftest.
BANDWIDTH_MIN = 0.97
LATENCY_MIN = 1 / 1.1
# Of an allreduce: bytes per direction, of those of ib_write_bw -b.
SHARE_MIN = 0.6
SIZE = MIB
# Of a latency: short, so that the machine stays the same for all of a start now and then.
TRIPS = 3_000
# Starts of each side in a round.
STARTS_LATENCY, STARTS_BANDWIDTH = 5, 2


def bandwidth(test, size, iterations, wanted=BANDWIDTH_MIN, flags=()):
    name = f"{test}{''.join(' ' + flag for flag in flags)} {describe_size(size)}"
    return {"name": name, "test": test, "size": size, "iterations": iterations, "flags": list(flags), "starts": STARTS_BANDWIDTH, "wanted": wanted}


def latency(test, size, iterations, wanted=LATENCY_MIN):
    name = f"{test} {describe_size(size)}"
    return {"name": name, "test": test, "size": size, "iterations": iterations, "starts": STARTS_LATENCY, "wanted": wanted}


def part(collective, size, iterations):
    name = f"{collective} {describe_size(size)}"
    return {"name": name, "collective": collective, "size": size, "iterations": iterations}


BOTH_WAYS = bandwidth("write_bw", SIZE, 40, None, ("-b",))
ALL_REDUCE, REDUCE_SCATTER = part("allreduce", SIZE, 20), part("reduce-scatter", SIZE, 20)
ALL_GATHER, SHORT = part("all-gather", SIZE, 20), part("allreduce", 8, 100)
CASES = [
    *(bandwidth(f"{verb}_bw", size, count) for verb in ("write", "read", "send") for size, count in ((64 * KIB, 300), (MIB, 40))),
    *(latency(f"{verb}_lat", 8, TRIPS) for verb in ("write", "read", "send")),
    latency("atomic_lat", 8, TRIPS, None),
    BOTH_WAYS,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    SHORT,
]


def measure(linerate, rounds, wanted, tell):
    """What each run in the guest gave; what the machine was meanwhile; why the guest did not come, if it did not."""
    cases = [case for case in CASES if wanted(case["name"])]
    limit = SECONDS_PER_RUN * rounds * sum(2 * case.get("starts", 1) for case in cases) + 60
    argv = [str(VM), "run", "--timeout", str(limit), "--", "python3", str(HERE / "rdma_guest.py")]
    lines, code = collect(argv, linerate, cases, rounds, tell)
    skipped = [f"{' '.join(argv[:3])}: exit code {code}"] if code else []
    return [judge(case, lines) for case in cases], values("machine", "cores", lines, max), skipped


def collect(argv, linerate, cases, rounds, tell, **settings):
    """The lines of rdma_guest.py, which `argv` starts, and its exit code; `settings` of its process."""
    argv = [*argv, "--cases", json.dumps(cases), "--linerate", str(pathlib.Path(linerate).resolve()), "--rounds", str(rounds)]
    lines = []
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, **settings) as guest:
        for text in guest.stdout:
            if not text.startswith("{"):
                print(text.rstrip(), file=sys.stderr)
                continue
            line = json.loads(text)
            lines.append(line)
            if line["name"] != "machine":
                tell(f"round {line['round'] + 1} of {rounds}: {line['name']}: {line['side']}")
    return lines, guest.returncode


def values(name, side, lines, best):
    """The best of each round."""
    rounds = {}
    for line in lines:
        if (line["name"], line["side"]) == (name, side) and "value" in line:
            rounds.setdefault(line["round"], []).append(line["value"])
    return [best(of_round) for of_round in rounds.values()]


def judge(case, lines):
    """The medians of one case, and what they are to each other."""
    name = case["name"]
    is_time = "collective" in case or case["test"].endswith("_lat")
    ours, peer = (values(name, side, lines, min if is_time else max) for side in ("ours", "peer"))
    median = lambda of: statistics.median(of) if of else None
    result = {
        "name": name,
        "bytes": case["size"],
        "unit": "us" if is_time else "MiB/s",
        "ours": median(ours),
        "peer": median(peer),
        "ours_all": ours,
        "peer_all": peer,
        "ratio_min": case.get("wanted"),
        "failures": [f"{line['side']}: {line['failure']}" for line in lines if line["name"] == name and "failure" in line],
    }
    quotient = result["ours"] / result["peer"] if ours and peer else None
    result["ratio"] = 1 / quotient if quotient and is_time else quotient
    result["met"] = None
    if result["ratio"] and result["ratio_min"]:
        result["met"] = result["ratio"] >= result["ratio_min"]
    if quotient and "longer_us_max" in case:
        result["met"] = result["ours"] - result["peer"] <= case["longer_us_max"]
    counts = [line["counts"] for line in lines if line["name"] == name and "counts" in line]
    # Of the last run, from its first connection on.
    result["counts"] = counts[-1] if counts else {}
    return result


def share(results):
    """What an allreduce reaches of the wire, and where the rest of its time goes; `None` where something is missing."""
    medians = {result["name"]: result["ours"] for result in results}
    peers = {result["name"]: result["peer"] for result in results}
    needed = [medians.get(case["name"]) for case in (ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, SHORT)]
    both_ways = peers.get(BOTH_WAYS["name"])
    if None in needed or both_ways is None:
        return None
    whole, scattered, gathered, control = needed
    # perftest tells both directions together. Two ranks send each other all bytes once.
    wire = SIZE / MIB / (both_ways / 2) * 1e6
    reduction = max(0.0, scattered - gathered)
    return {
        "us": whole,
        "share": wire / whole,
        "share_min": SHARE_MIN,
        "met": wire / whole >= SHARE_MIN,
        "parts_us": {"wire": wire, "reduction": reduction, "control": control, "waits": whole - wire - reduction - control},
    }


def copied(results):
    """Bytes that processors copied per byte that devices wrote, of long transfers between registered buffers."""
    lines = []
    for result in results:
        counts = result["counts"]
        written = counts.get("written bytes", 0)
        if result["bytes"] >= 64 * KIB and written:
            lines.append((result["name"], counts.get("copied bytes", 0), written))
    return lines


def build(results, machine=()):
    """The table, what the machine was, where an allreduce's time goes, what was copied, and what failed."""
    number = lambda value: "-" if value is None else f"{value:.2f}"
    rows = [("case", "ours", "perftest", "unit", "ratio", "wanted", "met")]
    for result in results:
        met = {True: "yes", False: "NO", None: "-"}[result["met"]]
        cells = (number(result[key]) for key in ("ours", "peer"))
        bounds = (number(result[key]) for key in ("ratio", "ratio_min"))
        rows.append((result["name"], *cells, result["unit"], *bounds, met))
    lines = table.align(rows)
    lines.insert(1, "-" * len(lines[0]))
    if machine:
        each = ", ".join(f"{share:.2f}" for share in machine)
        lines.append(f"both processors at once, each of its speed alone, before each round: {each}")
    verdicts = [result["met"] for result in results if result["met"] is not None]
    found = share(results)
    if found:
        verdicts.append(found["met"])
        parts = ", ".join(f"{name} {us:.0f} us ({us / found['us']:.0%})" for name, us in found["parts_us"].items())
        lines.append(
            f"allreduce {describe_size(SIZE)}, 2 ranks: {found['share']:.2f} of ib_write_bw -b per direction, "
            f"{SHARE_MIN:.2f} wanted: {'yes' if found['met'] else 'NO'}; of {found['us']:.0f} us: {parts}"
        )
    for name, bytes_copied, written in copied(results):
        lines.append(f"copied by processors, {name}: {bytes_copied} of {written} bytes written: {bytes_copied / written:.6f}")
    for result in results:
        lines.extend(f"failed: {result['name']}: {text}" for text in result["failures"])
    lines.append(f"{sum(verdicts)} of {len(verdicts)} wanted ratios met" if verdicts else "nothing was judged")
    return "\n".join(lines)
