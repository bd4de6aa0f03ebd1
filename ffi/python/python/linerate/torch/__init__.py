"""linerate as a backend of torch.distributed: `import linerate.torch`, then `init_process_group("linerate")`.

Tensors are those of the CPU. A group meets by the Store that torch gives it; groups of a job whose default group is
linerate's are one family, so they may be waited for in any order.
"""

from __future__ import annotations

from linerate.torch import hooks
from linerate.torch.group import ProcessGroup, create
from linerate.torch.registered import empty, register

__all__ = ["ProcessGroup", "empty", "hooks", "register"]


def register_backend() -> None:
    """Tells torch of the backend `linerate`; importing this module does so, too."""
    import inspect

    from torch.distributed import Backend

    if hasattr(Backend, "LINERATE"):
        return
    named = {"devices": ["cpu"]} if "devices" in inspect.signature(Backend.register_backend).parameters else {}
    Backend.register_backend("linerate", create, extended_api=True, **named)


register_backend()
