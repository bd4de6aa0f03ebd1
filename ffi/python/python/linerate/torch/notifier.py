"""The threads that complete the futures of operations."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import deque
from collections.abc import Callable

import linerate

# How long a thread that waits for operations does not see that it is to end.
_SLICE_SECONDS = 0.1
# A callback that takes longer has another thread take its place.
_LONG_SECONDS = 0.25
# How long the end of the last group waits for the threads, one of which a callback may hold.
_END_SECONDS = 5.0
THREADS_MAX = 64

Callback = Callable[[Exception | None], None]


class Notifier:
    """Calls back when operations of a family of communicators have ended.

    One thread waits and calls back, so that callbacks come in the order in which operations end. A callback may wait
    for a future that only a thread of this notifier can complete: another thread takes the place of the one that it
    blocks, at once if the callback has asked for a future, else after a while.
    """

    def __init__(self, communicator: linerate.Communicator) -> None:
        self._queue = communicator.completion_queue()
        self._numbers = itertools.count()
        # A thread that holds it may be the one that collects a group that nobody holds, and ends it.
        self._lock = threading.RLock()
        # The leader waits for something to do, the others for its place.
        self._changed, self._vacant = threading.Condition(self._lock), threading.Condition(self._lock)
        self._waiting: dict[int, tuple[linerate.Communicator, Callback]] = {}
        # Those of operations that have ended, which no thread has taken yet.
        self._ready: deque[Callback] = deque()
        self._threads: set[threading.Thread] = set()
        # Those of them that are still to be started.
        self._new: deque[threading.Thread] = deque()
        # The thread that waits and calls back; None: one that is idle takes its place.
        self._leader: threading.Thread | None = None
        # Threads that neither lead nor call back.
        self._idle = 0
        self._is_in_callback = False
        self._callbacks_begun = 0
        self._is_over = False
        self._groups = 0

    def join(self) -> None:
        """Counts a group that uses it."""
        with self._lock:
            self._groups += 1

    def leave(self, communicator: linerate.Communicator) -> None:
        """A group has ended: what waits for its operations gets an error. The last group ends the threads."""
        with self._lock:
            self._groups -= 1
            is_last = self._groups == 0
            cut = [number for number in list(self._waiting) if self._waiting[number][0] is communicator]
            callbacks = [self._waiting.pop(number)[1] for number in cut]
        for then in callbacks:
            then(linerate.InvalidArgument("the process group was destroyed before this operation had ended: wait for it first"))
        if is_last:
            self._close()

    def add(self, operation: linerate.Operation, then: Callback) -> None:
        """Calls `then(None)` when the operation has ended, or with an error if the group ends before."""
        with self._lock:
            if self._is_over:
                raise linerate.InvalidArgument("this process group was destroyed: do not use it any more")
            number = next(self._numbers)
            operation.notify(self._queue, number)
            self._waiting[number] = operation.communicator, then
            if not self._threads:
                # From now on a thread of the library moves the operations.
                self._queue.fileno()
                self._start()
                self._start()
            elif self._leader is threading.current_thread():
                # The callback that asks for this future may wait for it.
                self._hand_over()
            else:
                self._changed.notify()
        self._start_new()

    # Under the lock.

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="linerate-futures", daemon=True)
        self._threads.add(thread)
        self._new.append(thread)
        self._idle += 1

    def _hand_over(self) -> None:
        """Another thread waits and calls back from now on."""
        if self._idle == 0:
            if len(self._threads) >= THREADS_MAX:
                return
            self._start()
        self._leader = None
        self._vacant.notify()

    def _is_stuck(self, begun: int) -> bool:
        """Whether the callback of the leader is the one that it had begun then."""
        return self._is_in_callback and begun == self._callbacks_begun

    # Without the lock.

    def _start_new(self) -> None:
        """Starts threads, as several may do at once. One that starts may collect a group, whose end takes the lock."""
        while self._new:
            with contextlib.suppress(IndexError):
                self._new.popleft().start()

    def _run(self) -> None:
        this = threading.current_thread()
        while self._take_lead(this):
            self._lead(this)
            with self._lock:
                if self._idle > 0:
                    break
                self._idle += 1
        with self._lock:
            self._threads.discard(this)
            self._vacant.notify_all()

    def _take_lead(self, this: threading.Thread) -> bool:
        """Waits for the leader's place; False: it is to end."""
        with self._lock:
            while not self._is_over and self._leader is not None:
                begun = self._callbacks_begun
                self._vacant.wait(_LONG_SECONDS)
                if self._is_stuck(begun):
                    break
            self._idle -= 1
            if not self._is_over:
                self._leader, self._is_in_callback = this, False
            return not self._is_over

    def _lead(self, this: threading.Thread) -> None:
        """Waits and calls back until another thread does so."""
        while True:
            with self._lock:
                if self._is_over or self._leader is not this:
                    return
                self._is_in_callback = False
                if not self._ready and not self._waiting:
                    self._changed.wait()
                    continue
                then = self._ready.popleft() if self._ready else None
                if then is not None:
                    self._is_in_callback = True
                    self._callbacks_begun += 1
                    if self._idle == 0 and len(self._threads) < THREADS_MAX:
                        self._start()
            if then is not None:
                self._start_new()
                then(None)
                continue
            ended = self._queue.wait(_SLICE_SECONDS)
            with self._lock:
                callbacks = [self._waiting.pop(number, None) for number, _, _ in ended]
                self._ready.extend(callback[1] for callback in callbacks if callback is not None)

    def _close(self) -> None:
        with self._lock:
            self._is_over = True
            self._changed.notify_all()
            self._vacant.notify_all()
            own = {threading.current_thread()}
            have_ended = self._vacant.wait_for(lambda: self._threads <= own, _END_SECONDS)
        while self._ready:
            self._ready.popleft()(None)
        # A thread that still waits for the queue takes it along.
        if have_ended:
            self._queue.close()
