"""Runs guests: starts qemu, talks to their init, passes output on, ends all of it.

Everything between us and a guest goes over socket pairs that it inherits: there is no port, no path and no file, so two runs
never meet and nothing can be left behind. Read first: start.sh, the other side.
"""

import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import time

from . import guest, machine
from .errors import GuestError, OutOfTime

CHANNELS = ("console", "control", "output", "errors")
# Emulated and on a busy machine; 3 s are usual.
BOOT_S_MAX = 180
CONSOLE_KEPT = 64 << 10
CONSOLE_LINES_SHOWN = 15
READ_BYTES = 256 << 10
PR_SET_PDEATHSIG = 1


class Guest:
    """One qemu process and our ends of its channels."""

    def __init__(self, options, host, image, cables, job, token):
        self.name = f"host{host}"
        self.job = job
        self.console = b""
        self.lines = b""
        self.state = "boots"
        self.code = None
        self.output = {name: Output(token) for name in ("output", "errors")}
        ours, theirs = zip(*(socket.socketpair() for _ in CHANNELS))
        self.sockets = dict(zip(CHANNELS, ours))
        inherited = [end.fileno() for end in (*theirs, *cables)]
        descriptors = dict(zip(CHANNELS, inherited))
        arguments = machine.build_arguments(options, host, image, descriptors, [end.fileno() for end in cables])
        self.process = subprocess.Popen(
            arguments,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # Ctrl-C is for us: we end it.
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        for end in theirs:
            end.close()
        for end in self.sockets.values():
            end.setblocking(False)

    def tell(self, line):
        # Short, and the guest waits for it.
        self.sockets["control"].setblocking(True)
        self.sockets["control"].sendall(line)
        self.sockets["control"].setblocking(False)

    def is_done(self):
        return self.code is not None and all(output.is_ended for output in self.output.values())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        for end in self.sockets.values():
            end.close()


class Output:
    """One stream of a guest's command, up to the token that ends it."""

    def __init__(self, token):
        self.token = token
        self.pending = b""
        self.is_ended = False

    def take(self, data):
        """What of it can be passed on now."""
        if self.is_ended:
            return b""
        self.pending += data
        at = self.pending.find(self.token)
        if at >= 0:
            taken, self.pending, self.is_ended = self.pending[:at], b"", True
            return taken
        held = held_back(self.pending, self.token)
        taken, self.pending = self.pending[: len(self.pending) - held], self.pending[len(self.pending) - held :]
        return taken


def held_back(data, token):
    """How many of the last bytes may be the beginning of the token."""
    longest = min(len(data), len(token) - 1)
    return next((length for length in range(longest, 0, -1) if data.endswith(token[:length])), 0)


class Lines:
    """Passes on whole lines, each with a label: those of two guests must not mix."""

    def __init__(self, label):
        self.label = label
        self.pending = b""

    def take(self, data):
        *whole, self.pending = (self.pending + data).split(b"\n")
        return b"".join(self.label + line + b"\n" for line in whole)

    def rest(self):
        rest, self.pending = self.pending, b""
        return self.label + rest if rest else b""


def die_with_parent():
    """In the child: ends with us even if we are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Session:
    def __init__(self, options, image, environment, directory):
        self.options = options
        self.log = open(options.console, "wb") if options.console else None
        self.selector = selectors.DefaultSelector()
        self.deadline = time.monotonic() + BOOT_S_MAX
        self.first_code = 0
        self.cuts = []
        token = secrets.token_hex(16)
        self.guests = []
        self.writers = {}
        cables = [socket.socketpair() for _ in range(options.devices if options.hosts == 2 else 0)]
        try:
            for host in range(options.hosts):
                inside = guest.build_environment(environment, options, host)
                job = guest.build_job(options, host, inside, directory, token)
                self.guests.append(Guest(options, host, image, [pair[host] for pair in cables], job, token.encode()))
        except BaseException:
            self.end()
            raise
        finally:
            for pair in cables:
                pair[0].close()
                pair[1].close()
        for each in self.guests:
            for name, end in each.sockets.items():
                self.selector.register(end, selectors.EVENT_READ, (each, name))
                label = f"{each.name}: ".encode() if options.label or name == "console" else b""
                if options.hosts == 2 or label:
                    self.writers[each, name] = Lines(label)

    def run(self):
        """The exit code of the command."""
        while not all(each.is_done() for each in self.guests):
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.complain_of_time()
            for key, _ in self.selector.select(min(left, 3600)):
                self.handle(*key.data, key.fileobj)
        return self.first_code

    def complain_of_time(self):
        slow = " and ".join(each.name for each in self.guests if not each.is_done())
        if any(each.state == "boots" for each in self.guests):
            raise GuestError(f"{slow} did not start in {BOOT_S_MAX} s{self.last_of_consoles()}")
        raise OutOfTime(f"the command still ran on {slow} after {self.options.timeout_s:g} s; --timeout sets how long it may")

    def handle(self, each, name, end):
        try:
            data = end.recv(READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self.handle_loss(each)
        if name == "control":
            each.lines += data
            *whole, each.lines = each.lines.split(b"\n")
            for line in whole:
                word, _, rest = line.decode(errors="replace").partition(" ")
                self.handle_line(each, word, rest)
        elif name == "console":
            each.console = (each.console + data)[-CONSOLE_KEPT:]
            self.show_console(self.writers[each, name].take(data))
        else:
            self.pass_on(each, name, each.output[name].take(data))

    def handle_line(self, each, word, rest):
        if word == "hello":
            each.tell(each.job)
        elif word == "ready":
            each.state = "ready"
            self.say(f"{each.name} is ready")
            if all(other.state == "ready" for other in self.guests):
                self.start()
        elif word == "cut":
            self.cuts.append(rest)
            self.say(f"{each.name}: {rest}")
        elif word == "exit":
            each.code = int(rest)
            self.say(f"{each.name}: the command ended with {rest}")
            self.first_code = self.first_code or each.code
        elif word == "fail":
            raise GuestError(f"{each.name}: {rest}{self.last_of_consoles()}")

    def start(self):
        """Lets the command begin on all at the same time."""
        self.deadline = time.monotonic() + self.options.timeout_s
        for each in self.guests:
            each.state = "runs"
            each.tell(b"go\n")

    def handle_loss(self, each):
        """A channel ended: so did qemu."""
        each.process.wait()
        said = each.process.stderr.read().decode(errors="replace").strip()
        raise GuestError(f"{each.name} ended before its command did{self.last_of_consoles()}" + (f"\nqemu: {said}" if said else ""))

    def last_of_consoles(self):
        text = ""
        for each in self.guests:
            lines = each.console.decode(errors="replace").split("\n")[-CONSOLE_LINES_SHOWN:]
            lines = [line.strip() for line in lines if line.strip()]
            text += "".join(f"\n  {each.name}'s console: {line}" for line in lines)
            if b"Out of memory" in each.console:
                text += f"\n  {each.name} ran out of memory: raise --memory"
        return text

    def pass_on(self, each, name, data):
        writer = self.writers.get((each, name))
        if writer:
            data = writer.take(data) + (writer.rest() if each.output[name].is_ended else b"")
        write_all(1 if name == "output" else 2, data)

    def show_console(self, data):
        if self.options.verbose:
            write_all(2, data)
        if self.log:
            self.log.write(data)

    def say(self, text):
        if self.options.verbose:
            print(f"rdma-vm: {text}", file=sys.stderr, flush=True)

    def end(self):
        for each in self.guests:
            each.end()
        if self.log:
            self.log.close()


def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data) :]
