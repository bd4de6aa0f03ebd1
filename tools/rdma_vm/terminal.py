"""The user's terminal, for `shell`: its bytes go to the guest's terminal as they are typed."""

import os
import termios
import tty

from .errors import Refusal

DESCRIPTOR = 0


class Terminal:
    """Raw from here to `restore`: the guest's terminal does the echo, and Ctrl-C is the guest's."""

    def __init__(self):
        if not os.isatty(0) or not os.isatty(1):
            raise Refusal("shell needs a terminal on standard input and output; without one: run -- CMD")
        self.before = termios.tcgetattr(DESCRIPTOR)

    def size(self):
        columns, lines = os.get_terminal_size(DESCRIPTOR)
        return {"LINES": str(lines), "COLUMNS": str(columns)}

    def make_raw(self):
        tty.setraw(DESCRIPTOR)

    def restore(self):
        termios.tcsetattr(DESCRIPTOR, termios.TCSADRAIN, self.before)
