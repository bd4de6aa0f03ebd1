"""What TORCH_DISTRIBUTED_DEBUG=DETAIL adds to a mismatch: the calls of all ranks, with the Python lines that made them."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import linerate
import torch

# Calls that are remembered.
CALLS_KEPT = 64
# How long a rank waits for the calls of the others after a mismatch.
WAIT_SECONDS = 5.0
_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_TORCH_FOLDER = os.path.dirname(os.path.abspath(torch.__file__))
_REDUCING = ("all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


class Call(NamedTuple):
    """A call of one rank. Those of all ranks with one number must have one key; a message has no number of its own."""

    number: int
    name: str
    key: str
    text: str
    line: str


def is_wanted() -> bool:
    return os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF").upper() == "DETAIL"


class Record:
    """The last calls of a rank in a group, and those of the other ranks after a mismatch."""

    def __init__(self, store: Any, rank: int, size: int, limit: Callable[[], float]) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._limit = limit
        self._lock = threading.Lock()
        self._calls: deque[Call] = deque(maxlen=CALLS_KEPT)
        self._collectives = 0
        # What all ranks have called at the mismatch, once it is known.
        self._told: str | None = None
        self._explaining = threading.Lock()

    def note(self, name: str, tensors: Sequence[Any], inputs: Sequence[Any], op: str, root: int, tag: int) -> None:
        """Remembers a call that is about to start."""
        is_message = name in ("send", "recv")
        ours, given = _flat(tensors), _flat(inputs)
        parts, key = [name], [name]
        if name in _REDUCING:
            parts.append(op)
            key.append(op)
        if name in _ROOTED:
            parts.append(f"root {root}")
            key.append(f"root {root}")
        if is_message:
            parts.append(f"{'to' if name == 'send' else 'from'} {'any' if root < 0 else root}, tag {tag}")
        parts.append(_shapes(given or ours))
        key += sorted({str(one.dtype) for one in ours + given})
        if name in ("all_reduce", "all_reduce_coalesced", "broadcast", "reduce"):
            key += [str(one.numel()) for one in ours]
        with self._lock:
            if not is_message:
                self._collectives += 1
            self._calls.append(Call(-1 if is_message else self._collectives, name, " ".join(key), " ".join(parts), _line()))

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
    lines = []
    for rank in range(size):
        if rank not in calls:
            lines.append(f"rank {rank}: it has not told its call")
            continue
        shown = [call for call in calls[rank] if call.number == number] if number is not None else calls[rank][-1:]
        if not shown:
            lines.append(f"rank {rank}: no call {number} yet" if number is not None else f"rank {rank}: no call yet")
        for call in shown:
            which = "its last call" if number is None else f"call {number}"
            lines.append(f"rank {rank}: {which}, {call.text}, at {call.line}")
    return "".join(f"\n  {line}" for line in lines)


def _first_difference(calls: dict[int, list[Call]]) -> int | None:
    """The number of the first collective that is not the same on all ranks that have called it."""
    keys: dict[int, set[str]] = {}
    for each in calls.values():
        for call in each:
            if call.number >= 0:
                keys.setdefault(call.number, set()).add(call.key)
    return min((number for number, its in keys.items() if len(its) > 1), default=None)


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
        if not name.startswith((_OUR_FOLDER, _TORCH_FOLDER)) and not frame.f_code.co_filename.startswith("<"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "a thread of torch that no Python line has started"
