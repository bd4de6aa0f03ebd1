"""linerate as a backend of torch.distributed: `import linerate.torch`, then `init_process_group("linerate")`.

Tensors are those of the CPU. A group meets by the Store that torch gives it; groups of a job whose default group is
linerate's are one family, so they may be waited for in any order.
"""

from __future__ import annotations

from linerate.torch.group import ProcessGroup, create

__all__ = ["ProcessGroup"]


def _register() -> None:
    from torch.distributed import Backend

    if not hasattr(Backend, "LINERATE"):
        Backend.register_backend("linerate", create, extended_api=True)


_register()
