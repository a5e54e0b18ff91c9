"""The full GGN by products with vectors, preconditioned by blocks or not.

With B = Δ^-½ H Δ^-½ and random signs z, k steps of Lanczos give a k × k tridiagonal T with

    log|I + B| ≈ mean ‖z‖² e₁ᵀ log(I + T) e₁                  (I + B)⁻¹ z ≈ ‖z‖ Q (I + T)⁻¹ e₁

(Ubaru, Chen and Saad 2017). The second gives the effective parameters of every tensor from the same vectors:
γ_l = mean z_lᵀ (z − (I + B)⁻¹ z)_l. Correlations between layers are kept, at any size; a product costs about two gradients.

With K the curvature of another rule as blocks, K + Δ = U diag(λ + δ) Uᵀ and S = diag(λ + δ)^-½, everything is asked of

    M = S Uᵀ (H + Δ) U S,        which is the identity where K is right.

Random signs z in the eigenbasis, and k steps of Lanczos, give the log-determinant and the effective parameters of every tensor:

    log|I + HΔ⁻¹| = log|I + KΔ⁻¹| + tr log M ≈ log|I + KΔ⁻¹| + zᵀ log(M) z
    γ_l = P_l − δ_l tr_l (H + Δ)⁻¹ ≈ P_l − b_lᵀ (M⁻¹ b)_l,   b = S Δ^½ z

What is left out by stopping after k steps is told nearly, and bounded (`Krylov.log_form`). K is often far too large where
curvature is small, above all where data are few: all of it that is left of M lies at the left end of a long spectrum, where
steps are slow. So M is made with c K for both, with a c that puts log|I + c K Δ⁻¹| near log|I + HΔ⁻¹| or somewhat below it, as
far as a few steps tell how large that is.

γ starts from b rather than from z, so that in sum over all tensors it is a quadratic form, which a short solve gives
with an error of second order, from one side: the sum of γ comes down on the right one as k grows. K need not be subtracted as a
control variate: signs in its own basis give tr K (K + Δ)⁻¹ without error.

All of that holds for every K. So a block that is negligible against its precision, as of a path that is off, need not be
decomposed: in its place is the multiple of the identity that has its trace. That adds √2 ‖K_l‖ / δ_l to the standard error of a
probe, at most, which is less than √(2 ε) with ε the precision of numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, nan
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import Block, DiagonalBlock
from symbayes.curvature.decompositions import decompose_under
from symbayes.curvature.ggn import Pairs, Product, Products, products_of
from symbayes.curvature.kfac import Kfac, data_at_once
from symbayes.curvature.krylov import LogForm, tridiagonalise
from symbayes.curvature.rule import (
    BlockCurvature,
    Curvature,
    MonteCarloFisher,
    Precisions,
    Rule,
    effective_of,
)
from symbayes.data.source import DataSource
from symbayes.likelihoods.likelihood import Likelihood

Found = TypeVar("Found")


@dataclass(frozen=True)
class Lanczos(Rule):
    """The full GGN by products.

    Args:
        probes: Random vectors; more make the estimate less noisy.
        steps: Of Lanczos for each probe; more make it more exact.
        batch_size: Data in a forward pass; when None as many as suit the device.
    """

    probes: int = 4
    steps: int = 60
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.probes < 1 or self.steps < 1:
            raise ValueError(f"Lanczos needs at least one probe and one step, got {self.probes} and {self.steps}.")

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "LanczosCurvature":
        products = products_of(model, data, likelihood, self.batch_size or data_at_once(model, data))
        return LanczosCurvature(products, products.signs(self.probes, generator), self.steps, str(self))

    def __str__(self) -> str:
        return f"full GGN by Lanczos ({self.probes} probe{'s' if self.probes > 1 else ''}, {self.steps} steps)"


class LanczosCurvature(Curvature):
    """H as a product with vectors; what was last computed is kept, since γ comes with the log-determinant."""

    def __init__(self, products: Products, probes: Float[Tensor, "probe p"], steps: int, estimator: str) -> None:
        self.products, self.probes, self.steps = products, probes, steps
        self.log_likelihood, self.estimator = products.log_likelihood, estimator
        self._last: dict[str, tuple[tuple[float, ...], Any]] = {}

    def log_det(self, precisions: Precisions) -> Float[Tensor, ""]:
        value = self.log_dets(precisions).mean()
        scales = self.products.scales
        if not torch.is_grad_enabled():
            return value
        gamma = self.effective(precisions)
        # ∂ log|I + HΔ⁻¹| / ∂ log δ_l = −γ_l, hung on the value so that autograd finds it.
        for name, precision in precisions.items():
            value = value - gamma[name] * (precision.log() - precision.detach().log())
        if scales.requires_grad:
            # H ∝ 1/σ² when the noise is shared, so ∂/∂ log σ⁻² is the sum of all γ.
            if len(scales) > 1:
                raise ValueError(
                    "Curvature by products is differentiable in a noise that outputs share, not in one for each output. "
                    "Use Kfac or Ggn to learn it, or freeze log_noise."
                )
            value = value + sum(gamma.values()) * (scales[0].log() - scales[0].detach().log())
        if self.log_likelihood.requires_grad:  # there may be more than weights to differentiate in
            for form, _ in self.products.forms(self.pairs(precisions), 1.0, None):
                value = value + form - form.detach()
        return value

    def surrogates(
        self, precisions: Precisions, share: float = 1.0, generator: Generator | None = None
    ) -> Iterator[Float[Tensor, ""]]:
        for _, surrogate in self.products.forms(self.pairs(precisions), share, generator):
            yield surrogate

    def standard_error(self, precisions: Precisions) -> float:
        """By what differs between probes, and by what Lanczos left out, as far as that can be told."""
        values, errors, _ = self._logs(precisions).unbind()
        return float(torch.hypot(values.std() / len(values) ** 0.5, errors.mean())) if len(values) > 1 else nan

    def slack(self, precisions: Precisions) -> float:
        """How far the log-determinant may be off, at most, for these probes: by what Lanczos left out."""
        return float(self._logs(precisions)[2].mean())

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        # γ_l = P_l − δ_l tr_l (H + Δ)⁻¹
        held = sum(x.double() * z.double() for x, z in self.pairs(precisions)) * self.products.expand(precisions).double()
        return {name: (1 - part).sum().clamp(0, len(part)).to(self.probes) for name, part in self.products.split(held).items()}

    def log_dets(self, precisions: Precisions) -> Float[Tensor, " probe"]:
        """log|I + HΔ⁻¹| as each probe has it."""
        return self._logs(precisions)[0].to(self.probes)

    def _logs(self, precisions: Precisions) -> Float[Tensor, "three probe"]:
        """The same in double precision, and beside it how far it is off: as far as can be told, and at most."""
        return self._keep("both", precisions, self._solve)[0]

    def pairs(self, precisions: Precisions) -> Pairs:
        """Vectors with Σ x zᵀ ≈ (H + Δ)⁻¹."""
        return self._keep("both", precisions, self._solve)[1]

    def _keep(self, what: str, precisions: Precisions, find: Callable[[Precisions], Found]) -> Found:
        # A GPU is waited for once, not for each of them.
        key = tuple(torch.stack([precisions[name].detach().double() for name in self.products.sizes]).tolist())
        if what not in self._last or self._last[what][0] != key:
            self._last[what] = (key, find(precisions))
        found: Found = self._last[what][1]
        return found

    def _solve(self, precisions: Precisions) -> tuple[Float[Tensor, "three probe"], Pairs]:
        root = self.products.expand(precisions).rsqrt()
        forms, pairs = [], []
        for z in self.probes:
            space = tridiagonalise(lambda v: v + root * self.products.product(root * v), z, self.steps)
            forms.append(space.log_form(lowest=1.0))
            pairs.append((root * space.solution() / len(self.probes), root * z))
        return _stacked(forms), pairs


#: A share of K, and steps, by which it is told how large a share is to be taken: one that gives this much of what they find,
#: which so few find too large. They go from signs of their own, so that the share does not depend on the probes.
_PILOT_SHARE, _PILOT_STEPS, _ROUGHLY = 0.1, 6, 0.25
#: The least share of K: of one that is right, a smaller one would only make the spectrum longer.
_LEAST = 0.003
#: The estimate of a tensor with this many effective parameters has half the weight: probes tell γ_l up to about √(2 γ_l).
HALF_WEIGHT = 4.0


@dataclass(frozen=True)
class Preconditioned(Rule):
    """The full GGN by products, preconditioned by the blocks of another rule.

    Args:
        base: The other rule: `Kfac`, `Ekfac`, `Diagonal` or `Ggn(joint=False)`.
        steps: Products for each probe; more make it more exact. Six more find which share of the blocks is taken.
        probes: Random vectors; more make the estimate less noisy.
        probes_of_gamma: How many of them γ is found from, by as many products again; all when None.
        batch_size: Data in a forward pass of a product; when None as many as suit the device.
        comparable: Whether random vectors are signs of the weights rather than of eigenvectors: for one seed they are then
            the same for all weights and precisions, so that errors cancel in a difference; of each alone they are larger.
    """

    base: Rule = field(default_factory=lambda: Kfac(MonteCarloFisher()))
    steps: int = 20
    probes: int = 1
    probes_of_gamma: int | None = None
    batch_size: int | None = None
    comparable: bool = False

    def __post_init__(self) -> None:
        if min(self.probes, self.steps, self.probes if self.probes_of_gamma is None else self.probes_of_gamma) < 1:
            raise ValueError(
                "Preconditioned needs at least one probe, for γ, too, and one step; got "
                f"{self.probes}, {self.probes_of_gamma} and {self.steps}."
            )

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> "PreconditionedCurvature":
        with torch.no_grad():
            base = self.base.curvature(model, data, likelihood, generator=generator)
        if not isinstance(base, BlockCurvature):
            raise ValueError(
                f"The base of Preconditioned must give blocks, got {self.base}. Use Kfac, Ekfac, Diagonal or Ggn(joint=False)."
            )
        products = products_of(model, data, likelihood, self.batch_size or data_at_once(model, data))
        probes = products.signs(self.probes, generator)
        blocks, of_gamma = base.blocks, self.probes_of_gamma
        return PreconditionedCurvature(
            products, probes, self.steps, str(self), blocks, base.estimator, of_gamma, comparable=self.comparable
        )

    def __str__(self) -> str:
        many = f"{self.probes} probe{'s' if self.probes > 1 else ''}, {self.steps} steps"
        return f"full GGN by Lanczos ({many}), preconditioned by {self.base}"


class PreconditionedCurvature(LanczosCurvature):
    """H as a product with vectors, beside blocks that are close to it."""

    def __init__(
        self,
        products: Products,
        probes: Float[Tensor, "probe p"],
        steps: int,
        estimator: str,
        blocks: Mapping[str, Block],
        base: str,
        of_gamma: int | None = None,
        *,
        comparable: bool = False,
    ) -> None:
        super().__init__(products, probes, steps, estimator)
        self.of_gamma = of_gamma
        self.blocks = {name: blocks[name] for name in products.sizes}
        #: How the blocks were estimated, in words.
        self.base = base
        # Signs of the weights, not of eigenvectors, which have other signs and another order for blocks that hardly differ:
        # more noise, but the same for weights and precisions that are to be compared.
        self.comparable = comparable

    def effective(self, precisions: Precisions) -> dict[str, Float[Tensor, ""]]:
        """γ by tensor, never zero where the blocks have some.

        Of a tensor with few effective parameters signs say little; what all tensors have, relative to the blocks, says more.
        """
        found = super().effective(precisions)
        blocks = effective_of(self.blocks, {name: precision.detach() for name, precision in precisions.items()})
        by_blocks = torch.stack(list(blocks.values())).sum()
        ratio = torch.stack(list(found.values())).sum() / by_blocks.clamp(min=torch.finfo(by_blocks.dtype).tiny)
        few = HALF_WEIGHT / len(self.probes[: self.of_gamma])
        return {name: of * (found[name] + few * ratio) / (of + few) for name, of in blocks.items()}

    def _logs(self, precisions: Precisions) -> Float[Tensor, "three probe"]:
        return self._keep("logs", precisions, self._find_logs)

    def solve(self, vector: Float[Tensor, " p"], precisions: Precisions) -> Float[Tensor, " p"]:
        """(H + Δ)⁻¹ v, by as many steps as a probe takes."""
        near = self._near(precisions)
        product, S = self._scale(precisions, near)
        space = tridiagonalise(product, S * self._rotate(vector, near), self.steps)
        return self._rotate(S * space.solution(), near, back=True)

    def precondition(self, vector: Float[Tensor, " p"], precisions: Precisions, *, back: bool = False) -> Float[Tensor, " p"]:
        """S Uᵀ v, or U S v back: with weights U S u, the curvature in u is M, which is nearly the identity."""
        near = self._near(precisions)
        S = self._scale(precisions, near)[1]
        return self._rotate(S * vector, near, back=True) if back else S * self._rotate(vector, near)

    def pairs(self, precisions: Precisions) -> Pairs:
        return self._keep("pairs", precisions, self._pairs)

    def _find_logs(self, precisions: Precisions) -> Float[Tensor, "three probe"]:
        near = self._near(precisions)
        share, beside = self._keep("share", precisions, self._find_share)
        product, S = self._scale(precisions, near, share)
        lowest = self._lowest(precisions, S)
        found = _stacked([tridiagonalise(product, z, self.steps).log_form(lowest) for z in self._starts(near, self.probes)])
        found[0] += beside
        return found

    def _find_share(self, precisions: Precisions) -> tuple[float, float]:
        """The share c of K, and log|I + c K Δ⁻¹|."""
        near = self._near(precisions)
        ratios = torch.cat([block.eigenvalues for block in near.values()]).double() / self.products.expand(precisions)

        def beside(share: float) -> float:
            return float((share * ratios).log1p().sum())

        signs = 2.0 * torch.randint(0, 2, self.probes[:1].shape, generator=Generator().manual_seed(0)) - 1
        (pilot,) = self._starts(near, signs.to(self.probes))
        product, S = self._scale(precisions, near, _PILOT_SHARE)
        space = tridiagonalise(product, pilot, _PILOT_STEPS)
        (upper,), _ = space.rules(self._lowest(precisions, S), len(space.T))
        share = _solved(beside, _ROUGHLY * (beside(_PILOT_SHARE) + upper))
        return share, beside(share)

    def _lowest(self, precisions: Precisions, S: Float[Tensor, " p"]) -> float:
        """A number that no eigenvalue of M is below: M is at least S Δ S, since H has no negative eigenvalue."""
        return float((S.square() * self.products.expand(precisions)).min())

    def _pairs(self, precisions: Precisions) -> Pairs:
        near = self._near(precisions)
        product, S = self._scale(precisions, near, self._keep("share", precisions, self._find_share)[0])
        root = self.products.expand(precisions).sqrt()
        pairs = []
        probes = self._starts(near, self.probes[: self.of_gamma])
        for z in probes:
            b = S * root * z
            x = S * tridiagonalise(product, b, self.steps).solution() / len(probes)
            pairs.append((self._rotate(x, near, back=True), self._rotate(z / root, near, back=True)))
        return pairs

    def _near(self, precisions: Precisions) -> Mapping[str, Block]:
        """K as blocks with an eigenbasis: all decomposed at once, or multiples of the identity where they are negligible."""
        return self._keep("near", precisions, self._find_near)

    def _find_near(self, precisions: Precisions) -> dict[str, Block]:
        # In double precision: over millions of weights it would count if vectors were only nearly of length one.
        together = self.products.processes()
        left = decompose_under(self.blocks, precisions, vectors=True, dtype=torch.float64, processes=together)
        sizes = self.products.sizes
        even = {name: DiagonalBlock((self.blocks[name].trace() / sizes[name]).expand(sizes[name])) for name in left}
        return {name: even.get(name, block) for name, block in self.blocks.items()}

    def _starts(self, near: Mapping[str, Block], probes: Float[Tensor, "probe p"]) -> list[Float[Tensor, " p"]]:
        """Random vectors, in the eigenbasis."""
        return [self._rotate(probe, near) for probe in probes] if self.comparable else list(probes)

    def _scale(
        self, precisions: Precisions, near: Mapping[str, Block], share: float = 1.0
    ) -> tuple[Product, Float[Tensor, " p"]]:
        """v ↦ M v, and S, near a share of K."""
        delta = self.products.expand(precisions)
        S = (share * torch.cat([block.eigenvalues for block in near.values()]) + delta).rsqrt()

        def product(v: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
            Hv = self.products.product(self._rotate(S * v, near, back=True))
            return S * (self._rotate(Hv, near) + delta * S * v)

        return product, S

    def _rotate(self, vector: Float[Tensor, " p"], near: Mapping[str, Block], *, back: bool = False) -> Float[Tensor, " p"]:
        """Into the eigenbasis of all blocks, or back."""
        parts = self.products.split(vector)
        return torch.cat([block.turn(parts[name], back=back) for name, block in near.items()])


def _stacked(forms: Sequence[LogForm]) -> Float[Tensor, "three probe"]:
    """Values, errors and slacks, in double precision."""
    return torch.tensor([[getattr(form, name) for form in forms] for name in ("value", "error", "slack")], dtype=torch.float64)


def _solved(beside: Callable[[float], float], wanted: float) -> float:
    """The share at which a growing function has a value; one of the ends where it has none."""
    low, high = log(_LEAST), 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if beside(exp(middle)) < wanted else (low, middle)
    return exp(high)
