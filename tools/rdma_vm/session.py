"""Runs guests: starts qemu, talks to their init, passes output on, ends all of it.

Everything between us and a guest goes over socket pairs that it inherits: there is no port, no path and no file, so two runs
never meet and nothing can be left behind. Read first: start.sh, the other side.
"""

import ctypes
import os
import secrets
import select
import selectors
import signal
import socket
import subprocess
import time

from . import guest, machine
from .errors import GuestError, NotStarted, OutOfTime
from .packages import say
from .terminal import DESCRIPTOR

CHANNELS = ("console", "control", "output", "errors")
# A start is given up after the first, for guests that hang (seen once; in 210 starts in a row not), and then after the second, for
# machines that are busy; 7 to 13 s are usual.
BOOT_S_MAX = (60, 180)
CONSOLE_KEPT = 64 << 10
# The kernel's words.
OUT_OF_MEMORY = b"Out of memory"
CONSOLE_LINES_SHOWN = 15
READ_BYTES = 256 << 10
PR_SET_PDEATHSIG = 1
# Loaded here: between fork and exec little may be done.
LIBC = ctypes.CDLL(None)


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
        channels = (*CHANNELS, "terminal") if options.mode == "shell" else CHANNELS
        ours, theirs = zip(*(socket.socketpair() for _ in channels))
        self.sockets = dict(zip(channels, ours))
        inherited = [end.fileno() for end in (*theirs, *cables)]
        descriptors = dict(zip(channels, inherited))
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
        """Short, and the guest waits for it."""
        self.send("control", line)

    def send(self, name, data):
        end = self.sockets[name]
        try:
            end.setblocking(True)
            end.sendall(data)
            end.setblocking(False)
        except ConnectionError as error:
            raise self.loss(f"{self.name} ended before its command did") from error

    def loss(self, text):
        """The error for a guest that broke down."""
        return GuestError(text) if self.state == "runs" else NotStarted(text)

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

    def rest(self):
        """The end of a stream that was broken off."""
        rest, self.pending, self.is_ended = self.pending, b"", True
        return rest

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
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Session:
    def __init__(self, options, image, environment, directory, terminal, boot_s_max):
        self.options = options
        self.boot_s_max = boot_s_max
        self.terminal = terminal
        self.log = open(options.console, "wb") if options.console else None
        self.selector = selectors.DefaultSelector()
        self.deadline = time.monotonic() + boot_s_max
        self.first_code = 0
        self.cuts = []
        # No text ends with the first of its bytes, so that nothing is held back in vain.
        token = "\x01" + secrets.token_hex(16)
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
        self.report()
        return self.first_code

    def report(self):
        """What the command cannot know of its own run."""
        for each in self.guests:
            if OUT_OF_MEMORY in each.console:
                say(f"{each.name} ran out of memory and killed processes: raise --memory, now {self.options.memory_mib}M")
        never = len(self.options.cuts) - sum(line.endswith("down") for line in self.cuts)
        if never:
            say(f"{never} of {len(self.options.cuts)} --cut never came: the command ended before")

    def complain_of_time(self):
        slow = " and ".join(each.name for each in self.guests if not each.is_done())
        if any(each.state == "boots" for each in self.guests):
            raise NotStarted(f"{slow} did not start in {self.boot_s_max} s{self.last_of_consoles()}")
        raise OutOfTime(f"the command still ran on {slow} after {self.options.timeout_s:g} s; --timeout sets how long it may")

    def handle(self, each, name, end):
        if name == "keys":
            each.send("terminal", os.read(end, READ_BYTES))
            return
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
        elif name == "terminal":
            write_all(1, data)
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
        for each in self.guests:
            each.tell(b"go\n")
        if self.terminal:
            self.terminal.make_raw()
            self.selector.register(DESCRIPTOR, selectors.EVENT_READ, (self.guests[0], "keys"))

    def handle_loss(self, each):
        """A channel ended: so did qemu."""
        each.process.wait()
        said = each.process.stderr.read().decode(errors="replace").strip()
        raise each.loss(f"{each.name} ended before its command did{self.last_of_consoles()}" + (f"\nqemu: {said}" if said else ""))

    def last_of_consoles(self):
        text = ""
        for each in self.guests:
            lines = each.console.decode(errors="replace").split("\n")[-CONSOLE_LINES_SHOWN:]
            lines = [line.strip() for line in lines if line.strip()]
            text += "".join(f"\n  {each.name}'s console: {line}" for line in lines)
            if OUT_OF_MEMORY in each.console:
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
            say(text)

    def end(self):
        for each in self.guests:
            each.end()
        if self.terminal:
            self.terminal.restore()
        for each in self.guests:
            for name, output in each.output.items():
                self.pass_on(each, name, output.rest())
        if self.log:
            self.log.close()


def write_all(descriptor, data):
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            # Somebody else's choice for what we share.
            select.select([], [descriptor], [])
