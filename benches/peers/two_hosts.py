"""An allreduce of 2 hosts with 2 ranks each: network namespaces, joined by a link of 1 Gbit/s each way (tc tbf). Root only.

usage: two_hosts.py LINERATE ALGORITHM SIZE
prints: two_hosts ALGORITHM SIZE US
"""

import json
import os
import subprocess
import sys

RANKS = 4
# A bucket of a few of the longest packets that leave at once, and a queue that drops before TCP's windows are full.
SHAPE = "tbf rate 1gbit burst 256kb latency 20ms"
LIMIT_S = 100


def run(line, check=True):
    done = subprocess.run(line.split(), capture_output=True, text=True)
    if check and done.returncode != 0:
        sys.exit(f"{line}: {done.stderr.strip()}")


def join(names):
    run(f"ip link add l0 netns {names[0]} type veth peer name l1 netns {names[1]}")
    for host, name in enumerate(names):
        run(f"ip -n {name} addr add 10.77.1.{host + 1}/24 dev l{host}")
        run(f"ip -n {name} link set lo up")
        run(f"ip -n {name} link set l{host} up")
        run(f"tc -n {name} qdisc add dev l{host} root {SHAPE}")


def start(names, rank, argv):
    environment = {
        "PATH": os.environ["PATH"],
        "WORLD_SIZE": str(RANKS),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % 2),
        "LOCAL_WORLD_SIZE": "2",
        "LINERATE_RENDEZVOUS": "tcp://10.77.1.1:29556",
        "LINERATE_SECRET": "0123456789abcdef",
    }
    argv = ["ip", "netns", "exec", names[rank // 2], *argv]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def main():
    linerate, algorithm, size = sys.argv[1:]
    names = [f"lr-speed-{os.getpid()}-{host}" for host in range(2)]
    argv = [linerate, "bench", "allreduce", "-b", size, "-e", size, "-n", "5", "-w", "2", "--algo", algorithm]
    argv += ["--placement", "in-place", "--no-rotate", "--json", "-"]
    ranks = []
    try:
        for name in names:
            run(f"ip netns add {name}")
        join(names)
        ranks = [start(names, rank, argv) for rank in range(RANKS)]
        outputs = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
        if any(rank.returncode for rank in ranks):
            sys.exit("\n".join(error for _, error in outputs))
        (result,) = json.loads(outputs[0][0])["results"]
        if result["wrong"]:
            sys.exit(f"{result['wrong']} wrong elements")
        print("two_hosts", algorithm, size, result["time_us"]["p50"])
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for name in names:
            run(f"ip netns del {name}", check=False)


if __name__ == "__main__":
    main()
