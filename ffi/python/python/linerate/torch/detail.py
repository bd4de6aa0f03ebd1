"""What TORCH_DISTRIBUTED_DEBUG=DETAIL adds to a mismatch: the calls of all ranks, with the Python lines that made them."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import linerate
import torch
import torch.distributed as dist

# Calls that are remembered.
CALLS_KEPT = 64
# How long a rank waits for the calls of the others after a mismatch.
WAIT_SECONDS = 5.0
# Frames of this package, of torch, and of decorators between them and the user's line.
_NOT_USERS = (os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep, os.path.dirname(os.path.abspath(torch.__file__)) + os.sep)
_WRAPPERS = ("contextlib.py", "functools.py", "threading.py", "typing_extensions.py", "warnings.py")
_REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter")
_EQUAL = ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce")
_MESSAGES = ("send", "recv")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class Call(NamedTuple):
    """A call of one rank.

    Collectives are numbered in their group: those with one number must have one key on all ranks. Messages are numbered
    by direction, peer and tag: a send and the receive with its number must have one key.
    """

    name: str
    number: int
    peer: int
    tag: int
    key: str
    text: str
    line: str


def is_wanted() -> bool:
    return bool(dist.get_debug_level() == dist.DebugLevel.DETAIL)


class Record:
    """The last calls of a rank in a group, and those of the other ranks after a mismatch."""

    def __init__(self, store: Any, rank: int, size: int, limit: Callable[[], float]) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._limit = limit
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque(maxlen=CALLS_KEPT)
        # The last numbers, by name, peer and tag of messages, and of collectives.
        self._numbers: Counter[tuple[str, int, int]] = Counter()
        # What all ranks have called at the mismatch, once it is known.
        self._told: str | None = None
        self._explaining = threading.Lock()

    def note(self, name: str, tensors: Sequence[Any], inputs: Sequence[Any], op: str, root: int, tag: int) -> None:
        """Remembers a call that is about to start."""
        ours, given = _flat(tensors), _flat(inputs)
        shapes = _shapes(given or ours)
        types = sorted({str(one.dtype) for one in ours + given})
        if name in _MESSAGES:
            where = name, root, tag
            key = f"{sum(one.numel() * one.element_size() for one in ours)} B"
            text = f"{name} {'to' if name == 'send' else 'from'} {'any' if root < 0 else root}, tag {tag}, {shapes}"
        else:
            where = "", -1, 0
            words = [name] + [op] * (name in _REDUCING) + [f"root {root}"] * (name in _ROOTED)
            counts = [str(one.numel()) for one in ours] if name in _EQUAL else []
            key, text = " ".join(words + types + counts), " ".join([*words, shapes])
        with self._lock:
            self._numbers[where] += 1
            self._calls.append(Call(name, self._numbers[where], where[1], tag, key, text, _line()))

    def explaining(self, start: Callable[..., linerate.Operation | None]) -> Callable[..., linerate.Operation | None]:
        """A call whose errors are explained."""
        def explained(**how: Any) -> linerate.Operation | None:
            try:
                return start(**how)
            except linerate.Error as error:
                raise self.explained(error) from None

        return explained

    def explained(self, error: linerate.Error) -> linerate.Error:
        """An error of this group, with the calls of all ranks if these were different calls."""
        if not isinstance(error.first_cause, linerate.Mismatch):
            return error
        with self._explaining:
            if self._told is None:
                self._told = self._ask()
        return type(error)(f"{error}{self._told}", error.ranks, error.operation, error._cause)

    def _ask(self) -> str:
        """Tells the other ranks of this one's calls, and waits for theirs."""
        with self._lock:
            own = list(self._calls)
        end = time.monotonic() + min(WAIT_SECONDS, self._limit())
        every = {self._rank: own}
        try:
            self._store.set(f"linerate/calls/{self._rank}", json.dumps(own))
            for rank in range(self._size):
                if rank != self._rank and self._has(f"linerate/calls/{rank}", end):
                    told = json.loads(self._store.get(f"linerate/calls/{rank}"))
                    every[rank] = [Call(*each) for each in told]
            # The rank that serves the store ends last.
            self._store.set(f"linerate/calls/read/{self._rank}", "")
            for rank in every:
                self._has(f"linerate/calls/read/{rank}", end)
        except RuntimeError:
            # The store has ended with the rank that served it.
            pass
        return describe(every, self._size)

    def _has(self, key: str, end: float) -> bool:
        try:
            self._store.wait([key], timedelta(seconds=max(end - time.monotonic(), 0.001)))
        except RuntimeError:
            return False
        return True


def describe(calls: dict[int, list[Call]], size: int) -> str:
    """The calls that differ, a line for each rank."""
    number = _first_difference(calls)
    messages = {} if number is not None else _first_message(calls)
    lines = []
    for rank in range(size):
        if rank not in calls:
            lines.append(f"rank {rank}: it has not told its call")
        elif number is not None:
            its = next((call for call in calls[rank] if call.name not in _MESSAGES and call.number == number), None)
            lines.append(f"rank {rank}: call {number}, {its.text}, at {its.line}" if its else f"rank {rank}: no call {number} yet")
        elif rank in messages:
            its = messages[rank]
            lines.append(f"rank {rank}: {its.text}, at {its.line}")
        elif calls[rank]:
            its = calls[rank][-1]
            lines.append(f"rank {rank}: its last call, {its.text}, at {its.line}")
        else:
            lines.append(f"rank {rank}: no call yet")
    return "".join(f"\n  {line}" for line in lines)


def _first_difference(calls: dict[int, list[Call]]) -> int | None:
    """The number of the first collective that is not the same on all ranks that have called it."""
    keys: dict[int, set[str]] = {}
    for each in calls.values():
        for call in each:
            if call.name not in _MESSAGES:
                keys.setdefault(call.number, set()).add(call.key)
    return min((number for number, its in keys.items() if len(its) > 1), default=None)


def _first_message(calls: dict[int, list[Call]]) -> dict[int, Call]:
    """The first message that is received as something else, by both ranks."""
    for rank, each in calls.items():
        for sent in each:
            for got in calls.get(sent.peer, ()) if sent.name == "send" else ():
                is_it = (got.name, got.peer, got.tag, got.number) == ("recv", rank, sent.tag, sent.number)
                if is_it and got.key != sent.key:
                    return {rank: sent, sent.peer: got}
    return {}


def _flat(tensors: Sequence[Any]) -> list[torch.Tensor]:
    flat: list[torch.Tensor] = []
    for each in tensors:
        if isinstance(each, torch.Tensor):
            flat.append(each)
        else:
            flat += _flat(each)
    return flat


def _shapes(tensors: list[torch.Tensor]) -> str:
    """Types and shapes, those of equal neighbours once."""
    shown: list[tuple[str, int]] = []
    for one in tensors:
        text = f"{str(one.dtype).removeprefix('torch.')} {tuple(one.shape)}"
        if shown and shown[-1][0] == text:
            shown[-1] = text, shown[-1][1] + 1
        else:
            shown.append((text, 1))
    return ", ".join(text if count == 1 else f"{count} x {text}" for text, count in shown) or "of no tensor"


def _line() -> str:
    """The innermost line outside of torch and of this package."""
    frame = sys._getframe(2)
    while frame is not None:
        name = os.path.abspath(frame.f_code.co_filename)
        if not name.startswith(_NOT_USERS) and os.path.exists(name) and os.path.basename(name) not in _WRAPPERS:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread of torch that no Python line has started"
