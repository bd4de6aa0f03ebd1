"""Exit codes, and the errors that carry them."""

# The guest's command chooses its own; these are ours.
USAGE = 2
GUEST = 3
TIMEOUT = 124


class Refusal(Exception):
    """Something that the user can change: a bad option, a missing package. The text says what to do."""

    code = USAGE


class GuestError(Exception):
    """The guest did not start, or broke down under its command."""

    code = GUEST


class NotStarted(GuestError):
    """No command has begun: the same may be tried with new guests."""


class OutOfTime(Exception):
    """The command took longer than --timeout."""

    code = TIMEOUT
