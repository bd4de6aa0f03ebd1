"""fi_pingpong of libfabric over one provider, both sides on this host: half of a round trip of SIZE bytes.

usage: fi_pingpong.py FI_PINGPONG PROVIDER SIZE ITERATIONS
prints: PROVIDER SIZE US
"""

import os
import socket
import subprocess
import sys
import time

LIMIT_S = 60


def free_port():
    """Somebody else may take it before the server does; then that ends and says so."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def pinned(core):
    """Each side has a core of its own, where there are two, as the sides of `linerate perf` have."""
    cores = sorted(os.sched_getaffinity(0))
    return lambda: os.sched_setaffinity(0, {cores[core % len(cores)]})


def main():
    program, provider, size, iterations = sys.argv[1:]
    port = free_port()
    argv = [program, "-e", "rdm", "-p", provider, "-S", size, "-I", iterations]
    server = subprocess.Popen([*argv, "-B", port], stdout=subprocess.DEVNULL, preexec_fn=pinned(0))
    try:
        time.sleep(0.5)
        client = [*argv, "-P", port, "127.0.0.1"]
        done = subprocess.run(client, capture_output=True, text=True, timeout=LIMIT_S, preexec_fn=pinned(1))
        if done.returncode != 0:
            sys.exit(f"fi_pingpong over {provider}: {done.stderr.strip() or done.stdout.strip()}")
        # bytes, sent, acknowledged, total, time, MB/sec, usec/xfer, Mxfers/sec
        print(provider, size, done.stdout.strip().splitlines()[-1].split()[6])
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
