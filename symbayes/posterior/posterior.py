"""N(mean, T Σ) over weights, in parts; saved and loaded without pickle."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from math import inf, log, pi, prod
from pathlib import Path
from typing import Literal, cast

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Generator, Tensor

from symbayes.data.storage import DAMAGE, error_words, from_json, to_json, write_whole
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread, MatrixSpread, Spread
from symbayes.text import significant

#: Weight tensors by name; several of each have further axes in front.
Weights = Mapping[str, Tensor]
#: `Posterior.cubature` is for no more weights than this: it takes 2p² numbers.
CUBATURE_LIMIT = 8192


@dataclass(frozen=True)
class Members:
    """The tensors that one spread is over, and how they lie side by side in it.

    Args:
        shapes: By name.
        column: Blocks and d_out of a weight [block, d_out, d_in] to which a bias is joined as its last column; the weight is
            named first then. None where tensors are just flattened, one after the other.
    """

    shapes: Mapping[str, tuple[int, ...]]
    column: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """p."""
        return sum(map(prod, self.shapes.values()))

    def join(self, tensors: Weights) -> Float[Tensor, "*batch p"]:
        """All of them as one vector."""
        flat = [tensors[name].flatten(tensors[name].ndim - len(shape)) if shape else tensors[name][..., None]
                for name, shape in self.shapes.items()]  # fmt: skip
        if self.column is None:
            return torch.cat(flat, -1)
        return torch.cat([part.unflatten(-1, (*self.column, -1)) for part in flat], -1).flatten(-3)

    def split(self, vectors: Float[Tensor, "*batch p"]) -> dict[str, Tensor]:
        """One vector as the tensors that it is of."""
        sizes = [prod(shape) for shape in self.shapes.values()]
        if self.column is None:
            parts = vectors.split(sizes, -1)
        else:
            blocks, d_out = self.column
            columns = vectors.unflatten(-1, (blocks, d_out, -1)).split([size // (blocks * d_out) for size in sizes], -1)
            parts = tuple(part.flatten(-3) for part in columns)
        leading = vectors.shape[:-1]
        return {name: part.reshape((*leading, *shape)) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}


@dataclass(frozen=True)
class Posterior:
    """N(mean, T Σ) over the weights of a model, with Σ in independent parts and a temperature T.

    Args:
        mean: By tensor.
        parts: What is uncertain; a tensor in none of them is known for sure.
        kind: How it was found, in words.
        predicts: How it is meant to be used by `predict`: "sampled", or "linearised" where it is the posterior of the model
            linearised at the mean, as Laplace's is.
        temperature: T, which every covariance and draw has as a factor; `tempered` finds it.
    """

    mean: Weights
    parts: tuple[tuple[Members, Spread], ...]
    kind: str
    predicts: str = "sampled"
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.temperature < inf:
            raise ValueError(f"The temperature of a posterior must be positive and finite, got {self.temperature}.")

    @property
    def words(self) -> str:
        """How it was found, and its temperature."""
        return self.kind if self.temperature == 1 else f"{self.kind}, temperature {significant(self.temperature, 2)}"

    @property
    def size(self) -> int:
        """Numbers that are uncertain."""
        return sum(members.size for members, _ in self.parts)

    def only(self, patterns: Sequence[str]) -> "Posterior":
        """The same with some tensors uncertain and all others known for sure, such as ["head2*"] for a last layer.

        Parts are independent in a posterior by blocks, which for all layers together is far too unsure where layers are
        correlated; one layer alone, given the others, is not. So a temperature, which is of all of them, is left out.

        Raises:
            ValueError: If a pattern matches no uncertain tensor, or only some of a part.
        """
        chosen = []
        for members, spread in self.parts:
            matched = [any(fnmatch(name, pattern) for pattern in patterns) for name in members.shapes]
            if any(matched) and not all(matched):
                raise ValueError(
                    f"Tensors of a part must be chosen together, or not at all: {', '.join(members.shapes)}. Match all of them."
                )
            if any(matched):
                chosen.append((members, spread))
        names = [name for members, _ in self.parts for name in members.shapes]
        for pattern in patterns:
            if not any(fnmatch(name, pattern) for name in names):
                raise ValueError(f"Patterns must name uncertain tensors; {pattern!r} matches none of {', '.join(names)}.")
        if len(chosen) == len(self.parts):
            return self
        return replace(self, parts=tuple(chosen), kind=f"{self.kind}, of {', '.join(patterns)} alone", temperature=1.0)

    def sample(self, count: int, *, generator: Generator | None = None, antithetic: bool = False) -> dict[str, Tensor]:
        """So many draws of all weights: by tensor, [count, *shape]; reparameterised, so differentiable in mean and spread.

        Args:
            count: Of draws.
            generator: For the draws.
            antithetic: Whether the second half of the draws lies opposite to the first.
        """
        if count < 1 or (antithetic and count % 2):
            raise ValueError(f"count must be at least 1, and even when antithetic; got {count}.")
        drawn = self._noise(count // 2 if antithetic else count, generator)
        return self.placed([torch.cat([part, -part]) for part in drawn] if antithetic else drawn)

    def cubature(self) -> dict[str, Tensor]:
        """2p weights, mean ± √p times each column of L: their average is exact for functions that are quadratic in weights.

        Raises:
            ValueError: If there are too many.
        """
        p, start = self.size, 0
        if p > CUBATURE_LIMIT:
            raise ValueError(
                f"Cubature is for at most {CUBATURE_LIMIT} uncertain weights, since it takes twice their number squared; this "
                f"posterior has {p}. Draw some: draws='antithetic' or 'random'."
            )
        noise = []
        for members, _ in self.parts:
            like = next(self.mean[name] for name in members.shapes)
            of_part = like.new_zeros(p, members.size)
            of_part[start : start + members.size] = p**0.5 * torch.eye(members.size, dtype=like.dtype, device=like.device)
            noise.append(torch.cat([of_part, -of_part]))
            start += members.size
        return self.placed(noise)

    def placed(self, noise: list[Float[Tensor, "count _"]]) -> dict[str, Tensor]:
        """mean + √T L ε, for noise of every part."""
        count = len(noise[0]) if noise else 1
        scale = self.temperature**0.5
        found = {name: value.expand(count, *value.shape) for name, value in self.mean.items()}
        for (members, spread), of_part in zip(self.parts, noise, strict=True):
            for name, offset in members.split(spread.root(of_part)).items():
                found[name] = self.mean[name] + scale * offset
        return found

    def log_prob(self, weights: Weights) -> Float[Tensor, "*batch"]:
        """log q of weights [*batch, *shape], for those that are uncertain."""
        total: Tensor = torch.zeros(())
        for members, spread in self.parts:
            offsets = members.join({name: weights[name] - self.mean[name] for name in members.shapes})
            squares = spread.whitened(offsets).square().sum(-1) / self.temperature
            total = total - (squares + members.size * log(2 * pi * self.temperature) + spread.log_det()) / 2
        return total

    def entropy(self) -> Float[Tensor, ""]:
        """½ (p log 2πeT + log|Σ|)."""
        logs = [spread.log_det() for _, spread in self.parts]
        return (sum(logs, torch.zeros(())) + self.size * (log(2 * pi * self.temperature) + 1)) / 2

    def variances(self) -> dict[str, Tensor]:
        """Of every weight, by tensor; zero where it is known for sure."""
        found = {name: torch.zeros_like(value) for name, value in self.mean.items()}
        for members, spread in self.parts:
            found |= members.split(self.temperature * spread.variances())
        return found

    def covariance(self, jacobians: Weights) -> Float[Tensor, "n c c"]:
        """T J Σ Jᵀ: the covariance of c linear functions for each of n data, from their gradients [n, c, *shape] by tensor."""
        total: Tensor = torch.zeros(())
        for members, spread in self.parts:
            rows = spread.root_transposed(members.join(jacobians))
            total = total + rows @ rows.mT
        return self.temperature * total

    def detached(self) -> "Posterior":
        """The same, cut off from autograd."""
        return self._map(lambda value: value.detach().clone())

    def like(self, tensor: Tensor) -> "Posterior":
        """The same, in the type and on the device of a tensor."""
        return self._map(lambda value: value.to(tensor))

    def _map(self, change: Callable[[Tensor], Tensor]) -> "Posterior":
        parts = tuple(
            (members, type(spread)(**{name: change(value) for name, value in vars(spread).items()}))
            for members, spread in self.parts
        )
        return replace(self, mean={name: change(value) for name, value in self.mean.items()}, parts=parts)

    def _noise(self, count: int, generator: Generator | None) -> list[Float[Tensor, "count _"]]:
        noise = []
        for members, _ in self.parts:
            like = next(self.mean[name] for name in members.shapes)
            device = generator.device if generator is not None else like.device
            drawn = torch.randn(count, members.size, generator=generator, dtype=like.dtype, device=device)
            noise.append(drawn.to(like.device))
        return noise


_FORMAT = 1
#: Fields of spreads that earlier versions had under other names.
_RENAMED = {"deviation": "std"}
_SPREADS: dict[str, type[Spread]] = {kind.__name__: kind for kind in (DiagonalSpread, FullSpread, MatrixSpread, EigenSpread)}


@dataclass(frozen=True)
class _Part:
    """A part of what is saved: the shapes of its tensors, how they lie in it, and the kind of its spread."""

    shapes: dict[str, tuple[int, ...]]
    column: tuple[int, ...] | None
    spread: str


@dataclass(frozen=True)
class _About:
    """What is saved of a posterior beside its tensors."""

    format: int
    kind: str
    predicts: Literal["sampled", "linearised"]
    parts: tuple[_Part, ...]
    #: Earlier versions had none.
    temperature: float = 1.0


def save_posterior(posterior: Posterior, path: str | Path) -> None:
    """Write it to one file; what it raises is said at `saved_posterior`."""
    write_whole(Path(path), dump_posterior(posterior))


def dump_posterior(posterior: Posterior) -> bytes:
    """It as a file.

    Raises:
        ValueError: If a spread is of a kind that could not be built again.
    """
    tensors: dict[str, Tensor] = {f"mean:{name}": value for name, value in posterior.mean.items()}
    parts: list[_Part] = []
    for index, (members, spread) in enumerate(posterior.parts):
        if type(spread).__name__ not in _SPREADS:
            raise ValueError(
                f"To be saved, a posterior must have spreads among {', '.join(_SPREADS)}; got {type(spread).__name__}. Save "
                "its tensors yourself."
            )
        tensors |= {f"{index}:{name}": value for name, value in vars(spread).items()}
        parts.append(_Part(dict(members.shapes), members.column, type(spread).__name__))
    predicts = cast(Literal["sampled", "linearised"], posterior.predicts)
    about = _About(_FORMAT, posterior.kind, predicts, tuple(parts), posterior.temperature)
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    return save(contiguous, {"posterior": json.dumps(to_json(about))})


def load_posterior(path: str | Path, device: torch.device | None = None) -> Posterior:
    """One that was saved.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, or of another version.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} must be a file, as save_posterior writes it; there is none.")
    return parse_posterior(path.read_bytes(), path, device)


