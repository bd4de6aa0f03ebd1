"""Process groups of torch over communicators of linerate: how they are made and ended."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import linerate
import torch
import torch.distributed as dist
from linerate.torch.calls import Calls, State
from linerate.torch.detail import Record, is_wanted
from linerate.torch.notifier import Notifier
from linerate.torch.tensors import HAS_BACKEND
from torch._C import _distributed_c10d as c10d


class _Exchange:
    """torch's Store as the exchange by which ranks meet."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def put(self, key: str, value: bytes, limit: float) -> None:
        self._store.set(key, value)

    def get(self, key: str, limit: float) -> bytes | None:
        begun = time.monotonic()
        try:
            self._store.wait([key], timedelta(seconds=max(limit, 0.001)))
        except RuntimeError:
            # All that the stores of all versions have in common: it took as long as it may.
            if time.monotonic() - begun < 0.9 * limit:
                raise
            return None
        return bytes(self._store.get(key))


class _World:
    """The default group, of which other groups are siblings."""

    # A thread that holds it may be the one that collects a group.
    lock = threading.RLock()
    state: State | None = None


def _end(state: State) -> None:
    """The end of a group, by destroy_process_group() or because nobody holds it."""
    with _World.lock:
        if _World.state is state:
            _World.state = None
    state.notifier.leave(state.communicator)
    state.communicator.close()
    state.flags.clear()
    state.works.clear()


def _held_by(made: Any, state: State) -> Any:
    """Has the group end with this object, which is all that a caller holds of it."""
    state.end = weakref.finalize(made, _end, state)
    return made


def create(options: Any, group_options: Any = None) -> Any:
    """Makes a group of torch's description of it."""
    rank, size, members = options.group_rank, options.group_size, list(options.global_ranks_in_group)
    state = _join(options.store, rank, size, options.timeout, members)
    if not members:
        with _World.lock:
            _World.state = state
    # A group whose devices have backends of different names keeps its own object, and takes a backend.
    has_others = HAS_BACKEND and _has_other_backends(options)
    made: Any = Backend(state, rank, size) if has_others else ProcessGroup(state, rank, size)
    return _held_by(made, state)


def _join(store: Any, rank: int, size: int, timeout: timedelta, members: list[int]) -> State:
    """Meets the other members of a group, by their ranks in the default group; none: it is that."""
    limit = max(timeout.total_seconds(), 0.001)
    settings: dict[str, str | None] = {"LINERATE_TIMEOUT": str(limit)}
    if dist.get_debug_level() != dist.DebugLevel.OFF:
        settings["LINERATE_DEBUG"] = "info"
    exchange = _Exchange(store)
    with _World.lock:
        world = _World.state
    if world is not None and members and not world.communicator.failure():
        communicator, notifier = world.communicator.sibling(members, "linerate", exchange), world.notifier
        communicator.set_timeout(limit)
    else:
        communicator = linerate.Communicator.join_by(rank, size, "linerate", exchange, settings)
        notifier = Notifier(communicator)
    notifier.join()
    # torch 1.13 to 2.6 keep only the base part of a Work in C++, whose wait never ends without
    # Python's part.
    state = State(communicator, notifier, limit, not HAS_BACKEND)
    state.store, state.members = store, members or list(range(size))
    if is_wanted():
        state.record = Record(store, rank, size, lambda: state.timeout)
    return state


def _split(parent: State, rank: int, ranks: list[int], timeout: timedelta | None, store: Any) -> State:
    """The group of these ranks of a group."""
    members = [parent.members[each] for each in ranks]
    timeout = timedelta(seconds=parent.timeout) if timeout is None else timeout
    return _join(store, ranks.index(rank), len(ranks), timeout, members)


def _has_other_backends(options: Any) -> bool:
    group = getattr(options, "process_group", None)
    return group is not None and group._get_backend_name() != "custom"


class ProcessGroup(Calls, dist.ProcessGroup):  # type: ignore[misc]
    """A group of ranks whose tensors linerate moves."""

    def __init__(self, state: State, rank: int, size: int) -> None:
        dist.ProcessGroup.__init__(self, rank, size)
        self.state = state
        self._numbers = rank, size
        if HAS_BACKEND:
            # Functional collectives, DTensor and FSDP2 ask for it; it has the group's operations.
            self._backend = Backend(state, rank, size)
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, self._backend)
            self._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)

    @property
    def communicator(self) -> linerate.Communicator:
        return self.state.communicator

    def rank(self) -> int:
        return self._numbers[0]

    def size(self) -> int:
        return self._numbers[1]

    def get_group_store(self) -> Any:
        return self.state.store

    def split_group(
        self,
        ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> ProcessGroup | None:
        """A group of some ranks of this one; None on the others. Its name is one that no other group has."""
        if self.rank() not in ranks:
            return None
        name = group_name or f"{self.state.name}:split:{','.join(map(str, ranks))}"
        state = _split(self.state, self.rank(), list(ranks), timeout, dist.PrefixStore(f"{name}/", self.state.store))
        made: ProcessGroup = _held_by(ProcessGroup(state, state.communicator.rank, state.communicator.ranks), state)
        made._set_group_name(name)
        made._set_group_desc(group_desc or "undefined")
        return made

    def _set_group_name(self, name: str) -> None:
        self.state.name = name
        super()._set_group_name(name)

    def _set_group_desc(self, description: str) -> None:
        self.state.description = description
        super()._set_group_desc(description)

    if not HAS_BACKEND:
        # C++ asks a backend for them.

        @property
        def group_name(self) -> str:
            return self.state.name

        @property
        def group_desc(self) -> str:
            return self.state.description


if HAS_BACKEND:

    class Backend(Calls, c10d.Backend):  # type: ignore[misc]
        """The backend of a group for one device."""

        def __init__(self, state: State, rank: int, size: int) -> None:
            c10d.Backend.__init__(self, rank, size)
            self.state = state
            self._numbers = rank, size
            self._options = c10d.Backend.Options("linerate", timedelta(seconds=state.timeout))

        def rank(self) -> int:
            return self._numbers[0]

        def size(self) -> int:
            return self._numbers[1]

        def split(self, store: Any, ranks: Sequence[int], opts: Any) -> Backend:
            """The backend of some ranks of this one's group."""
            state = _split(self.state, self.rank(), list(ranks), getattr(opts, "_timeout", None), store)
            made: Backend = _held_by(Backend(state, state.communicator.rank, state.communicator.ranks), state)
            return made

        # A property of torch's own calls the one written in Python, and would call itself for ever.

        @property
        def options(self) -> Any:
            return self._options

        @property
        def supports_abort_hooks(self) -> bool:
            return False

        @property
        def supports_coalescing(self) -> bool:
            return False

        @property
        def supports_completion_hooks(self) -> bool:
            return False

        @property
        def supports_reconfigure(self) -> bool:
            return False

        @property
        def supports_shrinking(self) -> bool:
            return False

        @property
        def supports_splitting(self) -> bool:
            return True

        @property
        def supports_tensor_alloc(self) -> bool:
            return False

        @property
        def supports_window(self) -> bool:
            return False

        def _supports_time_estimate(self) -> bool:
            return False
