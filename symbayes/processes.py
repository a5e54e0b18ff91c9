"""Several processes that train one model: each adds up its share of every batch, and all of them get the total.

The engine is `torch.distributed`. Where its default process group is initialised (by torchrun and a program's own
`init_process_group`, by Lightning Fabric, by Accelerate), `fit` shares sums over data out; everything else is computed by every
process alike, from the same totals, so that weights, precisions and evidence stay equal. Random numbers are drawn for whole
batches, so that they do not depend on how many processes there are.
"""

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from symbayes.errors import NotFiniteError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

#: Tensors travel together up to this many numbers.
_TOGETHER = 2**25
#: Data of a batch that a process takes at least: gradients of a single one may be wrong in norms.
_FEWEST = 2


@dataclass(frozen=True)
class Processes:
    """Those that train together, and which of them this is.

    Args:
        rank: Of this process.
        count: Of all.
    """

    rank: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    @property
    def fewest(self) -> int:
        """Data of which every process has some."""
        return _FEWEST * self.count if self.count > 1 else 1

    def share(self, size: int) -> slice:
        """Which of so many data are those of this process; where they are few, some processes have none."""
        taking = max(1, min(self.count, size // _FEWEST))
        rank = min(self.rank, taking)
        return slice(size * rank // taking, min(size, size * (rank + 1) // taking))

    def step_share(self, size: int) -> tuple[slice, float]:
        """Which of so many data are those of this process in a step, and what their loss counts in the sum over processes.

        Of a batch that is too small all processes have all, and count the same.
        """
        return (self.share(size), 1.0) if size >= self.fewest else (slice(None), 1 / self.count)

    def sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The sum over processes of each tensor: of the same shapes in all of them, and the same bit for bit.

        Raises:
            RuntimeError: If a gradient would be lost.
        """
        if self.count == 1:
            return list(tensors)
        if torch.is_grad_enabled() and self.any(any(tensor.requires_grad for tensor in tensors)):
            raise RuntimeError(
                "Sums over processes must not depend on what asks for gradients, which would be lost; these do: on extents, a "
                "noise or tensors of your own. Compute them under torch.no_grad(); sb.evidence_gradient has the gradient."
            )
        return self._sum(tensors)

    @torch.no_grad()
    def _sum(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for bucket in _buckets(tensors):
            flat = torch.cat([tensors[index].flatten() for index in bucket])
            _all_reduce(flat, distributed.ReduceOp.SUM)
            for index, part in zip(bucket, flat.split([tensors[index].numel() for index in bucket]), strict=True):
                found[index] = part.view(tensors[index].shape)
        return [found[index] for index in range(len(tensors))]

    def sums(self, named: Mapping[K, Tensor]) -> dict[K, Tensor]:
        """The sum over processes of each tensor, by name.

        Raises:
            RuntimeError: If processes have different ones.
        """
        if self.count == 1:
            return dict(named)
        keys = sorted(named, key=str)
        self.refuse_unlike({"sums over data": str([(key, tuple(named[key].shape)) for key in keys])})
        return dict(zip(keys, self.sum([named[key] for key in keys]), strict=True))

    def mean_gradients(self, loss: Tensor, size: int, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Of the mean loss of a batch, of which this process has so many data; zero where it does not depend on a tensor.

        Args:
            loss: Summed over the data of this process.
            size: How many there are.
            tensors: What to differentiate in.
        """
        # In sum where processes differ in how many they have: batch norms send gradients from one to the other.
        whole = loss / size if self.count == 1 else loss
        found = torch.autograd.grad(whole, tensors, allow_unused=True, materialize_grads=True)
        dense = [gradient.to_dense() if gradient.is_sparse else gradient for gradient in found]
        if self.count == 1:
            return tuple(dense)
        *totals, count = self._sum([*dense, torch.tensor([float(size)]).to(dense[0])])
        return tuple(total / count for total in totals)

    def any(self, flag: bool) -> bool:
        """Whether it is so in any process."""
        return self._largest(int(flag)) > 0

    @contextmanager
    def together(self) -> Iterator[None]:
        """A context, without sums inside, that fails in all processes if it fails in one.

        Raises:
            NotFiniteError: If numbers are not finite in another process.
            RuntimeError: If another process failed otherwise.
        """
        try:
            yield
        except Exception as error:
            self._largest(1 if isinstance(error, NotFiniteError) else 2)
            raise
        failed = self._largest(0)
        if failed:
            kind = NotFiniteError if failed == 1 else RuntimeError
            raise kind("Another of the processes that train together stopped at its share of the data, and says why.")

    def send(self, value: T) -> T:
        """What the first process has, in all of them."""
        if self.count == 1:
            return value
        found: list[Any] = [value]
        distributed.broadcast_object_list(found, src=0, device=_plain_device())
        received: T = found[0]
        return received

    def align(self, generator: torch.Generator) -> None:
        """Let a generator be where it is in the first process."""
        if self.count > 1:
            generator.set_state(self.send(generator.get_state()))

    def alike(self, generator: torch.Generator | None) -> torch.Generator | None:
        """A generator that draws the same in all processes: this one, where it is in the first; a new one when None."""
        if self.count == 1:
            return generator
        if generator is None:
            return torch.Generator().manual_seed(self.send(int(torch.randint(2**62, ()))))
        self.align(generator)
        return generator

    @torch.no_grad()
    def send_tensors(self, tensors: Sequence[Tensor]) -> None:
        """Let all processes have the numbers that the first has, in place."""
        if self.count > 1:
            for tensor in tensors:
                moved = tensor.detach().to(_device_of(tensor), copy=True)
                distributed.broadcast(moved, src=0)
                tensor.copy_(moved)

    def refuse_unlike(self, words: Mapping[str, str]) -> None:
        """Refuse what is not the same in all processes.

        Args:
            words: What it is, by what it is of.

        Raises:
            RuntimeError: Naming the first that differs.
        """
        if self.count == 1:
            return
        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, dict(words))
        for rank, other in enumerate(found):
            for name in found[0]:
                if other.get(name) != found[0][name]:
                    raise RuntimeError(
                        f"All processes must have the same {name}; process 0 has {found[0][name]:.200}, and process {rank} "
                        f"{other.get(name, 'none'):.200}. Give all of them the same model, data, settings and seed."
                    )

    @torch.no_grad()
    def refuse_drift(self, named: Mapping[str, Tensor]) -> None:
        """Refuse tensors that have become others in some process.

        Raises:
            RuntimeError: Naming the first.
        """
        if self.count == 1 or not named:
            return
        sizes = torch.stack([value.detach().double().square().sum().cpu() for value in named.values()])
        most = torch.cat([sizes, -sizes])
        _all_reduce(most, distributed.ReduceOp.MAX)
        high, low = most.chunk(2)
        apart = high + low > 1e-6 * high
        if apart.any():
            name = list(named)[int(apart.nonzero()[0])]
            raise RuntimeError(
                f"Processes that train together must have the same {name!r} after an epoch; they do not. What a module changes "
                "in its forward pass must not depend on its share of a batch, nor random numbers on the process."
            )

    def _largest(self, value: int) -> int:
        if self.count == 1:
            return value
        found = torch.tensor([value])
        _all_reduce(found, distributed.ReduceOp.MAX)
        return int(found)


#: A process for itself.
ALONE = Processes()


def all_processes() -> Processes:
    """Those of the process group of torch, where it is initialised; otherwise this one alone."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return ALONE
    return Processes(distributed.get_rank(), distributed.get_world_size())


@contextmanager
def of_torchrun(device: str) -> Iterator[str]:
    """The process group that torchrun asks for, if it does; and the device of this process."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1 or distributed.is_initialized():
        yield device
        return
    local, many = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", str(count)))
    is_gpu = torch.device(device).type == "cuda" and torch.cuda.is_available()
    if is_gpu:
        device = f"cuda:{local % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    # NCCL has no two processes on one GPU.
    distributed.init_process_group("nccl" if is_gpu and torch.cuda.device_count() >= many else "gloo")
    try:
        yield device
    finally:
        distributed.destroy_process_group()


def sum_over_processes(value: Tensor) -> Tensor:
    """The sum over all processes there are, which can be differentiated."""
    found: Tensor = _Sum.apply(value)  # type: ignore[no-untyped-call]
    return found


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        _all_reduce(total, distributed.ReduceOp.SUM)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        # What is differentiated is the sum of the losses of all processes.
        total = gradients[0].clone()
        _all_reduce(total, distributed.ReduceOp.SUM)
        return total


def _all_reduce(values: Tensor, operation: Any) -> None:
    """In place, wherever they lie."""
    moved = values.to(_device_of(values))
    distributed.all_reduce(moved, operation)
    if moved is not values:
        values.copy_(moved)


def _device_of(values: Tensor) -> torch.device:
    """Where the process group can take values."""
    return values.device if values.is_cuda else _plain_device()


def _plain_device() -> torch.device:
    """Of what lies on the CPU: there, unless the process group knows GPUs alone."""
    only_gpu = distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if only_gpu else torch.device("cpu")


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[int]]:
    """Tensors of one type and device, by number, a bearable many at a time."""
    kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
    for index, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(index)
    for indices in kinds.values():
        bucket: list[int] = []
        size = 0
        for index in indices:
            if bucket and size + tensors[index].numel() > _TOGETHER:
                yield bucket
                bucket, size = [], 0
            bucket.append(index)
            size += tensors[index].numel()
        yield bucket