def parse_posterior(content: bytes, path: Path, device: torch.device | None = None) -> Posterior:
    """One from the content of a file; as `load_posterior`."""
    try:
        tensors = {name: value.to(device or "cpu") for name, value in load(content).items()}
        about = json.loads(_metadata(content)["posterior"])
        if isinstance(about, dict) and about.get("format") == _FORMAT:
            saved: _About = from_json(about, _About, "posterior")
            mean = {name.removeprefix("mean:"): value for name, value in tensors.items() if name.startswith("mean:")}
            parts = tuple(_part(part, index, tensors) for index, part in enumerate(saved.parts))
            _check(mean, parts)
            return Posterior(mean, parts, saved.kind, saved.predicts, saved.temperature)
    except (SafetensorError, RuntimeError, *DAMAGE) as error:
        raise ValueError(
            f"The posterior in {path} is damaged ({error_words(error)}). Copy it again; or remove the file, and do without a "
            "posterior."
        ) from error
    found = about.get("format") if isinstance(about, dict) else None
    raise ValueError(f"The posterior in {path} has format {found}; this version reads format {_FORMAT}.")


def _metadata(content: bytes) -> dict[str, str]:
    """What the head of a file in the format of safetensors, which was read already, says beside its tensors."""
    size = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + size])["__metadata__"]
    return found


