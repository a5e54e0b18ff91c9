"""The full GGN without a matrix: stochastic Lanczos quadrature on GGN-vector products.

With B = Δ^-½ H Δ^-½ and random signs z, k steps of Lanczos give a k × k tridiagonal T with

    log|I + B| ≈ mean ‖z‖² e₁ᵀ log(I + T) e₁                  (I + B)⁻¹ z ≈ ‖z‖ Q (I + T)⁻¹ e₁

(Ubaru, Chen and Saad 2017). The second gives the effective parameters of every tensor from the same vectors:
γ_l = mean z_lᵀ (z − (I + B)⁻¹ z)_l. Correlations between layers are kept, at any size; a product costs about two gradients.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import functional_call, jvp, vjp

from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.replay import Precisions, some_batches
from symbayes.curvature.rule import Curvature, Rule
from symbayes.data.source import DataSource
from symbayes.layers.structure import held, weight_tensors
from symbayes.likelihoods import Likelihood

Product = Callable[[Float[Tensor, " p"]], Float[Tensor, " p"]]
#: Vectors x and z in the space of weights.
Pairs = Sequence[tuple[Float[Tensor, " p"], Float[Tensor, " p"]]]


@dataclass(frozen=True)
class Lanczos(Rule):
    """The full GGN by products.

    Args:
        probes: Random vectors; more make the estimate less noisy.
        steps: Of Lanczos for each probe; more make it less biased.
        batch_size: Data in a forward pass.
    """

    probes: int = 4
    steps: int = 60
    batch_size: int = 500

    def __post_init__(self) -> None:
        if self.probes < 1 or self.steps < 1:
            raise ValueError(f"Lanczos needs at least one probe and one step, got {self.probes} and {self.steps}.")

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "LanczosCurvature":
        sizes = {name: tensor.size for name, tensor in weight_tensors(model).items()}
        # As they are now: products are asked for later, when weights and noise may have moved.
        weights = {name: p.detach().clone() for name, p in model.named_parameters()}
        frozen = deepcopy(likelihood).requires_grad_(False)
        example = next(iter(weights.values()))
        signs = torch.randint(0, 2, (self.probes, sum(sizes.values())), generator=generator)
        total: Tensor = torch.zeros(())
        with evaluating(model):
            for inputs, targets in data.batches(self.batch_size):
                outputs = functional_call(model, held(model, differentiable=True), (inputs,))
                total = total + log_likelihood(likelihood, inputs, outputs, targets)

        def product(vector: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
            return ggn_product(model, weights, sizes, data, frozen, vector, self.batch_size)

        @torch.enable_grad()
        def form_of(pairs: Pairs, inputs: Tensor, targets: Tensor, scale: float) -> tuple[Tensor, Tensor]:
            form, outputs = ggn_form(model, sizes, frozen, pairs, inputs)
            fit = scale * log_likelihood(likelihood, inputs, outputs, targets)
            return scale * form, fit - scale * form / 2

        def forms(pairs: Pairs, share: float, generator: Generator | None) -> Iterator[tuple[Tensor, Tensor]]:
            for batch, scale in some_batches(data, self.batch_size, share, generator):
                yield form_of(pairs, *batch, scale)

        probes = (2.0 * signs - 1).to(example)
        return LanczosCurvature(product, forms, sizes, probes, self.steps, likelihood.scales(), total, str(self))

    def __str__(self) -> str:
        return f"full GGN by Lanczos ({self.probes} probe{'s' if self.probes > 1 else ''}, {self.steps} steps)"


@dataclass(frozen=True)
class Solution:
    """What Lanczos found under some precisions."""

    #: log|I + B| by probe.
    values: Float[Tensor, " probe"]
    gamma: dict[str, Float[Tensor, ""]]
    #: Δ^-½ (I + B)⁻¹ z over the number of probes, and Δ^-½ z: with them tr (I + B)⁻¹ ∂B ≈ Σ xᵀ ∂H z.
    pairs: Pairs


class LanczosCurvature(Curvature):
    """H as a product with vectors; what was last computed is kept, since γ comes with the log-determinant."""

    def __init__(
        self,
        product: Product,
        forms: Callable[[Pairs, float, Generator | None], Iterator[tuple[Tensor, Tensor]]],
        sizes: dict[str, int],
        probes: Float[Tensor, "probe p"],
        steps: int,
        scales: Float[Tensor, " k"],
        log_likelihood: Float[Tensor, ""],
        estimator: str,
    ) -> None:
        self.product, self.forms, self.sizes, self.probes, self.steps = product, forms, sizes, probes, steps
        self.scales, self.log_likelihood, self.estimator = scales, log_likelihood, estimator
        self._last: tuple[tuple[float, ...], Solution] | None = None

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        solution = self._solve(precisions)
        value, gamma = solution.values.mean(), solution.gamma
        # ∂ log|I + HΔ⁻¹| / ∂ log δ_l = −γ_l, hung on the value so that autograd finds it.
        for name, precision in precisions.items():
            value = value - gamma[name] * (precision.log() - precision.detach().log())
        if self.scales.requires_grad:
            # H ∝ 1/σ² when the noise is shared, so ∂/∂ log σ⁻² is the sum of all γ.
            if len(self.scales) > 1:
                raise ValueError(
                    "The Lanczos rule is differentiable in a noise that outputs share, not in one for each output. "
                    "Use Kfac or Ggn to learn it, or freeze log_noise."
                )
            scale = self.scales[0]
            value = value + sum(gamma.values()) * (scale.log() - scale.detach().log())
        if torch.is_grad_enabled() and self.log_likelihood.requires_grad:  # there may be more than weights to differentiate in
            for form, _ in self.forms(solution.pairs, 1.0, None):
                value = value + form - form.detach()
        return value

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        for _, surrogate in self.forms(self._solve(precisions).pairs, share, generator):
            yield surrogate

    def standard_error(self, precisions: Precisions) -> float:
        """Of the log-determinant, from the spread over probes; nan for a single one."""
        values = self._solve(precisions).values
        return float(values.std() / len(values) ** 0.5)

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        return self._solve(precisions).gamma

    def _solve(self, precisions: Precisions) -> "Solution":
        key = tuple(float(precisions[name].detach()) for name in self.sizes)
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        spread = [precisions[name].detach().to(self.probes).expand(size) for name, size in self.sizes.items()]
        root = torch.cat(spread).rsqrt()
        values, spent, pairs = [], torch.zeros_like(root), []
        for z in self.probes:
            Q, T = tridiagonalise(lambda v: root * self.product(root * v), z, self.steps)
            theta, S = torch.linalg.eigh(T)
            theta = theta.clamp(min=0)
            norm = z.norm()
            values.append((norm**2 * (S[0].square() * theta.log1p()).sum()).to(z))
            solution = norm * Q.T @ (S @ (S[0] / (1 + theta))).to(Q)
            spent += z * (z - solution) / len(self.probes)
            pairs.append((root * solution / len(self.probes), root * z))
        parts = spent.split(list(self.sizes.values()))
        gamma = {name: part.sum().clamp(min=0) for name, part in zip(self.sizes, parts, strict=True)}
        self._last = (key, Solution(torch.stack(values), gamma, pairs))
        return self._last[1]


def tridiagonalise(
    product: Product, start: Float[Tensor, " p"], steps: int
) -> tuple[Float[Tensor, "k p"], Float[Tensor, "k k"]]:
    """Lanczos with full reorthogonalisation: an orthonormal basis Q of the Krylov space, and T = Q B Qᵀ in double precision."""
    steps = min(steps, len(start))
    Q = [start / start.norm()]
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for step in range(steps):
        w = product(Q[-1])
        alphas.append((w @ Q[-1]).double())
        basis = torch.stack(Q)
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beta = w.norm()
        if step + 1 == steps or beta < 1e-6 * max(1.0, float(alphas[0].abs())):
            break
        betas.append(beta.double())
        Q.append(w / beta)
    T = torch.diag(torch.stack(alphas))
    if betas:
        off = torch.stack(betas[: len(alphas) - 1])
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
    return torch.stack(Q), T


def ggn_product(
    model: nn.Module,
    weights: dict[str, Tensor],
    sizes: dict[str, int],
    data: DataSource,
    likelihood: Likelihood,
    vector: Float[Tensor, " p"],
    batch_size: int,
) -> Float[Tensor, " p"]:
    """H v = Σ_n J_nᵀ L_n J_n v, over all the data."""
    fixed = {name: weight for name, weight in weights.items() if name not in sizes}
    chosen = {name: weights[name] for name in sizes}
    pieces = zip(sizes, vector.split(list(sizes.values())), strict=True)
    tangent = {name: piece.view_as(chosen[name]) for name, piece in pieces}
    total = torch.zeros_like(vector)
    root = likelihood.scales().detach().sqrt()[:, None, None, None]
    with evaluating(model):
        for inputs, _ in data.batches(batch_size):

            def outputs_at(tensors: dict[str, Tensor], inputs: Tensor = inputs) -> Tensor:
                found: Tensor = functional_call(model, {**fixed, **tensors}, (inputs,))
                return found

            outputs, Jv = jvp(outputs_at, (chosen,), (tangent,))[:2]
            columns = likelihood.fisher_columns(outputs) * root.to(outputs)
            LJv = torch.einsum("kvnc,kvn->nc", columns, torch.einsum("kvnc,nc->kvn", columns, Jv))
            (pulled,) = vjp(outputs_at, chosen)[1](LJv)
            total += torch.cat([pulled[name].flatten() for name in sizes])
    return total


def ggn_form(
    model: nn.Module, sizes: dict[str, int], likelihood: Likelihood, pairs: Pairs, inputs: Tensor
) -> tuple[Float[Tensor, ""], Float[Tensor, "n c"]]:
    """Σ xᵀ H z over pairs for one batch, and its outputs; differentiable in what the forward pass depends on beside weights."""
    fixed = held(model, differentiable=True)
    chosen = {name: fixed.pop(name) for name in sizes}

    def outputs_at(tensors: dict[str, Tensor]) -> Tensor:
        found: Tensor = functional_call(model, {**fixed, **tensors}, (inputs,))
        return found

    def along(vector: Float[Tensor, " p"]) -> tuple[Tensor, Tensor]:
        pieces = zip(sizes, vector.split(list(sizes.values())), strict=True)
        found = jvp(outputs_at, (chosen,), ({name: piece.view_as(chosen[name]) for name, piece in pieces},))
        return found[0], found[1]

    total: Tensor = torch.zeros(())
    outputs: Tensor = torch.zeros(())
    with evaluating(model):
        for x, z in pairs:
            outputs, Jx = along(x)
            _, Jz = along(z)
            columns = likelihood.fisher_columns(outputs) * likelihood.scales().sqrt()[:, None, None, None].to(outputs)
            total = total + (torch.einsum("kvnc,nc->kvn", columns, Jx) * torch.einsum("kvnc,nc->kvn", columns, Jz)).sum()
    return total, outputs
