"""A temperature for Laplace's posterior, by the data that it was found from.

Predictive variances of a linearised posterior are far too large where blocks leave correlations between tensors out; and, in a
network that fits its data, even where nothing is left out: outputs of confident data have next to no curvature, so that almost
any output counts as likely. The covariance is T Σ, with the largest T ≤ 1 that passes a check: the posterior predicts the data
that it has seen as well as its mean does. No other data are needed.

1. *The check.* log E p(y | f) under N(f_n, T J_n Σ J_nᵀ) is less than log p(y | f_n) by at most `COST` nats per datum, one
   standard error of that mean included: few data must not pass by luck.
2. *Normal noise.* There it is known what a posterior that is right costs on the data it has seen: with s the eigenvalues of
   T L^½ J Σ Jᵀ L^½, residuals have lost s of their variance, and it is ½ Σ log(1 + s) − s (1 − s) / (1 + s). That is allowed,
   too, and one standard error.
3. *The scale.* With it T is at most T₀ = γ / tr HΣ, since an exact posterior has Σ_n tr L_n J_n Σ J_nᵀ = tr H (H + Δ)⁻¹ = γ.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.ggn import Product, products_of
from symbayes.curvature.krylov import tridiagonalise
from symbayes.data.source import Batch, DataSource
from symbayes.errors import NotFiniteError
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.predict import NormalOutputs, linearised, prediction_of

#: What uncertainty may cost on data that were seen, in nats per datum.
COST = 0.001
#: Temperatures, from the highest down; the last is as good as none, and still gives densities.
TEMPERATURES = tuple(2.0 ** (-step / 2) for step in range(41))
#: Data that are looked at: at most so many, and at least so few; between them, as many as have Jacobians of so many numbers,
#: and covariances that are decomposed in eight times as many operations.
MOST, FEWEST, NUMBERS = 500, 32, 2**26
#: Outputs of a datum up to which their covariances are formed; a decoder has one for every token and word.
_MOST_OUTPUTS = 1024
#: Random vectors for T₀, products for each, and data in a forward pass.
_PROBES, _STEPS, _AT_ONCE = 4, 20, 500


def copied(model: nn.Module) -> nn.Module:
    """A copy of a model, where there can be one: the model may be moved or trained on before the posterior is asked for."""
    try:
        return deepcopy(model)
    except (RuntimeError, TypeError):  # torch copies leaves alone, and users keep what they like in modules
        return model


def tempered_posterior(
    find: Callable[[], Posterior],
    model: nn.Module,
    likelihood: Likelihood,
    data: DataSource,
    precisions: Mapping[str, Tensor],
) -> Posterior:
    """What `find` gives, at its temperature; as it is, and saying so, where a model cannot be linearised or is too large."""
    posterior = find()
    try:
        return tempered(posterior, model, likelihood, data, precisions)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotFiniteError):  # whoever asks for a linearised prediction is told why
        return replace(posterior, kind=f"{posterior.kind}, no temperature found")


@torch.no_grad()
def tempered(
    posterior: Posterior,
    model: nn.Module,
    likelihood: Likelihood,
    data: DataSource,
    precisions: Mapping[str, Tensor],
    *,
    generator: Generator | None = None,
) -> Posterior:
    """The same with the temperature that its data say.

    It costs Jacobians of at most 500 data; with normal noise 84 products with H as well, of two gradients each.

    Args:
        posterior: Of Laplace's kind, around a mode.
        model: Whose weights it is of.
        likelihood: Of targets given outputs.
        data: Those that the posterior was found from.
        precisions: δ by tensor.
        generator: Chooses data and probes; seeded with 0 when None.

    Raises:
        RuntimeError: If torch cannot differentiate the model datum by datum, or a datum has very many outputs.
        NotFiniteError: If outputs or their variances are not finite.
    """
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    likelihood, plain = deepcopy(likelihood).requires_grad_(False), replace(posterior, temperature=1.0)
    inputs, targets = _some(model, plain, data, generator)
    with evaluating(model):
        count = model(inputs[:2]).shape[-1]  # models may drop the axis of a single datum
        if count > _MOST_OUTPUTS:
            raise RuntimeError(f"A temperature is found for up to {_MOST_OUTPUTS:,} outputs of a datum; there are {count:,}.")
        outputs = linearised(model, plain, inputs)
    highest = 1.0
    if likelihood.is_normal:
        highest = min(1.0, matched_scale(plain, model, likelihood, data, precisions, generator=generator))
    found = highest * TEMPERATURES[-1]
    for temperature in TEMPERATURES:
        if passes(outputs, targets, likelihood, highest * temperature):
            found = highest * temperature
            break
    return replace(plain, temperature=found)


def passes(outputs: NormalOutputs, targets: Tensor, likelihood: Likelihood, temperature: float) -> bool:
    """Whether data that were seen are predicted as well with this much uncertainty as without, but for what it must cost."""
    scaled = NormalOutputs(outputs.mean, temperature * outputs.covariance)
    generator = torch.Generator().manual_seed(0)
    sure = likelihood.log_prob(outputs.mean, targets).double()
    cost = sure - prediction_of(scaled, likelihood, "", 128, generator).log_prob(targets).double()
    if not likelihood.is_normal:
        return float(cost.mean()) + _standard_error(cost) <= COST
    s = _leverages(scaled, likelihood)
    expected = (s.log1p() - s * (1 - s).clamp(min=0) / (1 + s)).sum(1) / 2
    beyond = cost - expected
    return float(beyond.mean()) - _standard_error(beyond) <= COST


def _standard_error(values: Float[Tensor, " n"]) -> float:
    """Of their mean; nothing is known of it by a single one."""
    return float(values.std()) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _leverages(outputs: NormalOutputs, likelihood: Likelihood) -> Float[Tensor, "n c"]:
    """Eigenvalues of L^½ V L^½, for every datum."""
    mean = outputs.mean.double()
    columns = likelihood.fisher_columns(mean) * likelihood.scales().to(mean).sqrt()[:, None, None, None]
    rows = columns.flatten(0, 1).movedim(0, 1)  # [n, v, c]
    return torch.linalg.eigvalsh(rows @ outputs.covariance.double() @ rows.mT).clamp(min=0)


@torch.no_grad()
def matched_scale(
    posterior: Posterior,
    model: nn.Module,
    likelihood: Likelihood,
    data: DataSource,
    precisions: Mapping[str, Tensor],
    *,
    generator: Generator | None = None,
) -> float:
    """T₀ = γ / tr HΣ: 1 for the exact posterior of the linearised model, and 1 / c for c times its covariance.

    With Σ = L Lᵀ and M = Lᵀ (H + Δ) L it is tr Lᵀ H L M⁻¹ over tr Lᵀ H L, both from the same random signs.
    """
    products = products_of(_at(model, posterior), data, likelihood, _AT_ONCE)
    delta = products.expand(precisions)

    def root(vector: Float[Tensor, " p"], *, transposed: bool = False) -> Float[Tensor, " p"]:
        given = {name: part.view_as(posterior.mean[name]) for name, part in products.split(vector).items()}
        found: dict[str, Tensor] = {}
        for members, spread in posterior.parts:
            joined = members.join(given)[None]
            found |= members.split((spread.root_transposed(joined) if transposed else spread.root(joined))[0])
        return torch.cat([found[name].flatten() for name in products.sizes])

    def fisher(vector: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        return root(products.product(root(vector)), transposed=True)

    total: Product = lambda vector: fisher(vector) + root(delta * root(vector), transposed=True)  # noqa: E731
    exact, claimed = 0.0, 0.0
    for z in products.signs(_PROBES, generator):
        Hz = fisher(z)
        exact += float(Hz.double() @ tridiagonalise(total, z, _STEPS).solution().double())
        claimed += float(Hz.double() @ z.double())
    # With few random vectors the first may come out below zero, and says nothing then.
    return exact / claimed if min(exact, claimed) > 0 else 1.0


def _at(model: nn.Module, posterior: Posterior) -> nn.Module:
    """The model at the mean: itself, or a copy where it was trained on."""
    own = dict(model.named_parameters())
    if all(torch.equal(own[name], value.to(own[name])) for name, value in posterior.mean.items()):
        return model
    copy = deepcopy(model)
    for name, value in posterior.mean.items():
        copy.get_parameter(name).copy_(value)
    return copy


def _some(model: nn.Module, posterior: Posterior, data: DataSource, generator: Generator) -> Batch:
    """Data drawn at random, as many as there may be."""
    inputs: list[Tensor] = []
    targets: list[Tensor] = []
    most = MOST
    for x, y in data.batches(MOST, generator=generator):
        if not inputs:
            with evaluating(model):
                c = model(x[:2]).shape[1]
            most = max(FEWEST, min(MOST, NUMBERS // (c * max(1, posterior.size, c**2 // 8))))
        inputs.append(x)
        targets.append(y)
        if sum(map(len, inputs)) >= most:
            break
    return torch.cat(inputs)[:most], torch.cat(targets)[:most]
