"""Operations as torch's Work, and the thread that completes its futures."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import linerate
import torch
from torch._C._distributed_c10d import Work as BaseWork

_NO_LIMIT = timedelta(0)


class Notifier:
    """Calls back when operations of a communicator have ended, on a thread of its own."""

    def __init__(self, communicator: linerate.Communicator) -> None:
        self._queue = communicator.completion_queue()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Callable[[], None]] = {}
        self._thread: threading.Thread | None = None
        self._is_over = False

    def add(self, operation: linerate.Operation, then: Callable[[], None]) -> None:
        with self._lock:
            number = next(self._numbers)
            operation.notify(self._queue, number)
            self._waiting[number] = then
            if self._thread is None:
                # From now on a thread of the library moves the operations.
                self._queue.fileno()
                self._thread = threading.Thread(target=self._run, name="linerate-futures", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._is_over:
            for number, _, _ in self._queue.wait(1.0):
                with self._lock:
                    then = self._waiting.pop(number)
                then()

    def close(self) -> None:
        self._is_over = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._queue.close()


class Work(BaseWork):  # type: ignore[misc]
    """An operation under way, or one that had nothing to do."""

    def __init__(
        self,
        operation: linerate.Operation | None,
        tensors: Sequence[Any],
        notifier: Notifier,
        after: Callable[[], None] | None,
        kept: dict[int, Work],
    ) -> None:
        super().__init__()
        self._kept = kept
        self._operation = operation
        self._tensors = tensors
        self._notifier = notifier
        self._after = after
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None

    def _finish(self) -> None:
        """Brings results to where the caller wants them, once."""
        with self._lock:
            after, self._after = self._after, None
            if after is not None:
                after()

    def wait(self, timeout: timedelta = _NO_LIMIT) -> bool:
        if self._operation is not None:
            limit = timeout.total_seconds()
            try:
                has_ended = self._operation.wait(limit if limit > 0 else None)
            except linerate.Error:
                self._kept.pop(id(self), None)
                raise
            if not has_ended:
                raise linerate.Timeout(f"an operation has not ended after {limit} s; it goes on")
        self._finish()
        self._kept.pop(id(self), None)
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        try:
            return self._operation is None or self._operation.done()
        except linerate.Error:
            return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> linerate.Error | None:
        return None if self._operation is None else self._operation.exception()

    def result(self) -> Sequence[Any]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        source = None if self._operation is None else self._operation.source
        return -1 if source is None else source

    def _source_rank(self) -> int:
        return self.source_rank()

    def get_future(self) -> torch.futures.Future[Any]:
        with self._lock:
            if self._future is not None:
                return self._future
            future = self._future = torch.futures.Future()

        def complete() -> None:
            try:
                self.wait()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(self._tensors)

        if self._operation is None or self.is_completed():
            complete()
        else:
            self._notifier.add(self._operation, complete)
        return future
