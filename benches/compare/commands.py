"""Commands that measure something, and how their output is read.

Every reader gives named numbers; the first name is always "us", the time that is compared. Less is better.
"""

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, replace
from typing import Callable, Optional

# A command that has not ended by then hangs: the longest one, 128 MiB over MPI on a busy machine, takes a minute.
LIMIT_S = 300


class Failed(Exception):
    """A command gave no numbers; the text says which and why."""


# Steps of a replay: the median of fewer is often a step in which another program wanted a core.
REPLAY_STEPS = 40

# How the text of a command begins that was refused as bad usage.
REFUSED = "exit code 2:"


@dataclass(frozen=True)
class Command:
    """A program with its arguments, and the reader of what it prints."""

    argv: tuple
    # What is printed as numbers; `None`: the time of the whole command is what counts.
    read: Optional[Callable]
    limit_s: int = LIMIT_S

    def run(self, tools):
        """The numbers of one run. `tools` maps the names of programs to paths."""
        argv = [tools.get(word, word) for word in self.argv]
        # The settings of whoever calls must not change what is measured.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("LINERATE_", "OMPI_MCA_"))}
        began = time.monotonic()
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, timeout=self.limit_s, env=environment, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise Failed(f"{argv[0]}: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise Failed(f"no end after {self.limit_s} s: {' '.join(argv)}") from error
        if done.returncode != 0:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            reason = next((line for line in lines if "error" in line), lines[-1] if lines else "no output")
            raise Failed(f"exit code {done.returncode}: {' '.join(argv)}: {reason}")
        if self.read is None:
            return {"us": (time.monotonic() - began) * 1e6}
        try:
            return self.read(done.stdout)
        except (ValueError, KeyError, IndexError) as error:
            raise Failed(f"{' '.join(argv)}: cannot read its output: {error!r}") from error


def read_bench(text):
    """The one result of a `linerate bench --json -` of one size."""
    document = json.loads(text)
    (result,) = document["results"]
    if result["wrong"]:
        raise ValueError(f"{result['wrong']} wrong elements")
    return {"us": result["time_us"]["p50"], "algorithm": result["algorithm"]}


def read_write_bw(text):
    """The time of one put, of the bandwidth in 1e9 bytes a second."""
    (result,) = json.loads(text)["results"]
    return {"us": result["bytes"] / result["bw"] / 1e3}


def read_replay(text):
    """The exposed time of a replay's median step, what the last flush takes by itself as a blocking call in the same run,
    and of that step's last flush the time since its last gradient was ready."""
    document = json.loads(text)
    if document["wrong"]:
        raise ValueError(f"{document['wrong']} wrong elements")
    last = max(document["flushes"], key=lambda flush: flush["end_ms"])
    return {
        "us": document["exposed_ms"] * 1e3,
        "alone_us": document["last_flush_alone_ms"] * 1e3,
        "since_ready_us": (last["end_ms"] - last["ready_ms"]) * 1e3,
    }


def read_last_number(text):
    """The last number of the last line: us of the allreduce programs and of the roofline."""
    return {"us": float(text.split()[-1])}


def read_cacheline(text):
    """Half of a round trip."""
    return {"us": read_last_number(text)["us"] / 2e3}


# No in-place form.
OUT_OF_PLACE = ("all-gatherv", "gatherv", "scatterv", "reduce-scatterv", "all-to-allv", "sendrecv", "barrier")


def protected(protection, argv):
    """With sums (`crc`) or ciphers (`tls`) over what connections carry, or with nothing."""
    settings = {None: (), "crc": ("env", "LINERATE_INTEGRITY=crc"), "tls": ("env", "LINERATE_TLS=on")}
    return settings[protection] + argv


def bench(collective, ranks, size, memory="registered", transport="auto", more=(), protection=None):
    """Our side: one size, in place where that exists, the same buffer every time, as MPI benchmarks do."""
    placement = "out-of-place" if collective in OUT_OF_PLACE else "in-place"
    argv = ("linerate", "bench", collective, "-b", str(size), "-e", str(size), "--ranks", str(ranks))
    argv += ("--memory", memory, "--transport", transport, "--placement", placement, "--no-rotate", "--json", "-")
    return Command(protected(protection, argv + tuple(more)), read_bench)


def with_prices(path, command):
    """The same, with the prices that lie in this file; `None`: with those that a user of this host has."""
    return replace(command, argv=("env", f"LINERATE_MODEL={path}", *command.argv)) if path else command


def calibrate(path):
    """Measures this host for some minutes and stores its prices."""
    return with_prices(path, Command(("linerate", "explain", "--calibrate"), None, limit_s=600))


def write_bw(size, streams, protection=None):
    """Puts over connections, from one buffer as iperf3 sends it."""
    argv = ("linerate", "perf", "write_bw", "--local", "--transport", "tcp", "-s", str(size), "-q", str(streams))
    argv += ("-D", "2", "--check", "0", "--no-rotate", "--json", "-")
    return Command(protected(protection, argv), read_write_bw)


def start(ranks, transport):
    """Ranks that come, pass a barrier and go."""
    argv = ("linerate", "bench", "barrier", "--ranks", str(ranks), "--transport", transport)
    return Command(argv + ("-n", "1", "-w", "0", "-c", "0"), None)


def iperf3(size, streams):
    """iperf3's side, over the loopback interface."""
    return Command(("python3", "iperf3_loopback", "iperf3", str(streams), str(size)), read_last_number)


def two_hosts(algorithm, size):
    """Ranks on two hosts with a slow link."""
    return Command(("python3", "two_hosts", "linerate", algorithm, str(size)), read_last_number)


def replay(model, ranks):
    """The gradients of a model, through fusion."""
    argv = ("linerate", "replay", "--trace", model, "--ranks", str(ranks), "--steps", str(REPLAY_STEPS), "--json", "-")
    return Command(argv, read_replay)


def mpi(ranks, size, transport=("-mca", "btl", "self,vader")):
    """Open MPI's side, with its own messages (ob1) unless others are asked for, and the transport asked for."""
    argv = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
    argv += () if "pml" in transport else ("-mca", "pml", "ob1")
    return Command(argv + tuple(transport) + ("-np", str(ranks), "allreduce_mpi", str(size)), read_last_number)


def mpich(ranks, size):
    """MPICH's side, over what it takes within a host by itself."""
    return Command(("mpiexec_mpich", "-n", str(ranks), "allreduce_mpich", str(size)), read_last_number)


def gloo(ranks, size):
    """Gloo's side, over the loopback interface."""
    return Command(("torch_python", "allreduce_gloo", str(ranks), str(size)), read_last_number)


def roofline(ranks, size):
    """The limit when every rank maps every buffer."""
    threads = min(ranks, len(os.sched_getaffinity(0)))
    return Command(("roofline", str(ranks), str(threads), str(size)), read_last_number)


def cacheline():
    """The limit of an exchange of a few bytes."""
    return Command(("cacheline",), read_cacheline)


def algorithms(linerate, collective):
    """The names of a collective's algorithms, from the answer to a name that none has."""
    done = subprocess.run([linerate, "bench", collective, "--algo", "?"], capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(r"it has (.*)", done.stderr)
    if not found:
        raise Failed(f"{linerate} bench {collective} --algo ?: no list of algorithms: {done.stderr.strip()}")
    return found.group(1).split()
