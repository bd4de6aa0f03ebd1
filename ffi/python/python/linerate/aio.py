"""Operations in asyncio: `await operation`."""

from __future__ import annotations

import asyncio
import itertools
import weakref

from linerate._linerate import Communicator, CompletionQueue, Operation, SparseStep


class _Told:
    """The queue of a communicator in one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, communicator: Communicator) -> None:
        self.queue = communicator.completion_queue()
        self.descriptor = self.queue.fileno()
        self.loop = loop
        self.numbers = itertools.count()
        self.waiting: dict[int, asyncio.Future[None]] = {}

    def add(self, operation: Operation | SparseStep) -> asyncio.Future[None]:
        number = next(self.numbers)
        future = self.loop.create_future()
        operation.notify(self.queue, number)
        if not self.waiting:
            self.loop.add_reader(self.descriptor, self.read)
        self.waiting[number] = future
        return future

    def read(self) -> None:
        for number, _, _ in self.queue.wait(0):
            future = self.waiting.pop(number)
            if not future.done():
                future.set_result(None)
        if not self.waiting:
            self.loop.remove_reader(self.descriptor)


_QUEUES: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[int, tuple[Communicator, _Told]]] = (
    weakref.WeakKeyDictionary()
)


async def wait(operation: Operation | SparseStep) -> bool:
    """Waits for the end of an operation or step while the event loop goes on, and raises its error."""
    if operation.done():
        return True
    loop = asyncio.get_running_loop()
    communicator = operation.communicator
    queues = _QUEUES.setdefault(loop, {})
    _, told = queues.setdefault(id(communicator), (communicator, _Told(loop, communicator)))
    await told.add(operation)
    return operation.wait()
