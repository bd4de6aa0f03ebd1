"""Guests that stay for several commands, for tests: a boot takes longer than most of what is tested.

Each command finds them as the first one did: what the one before left running is dead, and links, devices and shared memory are made
anew. Only files that it wrote elsewhere are still there. Where a command broke the guests or took too long the next one gets others.
"""

import os
import subprocess

from . import image, options
from .errors import GuestError, OutOfTime
from .session import Session


class Lasting:
    def __init__(self, mode, devices):
        """`run` or `pair`, and the most devices that a command may ask for. They boot for the first command."""
        self.machines = options.parse([mode, "--devices", str(devices), "--", "true"])
        self.session = None
        self.written = {}

    def run(self, *arguments):
        """What `tools/rdma-vm MODE *arguments` gives: exit code, both streams."""
        asked = options.parse([self.machines.mode, *arguments])
        assert asked.devices <= self.machines.devices, "a cable cannot be added to a machine that runs"
        self.written = {1: b"", 2: b""}
        try:
            if self.session is None:
                self.session = Session(self.machines, image.find_image(image.default_cache(os.environ)), write=self.keep)
            self.session.begin(asked, os.environ, os.getcwd())
            code = self.session.run()
        except (GuestError, OutOfTime) as error:
            self.end()
            self.keep(2, f"rdma-vm: {error}\n".encode())
            code = error.code
        streams = [self.written[descriptor].decode(errors="replace") for descriptor in (1, 2)]
        return subprocess.CompletedProcess(arguments, code, *streams)

    def end(self):
        if self.session is not None:
            self.session.end()
            self.session = None

    def keep(self, descriptor, data):
        self.written[descriptor] += data
