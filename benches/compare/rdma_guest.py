"""Runs perftest and linerate in turns where RDMA devices are, and prints what each gave as lines of JSON. `rdma.py` starts it
in a guest and `wire.py` beside soft-verbs; it runs by itself wherever a device is.

Both ends of every run are on this machine, on one device. A line is {"round", "name", "side", and "value" or "failure"}; linerate's
also have "counts", its transport's. A case may have several starts of each side in a round, as many of one as of the other. Each
round begins with a line of the machine: {"round", "name": "machine", "side": "cores", "value"}, see `cores`.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import time

# Of one run; the longest takes a few seconds in an emulated machine.
LIMIT_S = 60
# Where perftest's servers listen: another port each time, so that none is still taken.
PORTS = iter(range(20000, 30000))
# How long a server may take to listen.
LISTEN_S = 20
# A loop of so many steps takes some hundredths of a second, which is how long the machine stays as it is.
LOOP_STEPS = 100_000
LOOPS = 5


class Failed(Exception):
    """A run gave no number; the text says why."""


def run(argv):
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise Failed(f"{argv[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Failed(f"no end after {LIMIT_S} s: {' '.join(argv)}") from error
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed(f"exit code {done.returncode}: {' '.join(argv)}: {lines[-1] if lines else 'no output'}")
    return done.stdout


def loop_s():
    """How long this process takes to count."""
    start = time.perf_counter()
    for _ in range(LOOP_STEPS):
        pass
    return time.perf_counter() - start


def cores():
    """How fast a process counts while another one counts too, as a share of its speed alone. Virtual processors that are two
    real cores give 1, and 0.5 where they are, for the moment, one: whatever occupies both takes twice as long then."""
    alone = min(loop_s() for _ in range(LOOPS))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, str(statistics.median(loop_s() for _ in range(LOOPS))).encode())
        os._exit(0)
    own = statistics.median(loop_s() for _ in range(LOOPS))
    os.waitpid(child, 0)
    other = float(os.read(read, 100))
    os.close(read)
    os.close(write)
    return 2 * alone / (own + other)


def is_listening(port):
    """Whether a TCP socket of any family listens there."""
    for family in ("tcp", "tcp6"):
        with open(f"/proc/net/{family}", encoding="ascii") as table:
            rows = [line.split() for line in table.readlines()[1:]]
        if any(row[3] == "0A" and row[1].endswith(f":{port:04X}") for row in rows):
            return True
    return False


def read_perftest(text):
    """The numbers of the one row: size, iterations and what follows."""
    rows = [line.split() for line in text.splitlines() if line[:1] == " " and line.split()[:1] and line.split()[0].isdigit()]
    if len(rows) != 1:
        raise Failed(f"perftest printed {len(rows)} rows")
    return [float(cell) for cell in rows[0]]


def perftest(case, device, gid):
    """The average MiB/s, or the typical us."""
    port = next(PORTS)
    argv = [f"ib_{case['test']}", "-d", device, "-x", str(gid), "-F", "-p", str(port)]
    # The service of atomic operations has words of one size.
    argv += ["-n", str(case["iterations"])] + ([] if case["test"].startswith("atomic") else ["-s", str(case["size"])])
    argv += case.get("flags", []) + case.get("peer_flags", [])
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + LISTEN_S
        while not is_listening(port):
            if server.poll() is not None or time.monotonic() > until:
                raise Failed(f"the server does not listen: {' '.join(argv)}")
            time.sleep(0.05)
        row = read_perftest(run(argv + ["localhost"]))
    finally:
        try:
            server.wait(timeout=5)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
    # size, iterations, then peak and average, or min, max and typical.
    return {"value": row[4] if case["test"].endswith("_lat") else row[3]}


def linerate(program, case, device, gid):
    """The same numbers of `linerate perf`."""
    argv = [program, "perf", case["test"], "--local", "-d", device, "-x", str(gid), "-n", str(case["iterations"])]
    argv += [] if case["test"].startswith("atomic") else ["-s", str(case["size"])]
    argv += case.get("flags", []) + ["--no-rotate", "--check", "0", "--timeout", str(LIMIT_S // 2), "--json", "-"]
    document = json.loads(run(argv))
    (result,) = document["results"]
    value = result["time_us"]["p50"] if result["time_us"] else result["bw"] * 1e9 / (1 << 20)
    return {"value": value, "counts": document["counts"]}


def collective(program, case, device, gid):
    """The median us of a collective between two ranks on registered memory."""
    argv = ["env", f"LINERATE_VERBS_GID_INDEX={gid}", program, "bench", case["collective"]]
    argv += ["-b", str(case["size"]), "-e", str(case["size"]), "-n", str(case["iterations"]), "-w", "3", "-c", "1"]
    argv += ["--ranks", "2", "--transport", f"verbs:{device}", "--memory", "registered", "--placement", "in-place"]
    argv += ["--no-rotate", "--timeout", str(LIMIT_S // 2), "--json", "-"] + case.get("more", [])
    document = json.loads(run(argv))
    (result,) = document["results"]
    if document["wrong"]:
        raise Failed(f"{document['wrong']} wrong elements: {' '.join(argv)}")
    return {"value": result["time_us"]["p50"], "counts": document["counts"], "algorithm": result["algorithm"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--cases", required=True, help="JSON, as rdma.py writes it")
    parser.add_argument("--linerate", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="rxe0")
    parser.add_argument("--gid", type=int, default=1)
    args = parser.parse_args()
    failed = set()
    for turn in range(args.rounds):
        print(json.dumps({"round": turn, "name": "machine", "side": "cores", "value": cores()}), flush=True)
        for case in json.loads(args.cases):
            sides = {"ours": lambda case=case: linerate(args.linerate, case, args.device, args.gid)}
            sides["peer"] = lambda case=case: perftest(case, args.device, args.gid)
            if "collective" in case:
                sides = {"ours": lambda case=case: collective(args.linerate, case, args.device, args.gid)}
            # The first place goes round: whoever comes later finds warmer caches.
            orders = (sorted(sides, reverse=(turn + start) % 2 == 1) for start in range(case.get("starts", 1)))
            for side in itertools.chain.from_iterable(orders):
                if (case["name"], side) in failed:
                    continue
                line = {"round": turn, "name": case["name"], "side": side}
                try:
                    line.update(sides[side]())
                except (Failed, ValueError, KeyError, IndexError) as error:
                    failed.add((case["name"], side))
                    line["failure"] = str(error) if isinstance(error, Failed) else repr(error)
                print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
