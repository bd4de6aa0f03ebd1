"""iperf3 over the loopback interface, one way: the time of one write of SIZE bytes, with STREAMS connections together.

usage: iperf3.py IPERF3 STREAMS SIZE
prints: iperf3 STREAMS SIZE US
"""

import json
import socket
import subprocess
import sys

SECONDS = "2"
LIMIT_S = 60


def free_port():
    """iperf3 takes no port 0. Somebody else may take this one first; then the server ends and says so."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def main():
    program, streams, size = sys.argv[1:]
    port = free_port()
    where = ["--bind", "127.0.0.1", "--port", port]
    server = subprocess.Popen([program, "--server", "--one-off", "--forceflush", *where], stdout=subprocess.PIPE, text=True)
    try:
        if not any("listening" in line for line in server.stdout):
            sys.exit(f"iperf3 does not listen on port {port}")
        client = [program, "--client", "127.0.0.1", "--port", port, "--parallel", streams, "--length", size]
        done = subprocess.run([*client, "--time", SECONDS, "--json"], capture_output=True, text=True, timeout=LIMIT_S)
        document = json.loads(done.stdout)
        if "error" in document:
            sys.exit(f"iperf3: {document['error']}")
        bytes_per_second = document["end"]["sum_received"]["bits_per_second"] / 8
        print("iperf3", streams, size, int(size) / bytes_per_second * 1e6)
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
