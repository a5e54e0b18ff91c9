"""Families of posteriors to be learned, and the parameters of their spread.

Means are the weights of the model itself, so that the model predicts by them as it is. A family adds what is to be learned of
their spread. **Biases** are treated in one of three ways, for all families alike:

    "column"         as the last column of their weight [W b], with which they are then correlated as the family has it
    "separate"       each with a standard deviation of its own
    "deterministic"  as numbers without uncertainty and without prior, so as parameters of the model and no weights

Where a bias is no column of its weight (it is shared by several matrices, or its weight is frozen), "column" means "separate".
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.check import check_functional, reference_of
from symbayes.layout import Layout, Site, weights
from symbayes.posterior.functional import local_maps
from symbayes.posterior.posterior import Members, Posterior
from symbayes.posterior.spread import DiagonalSpread, FullSpread, MatrixSpread, Spread
from symbayes.posterior.units import HiddenUnits, check_units, hidden_units

#: Blocks, d_out and d_in of a weight.
Matrix = tuple[int, int, int]


class SpreadParameters(nn.Module, ABC):
    """What is learned of one spread."""

    @abstractmethod
    def forward(self) -> Spread:
        """The spread as it is now."""

    def __call__(self) -> Spread:
        spread: Spread = super().__call__()
        return spread


class DiagonalParameters(SpreadParameters):
    """The logarithm of the standard deviation (std) of each number."""

    def __init__(self, std: Float[Tensor, " p"]) -> None:
        super().__init__()
        self.log_std = nn.Parameter(std.log())

    def forward(self) -> DiagonalSpread:
        return DiagonalSpread(self.log_std.exp())


class OuterParameters(SpreadParameters):
    """A log-std for each row and each column of a matrix: the std of an entry is the product of two."""

    def __init__(self, std: Float[Tensor, " p"], matrix: Matrix) -> None:
        super().__init__()
        logs = std.log().unflatten(0, matrix)
        self.log_left = nn.Parameter(logs.mean(2) / 2)
        self.log_right = nn.Parameter(logs.mean(1) - self.log_left.detach().mean(1, keepdim=True))

    def forward(self) -> DiagonalSpread:
        return DiagonalSpread((self.log_left[:, :, None] + self.log_right[:, None, :]).exp().flatten())


class LowerParameters(nn.Module):
    """A lower triangular matrix for each block, L = (I + N) diag(d): N strictly below the diagonal, so that it has no scale."""

    def __init__(self, std: Float[Tensor, "block d"]) -> None:
        super().__init__()
        self.log_diagonal = nn.Parameter(std.log())
        self.below = nn.Parameter(std.new_zeros(*std.shape, std.shape[1]))

    def forward(self) -> Float[Tensor, "block d d"]:
        unit = self.below.tril(-1) + torch.eye(self.below.shape[1], dtype=self.below.dtype, device=self.below.device)
        return unit * self.log_diagonal.exp()[:, None, :]

    def __call__(self) -> Tensor:
        lower: Tensor = super().__call__()
        return lower


class MatrixParameters(SpreadParameters):
    """Two Cholesky factors for every block."""

    def __init__(self, std: Float[Tensor, " p"], matrix: Matrix) -> None:
        super().__init__()
        logs = std.log().unflatten(0, matrix)
        left = logs.mean(2) / 2
        self.left = LowerParameters(left.exp())
        self.right = LowerParameters((logs.mean(1) - left.mean(1, keepdim=True)).exp())

    def forward(self) -> MatrixSpread:
        return MatrixSpread(self.left(), self.right())


class FullParameters(SpreadParameters):
    """One Cholesky factor."""

    def __init__(self, std: Float[Tensor, " p"]) -> None:
        super().__init__()
        self.lower = LowerParameters(std[None])

    def forward(self) -> FullSpread:
        return FullSpread(self.lower()[0])


BIASES = ("column", "separate", "deterministic")


class Variational(nn.Module):
    """A posterior that is being learned: the weights of a model as means, and parameters of their spread.

    Args:
        model: Whose weights they are; it is not a part of this module.
        family: Of distributions.
    """

    def __init__(self, model: nn.Module, family: "Family") -> None:
        super().__init__()
        self.family = family
        self._model = (model,)  # in a tuple, so that its weights are not parameters of this module, too
        layout = Layout.of(model)
        layout.refuse_padding()
        self.members = tuple(family.members(model))
        if not self.members:
            raise ValueError("A posterior needs weights that are uncertain; with biases='deterministic', the model has none.")
        stds = _initial_stds(model, layout, family.std)
        self.spreads = nn.ModuleList(
            family.parameters(members.join({name: stds[name] for name in members.shapes}), members, matrix)
            for members, matrix in self.members
        )
        known = {name for members, _ in self.members for name in members.shapes}
        #: Layer and path of every weight.
        self.places = {name: (tensor.layer, tensor.path) for name, tensor in layout.tensors.items()}
        #: Without uncertainty and prior.
        self.deterministic = frozenset(self.places.keys() - known)
        self._local: dict[int, Site] | None = None
        self._checked = False
        self._units: tuple[tuple[HiddenUnits, ...] | None, tuple[HiddenUnits, ...]] | None = None

    def check(self, model: nn.Module, inputs: Tensor) -> None:
        """Refuse any other model, and with the first inputs there are what has no posterior (`reference_of`)."""
        if model is not self._model[0]:
            raise ValueError("The posterior must be over this very model; make it by family.over(model).")
        if not self._checked:
            reference = reference_of(model, inputs)
            if reference is not None:
                check_functional(model, reference)
            self._checked = True

    def forward(self) -> Posterior:
        """The posterior as it is now, differentiable in the weights of the model and in the spread."""
        parts = tuple((members, spread()) for (members, _), spread in zip(self.members, self.spreads, strict=True))
        return Posterior(dict(weights(self._model[0])), parts, self.family.name)

    def units(self, given: tuple[HiddenUnits, ...] | None, inputs: Tensor) -> tuple[HiddenUnits, ...]:
        """Hidden units that may change places: those given, or found in the model; checked with the first inputs there are."""
        if self._units is None or self._units[0] != given:
            found = given if given is not None else hidden_units(self._model[0])
            check_units(self._model[0], found, inputs[:4])
            self._units = given, found
        return self._units[1]

    def local(self, inputs: Tensor) -> dict[int, Site]:
        """The parts whose noise can be drawn behind their map (`local_maps`), found out with the first inputs there are."""
        if self._local is None:
            self._local = local_maps(self._model[0], inputs, [members for members, _ in self.members])
        return self._local

    def __call__(self) -> Posterior:
        posterior: Posterior = super().__call__()
        return posterior


@dataclass(frozen=True)
class Family(ABC):
    """A family of normal distributions over the weights of any model.

    Args:
        biases: "column", "separate" or "deterministic"; see above.
        std: Standard deviation at the start, relative to the size of the weights of a tensor.
    """

    biases: str = "column"
    std: float = 0.1

    def __post_init__(self) -> None:
        if self.biases not in BIASES:
            raise ValueError(f"biases must be one of {', '.join(BIASES)}, got {self.biases!r}.")
        if not self.std > 0:
            raise ValueError(f"std must be positive, got {self.std}.")

    @property
    @abstractmethod
    def name(self) -> str:
        """In words."""

    @abstractmethod
    def parameters(self, std: Float[Tensor, " p"], members: Members, matrix: Matrix | None) -> SpreadParameters:
        """What is learned of a part; `matrix` is the form of what it is over, None where that is no matrix."""

    def over(self, model: nn.Module) -> Variational:
        """A posterior over the weights of a model, to be learned."""
        return Variational(model, self)

    def members(self, model: nn.Module) -> list[tuple[Members, Matrix | None]]:
        """The parts of the posterior: a weight with its bias, or a tensor by itself; with the form of what is a matrix."""
        layout = Layout.of(model)
        shapes = {name: tuple(parameter.shape) for name, parameter in weights(model).items()}
        biases = {name for name, tensor in layout.tensors.items() if tensor.kind == "bias"}
        apart = biases if self.biases == "deterministic" else set[str]()
        matrices: dict[str, Matrix] = {}
        columns: dict[str, str] = {}
        for site in layout.sites.values():
            if site.weight is None or site.matrix is None:
                continue
            matrices[site.weight] = matrix = site.matrix
            if self.biases == "column" and site.bias is not None and prod(shapes[site.bias]) == matrix[0] * matrix[1]:
                columns[site.weight] = site.bias
        found: list[tuple[Members, Matrix | None]] = []
        for name in shapes.keys() - apart - set(columns.values()):
            if name in columns:
                blocks, d_out, d_in = matrices[name]
                both = {each: shapes[each] for each in (name, columns[name])}
                found.append((Members(both, (blocks, d_out)), (blocks, d_out, d_in + 1)))
            else:
                found.append((Members({name: shapes[name]}), matrices.get(name)))
        return sorted(found, key=lambda part: list(shapes).index(next(iter(part[0].shapes))))


@dataclass(frozen=True)
class MeanField(Family):
    """Every weight for itself: its own standard deviation for each."""

    @property
    def name(self) -> str:
        return "mean-field"

    def parameters(self, std: Float[Tensor, " p"], members: Members, matrix: Matrix | None) -> SpreadParameters:
        return DiagonalParameters(std)


@dataclass(frozen=True)
class MatrixNormal(Family):
    """Σ = S ⊗ A for every weight matrix, with S over its rows and A over its columns (Louizos and Welling 2016).

    What is no matrix, such as the scale of a norm, has a standard deviation for each number.

    Args:
        biases: As in `Family`.
        std: As in `Family`.
        diagonal: Whether S and A are diagonal: much cheaper, and without correlations.
    """

    diagonal: bool = False

    @property
    def name(self) -> str:
        return "matrix-normal with diagonal factors" if self.diagonal else "matrix-normal"

    def parameters(self, std: Float[Tensor, " p"], members: Members, matrix: Matrix | None) -> SpreadParameters:
        if matrix is None:
            return DiagonalParameters(std)
        return OuterParameters(std, matrix) if self.diagonal else MatrixParameters(std, matrix)


@dataclass(frozen=True)
class FullCovariance(Family):
    """Any covariance over a layer, its bias included; for small layers.

    Args:
        biases: As in `Family`.
        std: As in `Family`.
        limit: The most weights that a layer may have; there are as many squared of numbers to learn.
    """

    limit: int = 4096

    @property
    def name(self) -> str:
        return "full covariance of layers"

    def parameters(self, std: Float[Tensor, " p"], members: Members, matrix: Matrix | None) -> SpreadParameters:
        if members.size > self.limit:
            raise ValueError(
                f"A full covariance is for layers of at most limit={self.limit} weights; {', '.join(members.shapes)} has "
                f"{members.size}. Use MatrixNormal() or MeanField(), or raise the limit if memory allows."
            )
        return FullParameters(std)


def _initial_stds(model: nn.Module, layout: Layout, relative: float) -> dict[str, Tensor]:
    """For every number: so much of the root mean square of its tensor; of the weight beside it, where a bias begins at zero."""
    values = {name: parameter.detach() for name, parameter in weights(model).items()}
    sizes = {name: float(value.square().mean().sqrt()) for name, value in values.items()}
    beside = {site.bias: site.weight for site in layout.sites.values() if site.bias and site.weight}
    found = {}
    for name, value in values.items():
        usual = prod(value.shape[1:]) ** -0.5  # what keeps the variance of inputs
        size = sizes[name] or sizes.get(beside.get(name, ""), 0.0) or usual
        found[name] = torch.full_like(value, relative * size)
    return found
