"""Training by all processes that there are: what they must have in common, and norms over whole batches."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from symbayes.adapters import replaced
from symbayes.processes import ALONE, all_processes, sum_over_processes
from symbayes.training.checkpoint import describe
from symbayes.training.record import Record
from symbayes.training.trainer import S, Trainer


@contextmanager
def sharing(trainer: Trainer[Any], generator: Generator) -> Iterator[None]:
    """A context in which all processes there are train together, each on its share of every batch, from the same numbers.

    Afterwards each is for itself again: what is asked for then may be asked for in one of them alone.

    Args:
        trainer: What trains; the numbers of its problem become those of the first process.
        generator: From which it draws.

    Raises:
        TypeError: If the model is wrapped.
        ValueError: If data cannot be shared out, or a batch norm would see too small a batch.
        RuntimeError: If models, data, settings or seeds differ.
    """
    problem, processes = trainer.problem, all_processes()
    if processes.count == 1:
        yield
        return
    _refuse(trainer, processes.count, processes.fewest)
    processes.refuse_unlike({**describe(problem, generator.initial_seed()), **trainer.settings})
    for part in (problem.model, problem.prior, problem.likelihood):
        processes.send_tensors([value for value in part.state_dict().values() if isinstance(value, Tensor)])
    with ExitStack() as during:
        if not processes.is_first:  # which says the same
            during.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
        trainer.processes = processes
        during.callback(setattr, trainer, "processes", ALONE)
        if trainer.shares:
            problem.data.processes = processes
            during.callback(setattr, problem.data, "processes", ALONE)
            for module in problem.model.modules():
                if isinstance(module, _BatchNorm):
                    during.enter_context(replaced(module, partial(_norm_over_processes, trainer)))
        else:
            warnings.warn(
                f"Training by {type(trainer).__name__} is not shared out: each of {processes.count} processes computes all of "
                "it, to the same numbers.",
                stacklevel=4,
            )
        yield


def _refuse(trainer: Trainer[Any], count: int, fewest: int) -> None:
    model, data, batch_size = trainer.problem.model, trainer.problem.data, trainer.schedule.batch_size
    if wrapped := next((module for module in model.modules() if isinstance(module, DistributedDataParallel)), None):
        raise TypeError(
            f"The model must be the network itself, since gradients are summed over processes here; it has a "
            f"{type(wrapped).__name__}. Pass its .module."
        )
    if not data.can_be_shared:
        raise ValueError(
            f"Data that {count} processes share must come in the same order in all of them; a DataLoader has one of its own. "
            "Give each process the whole Dataset, or tensors: every batch is shared out here."
        )
    if min(data.size, batch_size) < fewest:
        raise ValueError(
            f"{count} processes need at least {fewest} data in every batch, two for each; got {data.size} data in batches of "
            f"{batch_size}. Use a larger batch_size, or fewer processes."
        )
    left = data.size % batch_size
    norm = next((name for name, module in model.named_modules() if isinstance(module, _BatchNorm)), None)
    if norm is not None and 1 < left < fewest:
        raise ValueError(
            f"With a batch norm ({norm!r}) the last batch must have at least {fewest} data, too, two for each of {count} "
            f"processes; of {data.size} in batches of {batch_size} it has {left}. Choose another batch_size."
        )


def begin_alike(trainer: Trainer[S], state: S, history: list[Record]) -> list[Record]:
    """Let all processes go on from the state of the first, if it comes from a checkpoint; the records of epochs before."""
    processes = trainer.processes
    if processes.count == 1:
        return history
    found, records = processes.send((state.state_dict() if history else None, history) if processes.is_first else (None, []))
    if found is not None and not processes.is_first:
        state.load_state_dict(found)
    return records


def refuse_drift(trainer: Trainer[Any]) -> None:
    """Refuse weights, precisions or buffers that processes do not have in common any more.

    Raises:
        RuntimeError: Naming the first.
    """
    problem = trainer.problem
    if trainer.processes.count > 1:
        parts = (problem.model, problem.prior, problem.likelihood)
        named = {name: value for part in parts for name, value in part.state_dict().items() if isinstance(value, Tensor)}
        trainer.processes.refuse_drift(named)


def _norm_over_processes(trainer: Trainer[Any], module: _BatchNorm) -> Callable[[Tensor], Tensor]:
    """The forward pass of a batch norm whose mean and variance are those of the whole batch, of which all have a share."""

    def forward(input: Tensor) -> Tensor:
        if not module.training or trainer.processes.count == 1:
            usual: Tensor = type(module).forward(module, input)
            return usual
        axes, shape = (0, *range(2, input.ndim)), (1, -1, *(1,) * (input.ndim - 2))
        own = input.new_tensor([input.numel() // input.shape[1]])
        total = sum_over_processes(torch.cat([input.sum(axes), own]))
        count = total[-1].detach()
        mean = total[:-1] / count
        centred = input - mean.view(shape)
        variance = sum_over_processes(centred.square().sum(axes)) / count
        _remember(module, mean.detach(), variance.detach() * count / (count - 1))
        outputs = centred * (variance + module.eps).rsqrt().view(shape)
        return outputs if module.weight is None else outputs * module.weight.view(shape) + module.bias.view(shape)

    return forward


@torch.no_grad()
def _remember(module: _BatchNorm, mean: Tensor, variance: Tensor) -> None:
    """Move running statistics, as torch does."""
    if module.running_mean is None or module.running_var is None or module.num_batches_tracked is None:
        return
    module.num_batches_tracked.add_(1)
    share = 1 / float(module.num_batches_tracked) if module.momentum is None else module.momentum
    module.running_mean.lerp_(mean.to(module.running_mean), share)
    module.running_var.lerp_(variance.to(module.running_var), share)
