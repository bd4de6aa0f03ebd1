"""The exceptions of linerate. Their texts say what was tried, with which values, and what to do."""

from __future__ import annotations

from collections.abc import Sequence


class Error(RuntimeError):
    """Everything that can fail.

    ranks: the ranks that the first cause names: those missing after a timeout, the one that failed,
    left, cancelled or aborted. operation: what this rank was doing, if it is known.
    """

    def __init__(
        self, text: str, ranks: Sequence[int] = (), operation: str | None = None, cause: Error | None = None
    ) -> None:
        super().__init__(text)
        self.ranks = tuple(ranks)
        self.operation = operation
        self._cause = cause

    @property
    def first_cause(self) -> Error:
        """The error that failed the communicator; of other errors, itself."""
        return self if self._cause is None else self._cause.first_cause

    def __reduce__(self) -> tuple[type[Error], tuple[str, tuple[int, ...], str | None, Error | None]]:
        return type(self), (str(self), self.ranks, self.operation, self._cause)


class InvalidArgument(Error, ValueError):
    """An argument does not exist or does not fit."""


class Timeout(Error, TimeoutError):
    """Nothing moved for the whole timeout; `ranks` are those that are missing."""


class Mismatch(Error):
    """Two ranks called different operations at one place of their programs."""


class PeerFailed(Error):
    """A peer or its link died."""


class Left(Error):
    """A peer has left in good order, and the operation needs it."""


class Cancelled(Error):
    """The operation was cancelled."""


class ReceiveCancelled(Error):
    """A receive was cancelled before it met a message; nothing else has failed."""


class Aborted(Error):
    """A rank aborted the communicator."""


class CommunicatorFailed(Error):
    """The communicator failed earlier, by `first_cause`."""


class Forked(Error):
    """The communicator belongs to the process that forked this one."""


class InUse(Error):
    """Another operation uses the memory."""


class Exhausted(Error, MemoryError):
    """Memory, descriptors or another bounded resource is used up."""


class Unavailable(Error):
    """A transport cannot be used on this machine."""


class Bootstrap(Error):
    """The ranks could not find each other."""


class SystemCallFailed(Error, OSError):
    """The operating system refused a call."""


class NotFinite(Error, ArithmeticError):
    """Values of a sparse allreduce are not finite."""


class Malformed(Error, ValueError):
    """Bytes of a peer or a file do not have the right form."""
