"""Models whose tensors torch has sharded over processes (FSDP2, `fully_shard`): whole, and without hooks, for a while.

Curvature calls a model as often as it likes, and differently in each process, which hooks that gather weights would not bear.
So weights are gathered once, every process adds up its share of the data, and all of them have the totals.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import torch
from torch import Tensor, distributed, nn

from symbayes.data.source import DataSource, TensorSource
from symbayes.processes import ALONE, Processes, all_processes

#: Where a module has hooks around its forward pass, and where FSDP2 and tensor parallelism define theirs.
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_FSDP, _TENSOR_PARALLEL = "torch.distributed.fsdp", "torch.distributed.tensor"


@contextmanager
def gathered(model: nn.Module, data: DataSource | None = None, *alike: nn.Module) -> Iterator[Processes]:
    """A context in which a model that is sharded over processes has whole tensors, and no hooks that shard them.

    All processes enter it together, and leave it together; afterwards the model is sharded as before. Weights are only lent:
    what is changed in them would be lost. A model that is not sharded stays as it is, and so do its data.

    Args:
        model: As `fully_shard` (FSDP2) made it.
        data: To be shared out in the context: sums over them are those of all processes. The same in all of them.
        alike: What else must have the same numbers in all processes, such as a prior.

    Yields:
        The processes that have the model in common; this one alone where it is not sharded.

    Raises:
        TypeError: If tensors are sharded over some of the processes only, or the model has hooks for sharded tensors.
        ValueError: If data have an order of their own.
        RuntimeError: If processes have different numbers, or weights were changed.
    """
    if not _is_sharded(model):
        yield ALONE
        return
    processes = all_processes()
    with ExitStack() as during:
        lent = _lend(model, during)
        if data is not None:
            _share(data, processes, during)
        parts = {type(part).__name__: part for part in (model, *alike)}
        own = {f"{name!r} of {of}": _print(value) for of, part in parts.items() for name, value in _own(part, lent)}
        processes.refuse_unlike({**own, **({} if data is None else {"data": _described(data)})})
        before = {name: value._version for name, value in lent.items()}
        yield processes
        for name, value in lent.items():
            if value._version != before[name]:
                raise RuntimeError(
                    f"Weights of a sharded model are only lent while they are gathered; {name!r} was changed, which is lost. "
                    "Change weights outside, or load this state_dict() into a network of your own."
                )


def refuse_sharded(model: nn.Module) -> None:
    """Refuse a model whose tensors are sharded over processes: calling it is for all of them together.

    Raises:
        TypeError: If it is one.
    """
    if _is_sharded(model):
        raise TypeError(
            f"The model must have whole tensors; this {type(model).__name__} is sharded over processes. sb.laplace_evidence "
            "and sb.evidence_gradient gather them; for anything else use `with symbayes.sharded.gathered(model):`. sb.fit "
            "shares data out itself: give it the network before fully_shard."
        )


def _is_sharded(model: nn.Module) -> bool:
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule  # slow to import
    from torch.distributed.tensor import DTensor

    # Between forward passes FSDP2 may leave tensors whole.
    return any(isinstance(module, FSDPModule) for module in model.modules()) or any(
        isinstance(value, DTensor) for value in model.parameters()
    )


def _lend(model: nn.Module, during: ExitStack) -> dict[str, nn.Parameter]:
    """Whole tensors by name, which the model has for a while in place of its own."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    modules = dict(model.named_modules())
    for name, module in modules.items():
        if isinstance(module, FSDPModule):
            module.reshard()  # whole tensors may be older than their shards
        _refuse_parallel(name, module)
    lent: dict[str, nn.Parameter] = {}
    of: dict[int, nn.Parameter] = {}
    for name, module in modules.items():
        for own, value in list(module._parameters.items()):
            if isinstance(value, DTensor):
                full = f"{name}.{own}".removeprefix(".")
                _refuse_some(full, value.device_mesh.size())
                if id(value) not in of:
                    whole = cast(DTensor, value.detach()).full_tensor()
                    of[id(value)] = lent[full] = nn.Parameter(whole, value.requires_grad)
                during.callback(setattr, module, own, value)
                setattr(module, own, of[id(value)])
    for name, module in modules.items():
        if isinstance(module, FSDPModule):
            _without_hooks(name, cast(nn.Module, module), FSDPModule, during)
    return lent


def _without_hooks(name: str, module: nn.Module, wrapper: type, during: ExitStack) -> None:
    """Let a module be what it was before `fully_shard`, for a while."""
    kept = {where: OrderedDict(_hooks_of(module, where, but=_FSDP)) for where in _HOOKS}
    if len(kept["_forward_pre_hooks"]) == len(module._forward_pre_hooks):
        raise RuntimeError(
            f"Hooks of fully_shard must be known, to be left out; torch {torch.__version__} has others at {name!r}. Use one "
            "from 2.11 to 2.13."
        )
    for where, hooks in kept.items():
        during.callback(setattr, module, where, getattr(module, where))
        setattr(module, where, hooks)
    during.callback(setattr, module, "__class__", type(module))
    module.__class__ = cast(type[nn.Module], next(kind for kind in type(module).__mro__ if not issubclass(kind, wrapper)))


def _hooks_of(module: nn.Module, where: str, *, but: str) -> Iterator[tuple[int, Callable[..., Any]]]:
    """Its hooks in one place, but for those that were defined in a package."""
    for key, hook in getattr(module, where).items():
        if not str(getattr(hook, "__module__", "")).startswith(but):
            yield key, hook


def _refuse_parallel(name: str, module: nn.Module) -> None:
    for where in _HOOKS:
        if len(dict(_hooks_of(module, where, but=_TENSOR_PARALLEL))) < len(getattr(module, where)):
            raise TypeError(
                f"Models may be sharded by fully_shard (FSDP2) alone, whose tensors can be gathered; module {name!r} expects "
                "sharded tensors (parallelize_module or distribute_module). Shard it by fully_shard."
            )


def _refuse_some(name: str, count: int) -> None:
    if count != distributed.get_world_size():
        raise TypeError(
            f"A model must be sharded over all {distributed.get_world_size()} processes, which share the data out; {name!r} is "
            f"sharded over {count}. Shard it over a mesh of all of them."
        )


def _share(data: DataSource, processes: Processes, during: ExitStack) -> None:
    if not data.can_be_shared:
        raise ValueError(
            f"Data that {processes.count} processes share must come in the same order in all of them; a DataLoader has one of "
            "its own, or a part of the data. Give each process the whole Dataset, or tensors: they are shared out here."
        )
    during.callback(setattr, data, "processes", data.processes)
    data.processes = processes


def _described(data: DataSource) -> str:
    numbers = f" ({_print(data.inputs)}; {_print(data.targets)})" if isinstance(data, TensorSource) else ""
    return f"{data.size} data{numbers}"


def _own(part: nn.Module, lent: dict[str, nn.Parameter]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of which every process has its own."""
    shared = set(map(id, lent.values()))
    yield from ((name, value) for name, value in part.named_parameters() if id(value) not in shared)
    yield from part.named_buffers()


@torch.no_grad()
def _print(values: Tensor) -> str:
    """Two sums of numbers, of which one knows their order."""
    rows = values.flatten(1) if values.ndim > 1 else values.reshape(-1, 1)
    sums = rows.sum(1, dtype=torch.float64)
    places = torch.linspace(1, 2, len(sums), dtype=torch.float64, device=sums.device)
    return f"sums {float(sums.sum()):.9g} and {float(sums @ places):.9g}"
