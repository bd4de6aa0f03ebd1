"""Communication hooks of DDP: compressed, sparse and partial allreduces of gradients.

    model = DistributedDataParallel(module)
    hook = linerate.torch.hooks.sparse(model, density=0.01)

What a hook keeps from one step for the next (residuals) belongs to the names of parameters, so it stays where it
belongs when DDP builds its buckets anew. `state_dict()` and `load_state_dict()` are for checkpoints. `finish()` puts
what no step has delivered yet into the gradients, for one more step of the optimizer: before validation and saving.
"""

# torch looks at the annotations of a hook, which must be objects: no `from __future__ import annotations`.
import warnings
from collections.abc import Sequence
from typing import Any

import linerate
import torch
import torch.distributed as dist
from linerate.torch.registered import calls_of, mean_of
from linerate.torch.tensors import memory_of
from torch.nn.parallel import DistributedDataParallel


class Hook:
    """What all hooks have."""

    def __init__(self, model: DistributedDataParallel) -> None:
        self._model = model
        self._calls = calls_of(model.process_group)
        self._communicator = self._calls.state.communicator
        # Residuals by the names of parameters, but those that an object of the library keeps.
        self._kept: dict[str, torch.Tensor] = {}
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        model.register_comm_hook(None, self.run)

    def run(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The hook of torch: the mean of a bucket's gradients."""
        raise NotImplementedError

    def finish(self) -> bool:
        """Puts what no step has delivered yet into the gradients of all parameters, in place of what is there, and says
        whether the optimizer is to make a step with them. Collective, after as many steps on all ranks."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps for the next step: tensors by the names of parameters."""
        return {"hook": type(self).__name__, "residuals": {name: each.clone() for name, each in self._residuals().items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what state_dict() of the same kind of hook has given, on the same rank."""
        if state.get("hook") != type(self).__name__:
            raise linerate.InvalidArgument(f"this is the state of the hook {state.get('hook')}, not of {type(self).__name__}")
        known = set(self._names.values())
        for name in state["residuals"]:
            if name not in known:
                raise linerate.InvalidArgument(f"the state has a parameter {name}, which the model does not have")
        self._load({name: each.clone() for name, each in state["residuals"].items()})

    def _residuals(self) -> dict[str, torch.Tensor]:
        return self._kept

    def _load(self, residuals: dict[str, torch.Tensor]) -> None:
        self._kept = residuals

    def _parts(self, bucket: dist.GradBucket) -> list[tuple[str, torch.Tensor]]:
        """The names and the gradients of a bucket, which lie in its buffer one after the other."""
        return [(self._names[id(one)], gradient) for one, gradient in zip(bucket.parameters(), bucket.gradients())]

    def _means(self) -> dict[str, torch.Tensor]:
        """The means of all residuals that no library object keeps, which are gone then."""
        kept, self._kept = self._kept, {}
        for name in sorted(kept):
            mean_of(self._calls, kept[name]).wait()
        return kept

    def _deliver(self, results: dict[str, torch.Tensor]) -> bool:
        """Makes results the gradients, if there are any."""
        if not results:
            return False
        for name, parameter in self._model.module.named_parameters():
            if parameter.requires_grad:
                result = results.get(name)
                parameter.grad = torch.zeros_like(parameter) if result is None else result.view_as(parameter).to(parameter)
        return True


class _Compressed(Hook):
    """Gradients travel with two bytes an element; what rounding takes away is added to the next step's."""

    _dtype: torch.dtype

    def run(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if not buffer.is_floating_point() or buffer.element_size() <= 2:
            return mean_of(self._calls, buffer).then(lambda done: buffer)
        for name, gradient in self._parts(bucket):
            if name in self._kept:
                gradient.add_(self._kept[name].view_as(gradient))
        short = buffer.div(self._calls.size()).to(self._dtype)
        # What this rank's part has lost; infinite values, as a scaler's, are no loss.
        buffer.sub_(short.to(buffer.dtype).mul_(self._calls.size())).nan_to_num_(0.0, 0.0, 0.0)
        for name, gradient in self._parts(bucket):
            self._kept[name] = gradient.detach().clone()
        future: Any = self._calls.allreduce(short).get_future()
        return future.then(lambda done: buffer.copy_(short))

    def finish(self) -> bool:
        return self._deliver(self._means())

    def scale_residuals(self, factor: float) -> None:
        for each in self._kept.values():
            each.mul_(factor)


class bf16(_Compressed):
    """Gradients travel as bf16, with error feedback."""

    _dtype = torch.bfloat16


class fp16(_Compressed):
    """Gradients travel as fp16, with error feedback."""

    _dtype = torch.float16


class sparse(Hook):
    """Gradients travel as their largest entries; the others are kept, and added to those of the next step.

    options: those of Communicator.sparse(), such as density=0.01. Buckets of other types than f32 travel as they are.
    """

    def __init__(self, model: DistributedDataParallel, **options: Any) -> None:
        self._options = {"density": 0.01, **options} if "k" not in options else options
        # By the names of a bucket's parameters, in their order.
        self._engines: dict[tuple[str, ...], linerate.SparseAllreduce] = {}
        # The report of each bucket's latest step.
        self.reports: dict[int, linerate.SparseReport] = {}
        super().__init__(model)

    def run(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        if buffer.dtype != torch.float32:
            return mean_of(self._calls, buffer).then(lambda done: buffer)
        parts = self._parts(bucket)
        engine = self._engine(tuple(name for name, _ in parts), [(name, part.numel()) for name, part in parts])
        self.reports[bucket.index()] = engine.all_reduce([memory_of(part) for _, part in parts])
        return _done(buffer)

    def _engine(self, names: tuple[str, ...], tensors: Sequence[tuple[str, int]]) -> linerate.SparseAllreduce:
        engine = self._engines.get(names)
        if engine is not None:
            return engine
        # DDP has built its buckets anew: residuals go with the parameters.
        for other in [each for each in self._engines if set(each) & set(names)]:
            self._kept.update(self._residuals_of(other))
            self._engines.pop(other).close()
        engine = self._engines[names] = self._communicator.sparse(list(tensors), is_average=True, **self._options)
        for index, name in enumerate(names):
            if name in self._kept:
                engine.write_residual(memory_of(self._kept.pop(name).contiguous()), index)
        return engine

    def finish(self) -> bool:
        # What was loaded, and no step has taken yet.
        results = self._means()
        for names, engine in self._engines.items():
            sizes = dict(engine.tensors)
            outs = {name: torch.zeros(sizes[name]) for name in names}
            engine.flush_residual([memory_of(each) for each in outs.values()])
            results.update(outs)
        return self._deliver(results)

    def scale_residuals(self, factor: float) -> None:
        """Multiplies what is kept: where a GradScaler has changed its scale, by the new scale over the old."""
        for engine in self._engines.values():
            engine.scale_residuals(factor)
        for each in self._kept.values():
            each.mul_(factor)

    def _residuals_of(self, names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        engine = self._engines[names]
        kept = {name: torch.zeros(count) for name, count in engine.tensors}
        for index, each in enumerate(kept.values()):
            engine.read_residual(memory_of(each), index)
        return kept

    def _residuals(self) -> dict[str, torch.Tensor]:
        every = dict(self._kept)
        for names in self._engines:
            every.update(self._residuals_of(names))
        return every

    def _load(self, residuals: dict[str, torch.Tensor]) -> None:
        self._kept = residuals
        for names, engine in self._engines.items():
            for index, (name, count) in enumerate(engine.tensors):
                engine.write_residual(memory_of(self._kept.pop(name, torch.zeros(count)).contiguous()), index)


class partial(Hook):
    """A step does not wait for slow ranks; a gradient that is late is part of a later step.

    options: those of Communicator.partial(), such as policy='majority'. Buffers that DDP broadcasts and a search for
    unused parameters wait for all ranks in each step: give broadcast_buffers=False, and not find_unused_parameters.
    """

    def __init__(self, model: DistributedDataParallel, **options: Any) -> None:
        self._options = options
        self._engines: dict[tuple[str, ...], linerate.PartialAllreduce] = {}
        # The report of each bucket's latest step; None: it had no result.
        self.reports: dict[int, linerate.RoundReport | None] = {}
        if model.broadcast_buffers and any(True for _ in model.module.buffers()):
            warnings.warn("DDP broadcasts buffers, which waits for all ranks in each step: give broadcast_buffers=False", stacklevel=2)
        if model.find_unused_parameters:
            warnings.warn("find_unused_parameters waits for all ranks in each step", stacklevel=2)
        super().__init__(model)

    def run(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, parts = bucket.buffer(), self._parts(bucket)
        engine = self._engine(tuple(name for name, _ in parts), buffer)
        report = self.reports[bucket.index()] = engine.exchange(memory_of(buffer))
        if report is None:
            buffer.zero_()
        for name, gradient in parts:
            if name in self._kept:
                gradient.add_(self._kept.pop(name).view_as(gradient))
        return _done(buffer)

    def _engine(self, names: tuple[str, ...], buffer: torch.Tensor) -> linerate.PartialAllreduce:
        engine = self._engines.get(names)
        if engine is None:
            for other in [each for each in self._engines if set(each) & set(names)]:
                self._end(other)
            dtype = memory_of(buffer)[2]
            engine = self._engines[names] = self._communicator.partial(buffer.numel(), dtype, **self._options)
        return engine

    def _end(self, names: tuple[str, ...]) -> None:
        """Ends the rounds of a bucket; what they had not delivered is left."""
        engine = self._engines.pop(names)
        sizes = {name: parameter.numel() for name, parameter in self._model.module.named_parameters()}
        update = _tensor_of(engine.count, engine.dtype)
        total = torch.zeros_like(update)
        engine.finish(memory_of(update), lambda report: total.add_(update))
        engine.close()
        for name, part in zip(names, total.split([sizes[name] for name in names])):
            self._kept[name] = self._kept[name] + part if name in self._kept else part.clone()

    def finish(self) -> bool:
        for names in list(self._engines):
            self._end(names)
        # Results of all ranks already, not residuals of this one.
        left, self._kept = self._kept, {}
        return self._deliver(left)

    def _residuals(self) -> dict[str, torch.Tensor]:
        if self._engines:
            raise linerate.InvalidArgument("rounds are under way: call finish() on all ranks, and step, before state_dict()")
        return self._kept


def _tensor_of(count: int, dtype: str) -> torch.Tensor:
    known = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
    return torch.zeros(count, dtype=known[dtype])


def _done(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(buffer)
    return future