def _part(saved: _Part, index: int, tensors: dict[str, Tensor]) -> tuple[Members, Spread]:
    column = (saved.column[0], saved.column[1]) if saved.column is not None else None
    prefix = f"{index}:"
    fields = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    fields = {_RENAMED.get(name, name): value for name, value in fields.items()}
    return Members(saved.shapes, column), _SPREADS[saved.spread](**fields)


def _check(mean: Mapping[str, Tensor], parts: Sequence[tuple[Members, Spread]]) -> None:
    """Refuse parts that are not of the tensors they name, by a draw that takes no memory."""
    known = [*mean.values(), *(value for _, spread in parts for value in vars(spread).values())]
    if not all(value.is_floating_point() for value in known):
        raise ValueError("all tensors must be real numbers")
    if not all(value.isfinite().all() for value in known):
        raise ValueError("all numbers must be finite")
    for members, spread in parts:
        fields = {name: value.to("meta", torch.float32) for name, value in vars(spread).items()}
        noise = torch.empty(1, members.size, device="meta")
        drawn = members.split(
            type(spread)(**{name: value.to("meta", torch.float32) for name, value in fields.items()}).root(noise)
        )
        for name, value in drawn.items():
            if value.shape[1:] != mean[name].shape:
                raise ValueError(f"{name} must have the shape {tuple(mean[name].shape)} of its mean")
