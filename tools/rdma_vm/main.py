"""What happens: options, packages, image, guests, exit code."""

import os
import signal
import sys

from . import image, options, packages
from .errors import GuestError, NotStarted, OutOfTime, Refusal
from .session import BOOT_S_MAX, Session
from .terminal import Terminal

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    def __init__(self, number):
        self.code = 128 + number
        super().__init__(f"ended by {signal.Signals(number).name}")


def interrupt(number, _):
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    raise Interrupted(number)


def main(argv):
    asked = options.parse(argv)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    try:
        return run(asked)
    except (Refusal, GuestError, OutOfTime, Interrupted) as error:
        packages.say(str(error))
        return error.code
    except BrokenPipeError:
        # Nobody reads what the command writes: as if it had been told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def run(asked):
    packages.install_missing()
    built = image.find_image(asked.cache.absolute() if asked.cache else image.default_cache(os.environ))
    if asked.mode == "setup":
        print(built)
        return 0
    terminal = Terminal() if asked.mode == "shell" else None
    environment = os.environ | (terminal.size() if terminal else {})
    *first, last = BOOT_S_MAX
    for boot_s_max in first:
        try:
            return run_once(asked, built, environment, terminal, boot_s_max)
        except NotStarted as error:
            packages.say(f"{error}\nrdma-vm: starting again: no command had begun")
    return run_once(asked, built, environment, terminal, last)


def run_once(asked, built, environment, terminal, boot_s_max):
    session = Session(asked, built, environment, os.getcwd(), terminal, boot_s_max)
    try:
        return session.run()
    finally:
        session.end()
