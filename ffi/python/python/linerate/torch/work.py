"""Operations as torch's Work."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import linerate
import torch
from linerate.torch.detail import Record
from linerate.torch.notifier import Notifier
from torch._C._distributed_c10d import Work as BaseWork

_NO_LIMIT = timedelta(0)
# Held while the future of a Work is made. The thread may collect a group meanwhile, whose futures end.
_FUTURES = threading.RLock()


class Work(BaseWork):  # type: ignore[misc]
    """Operations under way, or one that had nothing to do."""

    # What explains a mismatch, if that is wanted.
    record: Record | None = None
    is_message = False

    def __init__(
        self,
        operations: Sequence[linerate.Operation],
        tensors: Sequence[Any],
        notifier: Notifier | None,
        after: Callable[[], None] | None,
        kept: dict[int, Work] | None,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._tensors = tensors
        self._notifier = notifier
        self._after = after
        self._kept = kept
        # What two threads that wait must not do at once.
        self._lock = None if after is None else threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        if kept is not None:
            kept[id(self)] = self

    def _finish(self) -> None:
        """Brings results to where the caller wants them, once."""
        if self._lock is not None:
            with self._lock:
                after, self._after = self._after, None
                if after is not None:
                    after()
        if self._kept is not None:
            self._let_go()

    def _let_go(self) -> None:
        if self._kept is not None:
            self._kept.pop(id(self), None)
            self._kept = None

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        limit = None if timeout is _NO_LIMIT else timeout.total_seconds()
        for operation in self._operations:
            try:
                has_ended = operation.wait(limit or None)
            except linerate.Error as error:
                self._let_go()
                if self.record is None:
                    raise
                raise self.record.explained(error) from None
            if not has_ended:
                raise linerate.Timeout(f"an operation has not ended after {limit} s; it goes on")
        self._finish()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        try:
            if not all([operation.done() for operation in self._operations]):
                return False
        except linerate.Error:
            return True
        self._finish()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> linerate.Error | None:
        errors = (operation.exception() for operation in self._operations)
        return next((error for error in errors if error is not None), None)

    def result(self) -> Sequence[Any]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        source = self._operations[0].source if self._operations else None
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[Any]:
        with _FUTURES:
            if self._future is not None:
                return self._future
            failures: list[BaseException] = []
            ended: torch.futures.Future[Any] = torch.futures.Future()

            # DDP's C++ takes the exception of set_exception() for a value; what a callback raises is an error to it.
            def outcome(_: object) -> Sequence[Any]:
                if failures:
                    raise failures[0]
                return self._tensors

            future = self._future = ended.then(outcome)

        def complete() -> None:
            try:
                if not failures:
                    self.wait()
            except BaseException as error:
                failures.append(error)
            ended.set_result(None)

        if self._notifier is None or self.is_completed():
            complete()
            return future
        left = itertools.count(1)

        def count(error: Exception | None) -> None:
            if error is not None:
                failures.append(error)
            if next(left) == len(self._operations):
                complete()

        for operation in self._operations:
            try:
                self._notifier.add(operation, count)
            except linerate.Error:
                # It has ended meanwhile, or the group has.
                count(None)
        return future
