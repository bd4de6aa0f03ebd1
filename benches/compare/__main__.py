"""Sets linerate beside its peers and the physical limits, and prints the ratios. Started by `tools/speed`.

Read first: rows.py (what is compared), then measure.py (how).
"""

import argparse
import json
import os
import pathlib
import platform
import sys
import time

import backend
import capi
import choice
import instructions
import network
import ofi
import peers
import picture
import rdma
import rows
import table
import wire
from commands import Failed
from measure import judge, measure

ROUNDS = 5
ROUNDS_QUICK = 2
# Programs that a machine may lack.
OPTIONAL = ("mpirun", "allreduce_mpi", "mpiexec_mpich", "allreduce_mpich", "roofline", "cacheline", "torch_python")
OPTIONAL += ("allreduce_gloo", "iperf3", "iperf3_loopback", "fi_pingpong", "pingpong_local", "two_hosts", "capi_speed", "rust_speed", "torch_speed")
ALWAYS = rows.ROWS + network.ROWS + capi.ROWS + backend.ROWS + ofi.ROWS
# Above this share of the cores in use by others the figures say little.
LOAD_MAX = 0.3


def arguments():
    parser = argparse.ArgumentParser(
        prog="tools/speed",
        description="Sets linerate beside its peers and the physical limits on this machine, in one run, the sides in turns, "
        "the best run of each. Prints one table. Ratios are speeds: 2.00 is twice as fast as the peer.",
        epilog="tools/speed --micro [ARGS] runs the micro-benchmarks instead: cargo bench ARGS.",
    )
    parser.add_argument("--quick", action="store_true", help=f"{ROUNDS_QUICK} rounds instead of {ROUNDS}")
    parser.add_argument("--rounds", type=int, metavar="N", help=f"runs of each side, of which the best counts; default {ROUNDS}")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="only rows with NAME in their name; may be repeated"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and run nothing")
    parser.add_argument("--json", metavar="FILE|-", help="write the results as one JSON document too; with - nothing else to stdout")
    parser.add_argument("--choice", action="store_true", help="instead: every algorithm beside the one that is chosen")
    parser.add_argument("--calibrate", action="store_true", help="with --choice: by prices of this host, measured first (minutes)")
    parser.add_argument(
        "--instructions", action="store_true", help="instead: instructions per step of the engine, counted by callgrind, by module"
    )
    parser.add_argument(
        "--rdma", action="store_true", help="instead: beside perftest over Soft-RoCE, in one boot of tools/rdma-vm; medians"
    )
    parser.add_argument("--wire", action="store_true", help="instead: on a wire that soft-verbs models, beside what it carries")
    parser.add_argument("--picture", metavar="FILE", help="instead: an allreduce over message size beside its peers, drawn as SVG")
    parser.add_argument("--linerate", metavar="PATH", help=argparse.SUPPRESS)
    parser.add_argument("--peers", metavar="FOLDER", type=pathlib.Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rounds is not None and args.rounds < 1:
        parser.error("--rounds is at least 1")
    if args.calibrate and not args.choice:
        parser.error("--calibrate goes with --choice")
    args.rounds = args.rounds or (ROUNDS_QUICK if args.quick else ROUNDS)
    return args


def machine():
    """What the figures belong to."""
    model = platform.processor()
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def warn_of_load(load, cores):
    if load > LOAD_MAX * cores:
        print(f"note: the load of this machine was {load:.1f} at the start: other programs are measured too", file=sys.stderr)


def teller():
    """One line on a terminal that is written over; nothing elsewhere."""
    if not sys.stderr.isatty():
        return lambda text: None
    return lambda text: print(f"\r\033[K{text[:100]}", end="", file=sys.stderr, flush=True)


def write(target, text):
    if target == "-":
        sys.stdout.write(text)
        return
    path = pathlib.Path(target)
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


def main():
    args = arguments()
    wanted = lambda name: not args.only or any(part in name for part in args.only)
    if args.list and args.rdma:
        print("\n".join(case["name"] for case in rdma.CASES if wanted(case["name"])))
        return 0
    if args.list and args.wire:
        print("\n".join(case["name"] for case in wire.CASES + wire.PERFTEST_CASES if wanted(case["name"])))
        return 0
    if args.list:
        print("\n".join(row.name for row in ALWAYS + rows.OTHER_ROWS if wanted(row.name)))
        return 0
    tell = teller()
    about = machine()
    warn_of_load(about["load"], about["cores"])
    document = {"machine": about, "rounds": args.rounds}
    if args.choice:
        sweep = choice.measure_calibrated if args.calibrate else choice.measure
        try:
            results = sweep(args.linerate, args.rounds, wanted, tell, is_quick=args.quick)
        except Failed as error:
            print(f"tools/speed: {error}", file=sys.stderr)
            return 1
        text, skipped = choice.build(results), []
    elif args.instructions:
        results, skipped = instructions.measure(wanted, tell), []
        text = instructions.build(results)
    elif args.rdma:
        results, at_once, skipped = rdma.measure(args.linerate, args.rounds, wanted, tell)
        text = rdma.build(results, at_once)
        document["processors_at_once"] = at_once
        document["allreduce"] = rdma.share(results)
    elif args.wire:
        results, skipped = wire.measure(args.linerate, args.rounds, wanted, tell)
        if skipped:
            print(f"tools/speed: {skipped[0]}", file=sys.stderr)
            return 1
        beside, why_not = wire.measure_perftest(args.linerate, args.rounds, wanted, tell)
        skipped += why_not
        tables = [build(of) for build, of in ((wire.build, results), (rdma.build, beside)) if of]
        text = "\n\n".join(tables)
        results += beside
    elif args.picture:
        tools, skipped = peers.build(args.peers)
        tools["linerate"] = args.linerate
        measured = picture.points(lambda command: peers.is_there(command, tools, OPTIONAL))
        runs = measure(measured, args.rounds, tools, tell)
        results = picture.judge(measured, runs)
        skipped += picture.failures(measured, runs)
        if not results:
            print(f"tools/speed: nothing to draw: {'; '.join(skipped)}", file=sys.stderr)
            return 1
        write(args.picture, picture.build(results, about, args.rounds))
        text = f"{args.picture}: {', '.join(line['name'] for line in results)}"
    else:
        tools, skipped = peers.build(args.peers)
        tools["linerate"] = args.linerate
        chosen = [row for row in ALWAYS if wanted(row.name) and peers.is_there(row.ours, tools, OPTIONAL)]
        chosen += [row for row in rows.OTHER_ROWS if wanted(row.name) and peers.is_there(row.peer, tools, OPTIONAL)]
        chosen = [peers.without_missing(row, tools, OPTIONAL) for row in chosen]
        runs = measure(chosen, args.rounds, tools, tell)
        results = [judge(row, runs) for row in chosen]
        text = table.build(results)
    tell("")
    if not results:
        print(f"tools/speed: no row has {' or '.join(args.only)} in its name: see --list", file=sys.stderr)
        return 2
    heading = f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f}; {'medians' if args.rdma else 'best'} of {args.rounds}"
    lines = [heading, text, *(f"skipped: {reason}" for reason in skipped)]
    print("\n".join(lines), file=sys.stderr if args.json == "-" else sys.stdout)
    if args.json:
        document = {**document, "results": results, "skipped": skipped}
        write(args.json, json.dumps(document, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
