"""The predictive distribution: what is predicted, how it is drawn, and whether it is as sure as it should be.

"linearised" is f(x; W) ≈ f(x; mean) + J (W − mean), so f ~ N(f(x; mean), J Σ Jᵀ): the model that Laplace's method with the
generalised Gauss–Newton matrix has the posterior of (Immer, Korzepa and Bauer 2021). "sampled" draws weights and runs the model
as it is, which a variational posterior was made for. "plug-in" is the model at the mean.
"""

import warnings
from copy import deepcopy
from dataclasses import dataclass, field, replace
from math import log, pi
from textwrap import fill
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn
from torch.quasirandom import SobolEngine

from symbayes.curvature.evaluate import evaluating, naming_types
from symbayes.curvature.ggn import Jacobians
from symbayes.data.source import check_finite, chunks
from symbayes.errors import NotFiniteError
from symbayes.layout import call_with, held
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.posterior.functional import outputs_under
from symbayes.posterior.posterior import Posterior, Weights
from symbayes.scores import ConfidenceRow, CoverageRow
from symbayes.text import text_table


@dataclass(frozen=True)
class DrawnOutputs:
    """Outputs f of a model under several weights, all equally likely; one where the weights are known for sure."""

    values: Float[Tensor, "s n c"]


@dataclass(frozen=True)
class NormalOutputs:
    """f ~ N(mean, covariance) for every datum; only kept as such where the likelihood is normal, too."""

    mean: Float[Tensor, "n c"]
    covariance: Float[Tensor, "n c c"]


@dataclass(frozen=True, eq=False)
class Prediction:
    """The distribution of the targets of n data.

    Args:
        mean: E[y]: probabilities of classes or labels, or values.
        std: Standard deviation of a new y, its noise included; of the indicator of a class.
        epistemic: Standard deviation of E[y | f] under the posterior: what more data could take away.
        by: How it was found, in words.
        likelihood: p(y | f), as it was then.
        outputs: The distribution of f.
        plug_in: f at the mean of the weights, where that is another prediction.
    """

    mean: Float[Tensor, "n c"]
    std: Float[Tensor, "n c"]
    epistemic: Float[Tensor, "n c"]
    by: str
    likelihood: Likelihood = field(repr=False)
    outputs: DrawnOutputs | NormalOutputs = field(repr=False)
    plug_in: Float[Tensor, "n f"] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        """The number of data."""
        return len(self.mean)

    def __str__(self) -> str:
        n, c = self.mean.shape
        many = f"{n} prediction{'' if n == 1 else 's'} of {c} output{'' if c == 1 else 's'}"
        return f"{many} ({type(self.likelihood).__name__}), {self.by}"

    @torch.no_grad()
    def log_prob(self, targets: Tensor) -> Float[Tensor, " n"]:
        """log E p(y | f), for each datum: outputs of a datum are taken together, with their correlations."""
        targets = self._check_inputs(targets)
        if isinstance(self.outputs, DrawnOutputs):
            by_draw = torch.stack([self.likelihood.log_prob(outputs, targets) for outputs in self.outputs.values])
            return by_draw.logsumexp(0) - log(len(by_draw))
        noise = self.likelihood.moments(self.mean)[1].double()
        lower = torch.linalg.cholesky(self.outputs.covariance.double() + torch.diag_embed(noise))
        residual = (targets - self.mean).double()[:, :, None]
        squares = torch.linalg.solve_triangular(lower, residual, upper=False).square().sum((1, 2))
        logs = lower.diagonal(dim1=1, dim2=2).log().sum(1)
        return (-squares / 2 - logs - self.mean.shape[1] * log(2 * pi) / 2).to(self.mean)

    def metrics(self, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """Those of the likelihood, of the mean, and the negative log-probability ("nll"); for each datum.

        "nll plug-in" stands beside it where weights are uncertain: that of the model at their mean.
        """
        targets = self._check_inputs(targets)
        found = {**self.likelihood.metrics(self.likelihood.link(self.mean), targets), "nll": -self.log_prob(targets)}
        if self.plug_in is not None:
            found["nll plug-in"] = -self.likelihood.log_prob(self.plug_in, targets)
        return found

    def interval(self, level: float = 0.95) -> tuple[Float[Tensor, "n c"], Float[Tensor, "n c"]]:
        """Low and high ends between which a new y lies with this probability, for each output on its own.

        Of the normal distribution with this mean and std: exact where the prediction is linearised; where it is an
        average over draws of the weights, a normal approximation of their mixture.

        Raises:
            ValueError: If targets are no values, or the level is no probability.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie between 0 and 1, such as 0.95; got {level}.")
        return self.likelihood.interval(self.mean, self.std, level)

    def classes(self) -> Int[Tensor, "..."]:
        """The most probable class of each datum, or position.

        Raises:
            ValueError: If there are no classes to choose from.
        """
        return self.likelihood.classes(self.mean)

    def _check_inputs(self, targets: Tensor) -> Tensor:
        targets = targets.to(self.mean.device)
        self.likelihood.check(self.likelihood.link(self.mean), targets)
        return targets


def of_draws(values: Float[Tensor, "s n c"], likelihood: Likelihood, by: str) -> Prediction:
    """The average over draws of the outputs."""
    means, variances = likelihood.moments(values)
    between = means.var(0, unbiased=False)
    std = (variances.mean(0) + between).sqrt()
    return Prediction(means.mean(0), std, between.sqrt(), by, likelihood, DrawnOutputs(values))


def of_normal(outputs: NormalOutputs, likelihood: Likelihood, by: str) -> Prediction:
    """In closed form, where the likelihood is normal, too."""
    mean, noise = likelihood.moments(outputs.mean)
    between = outputs.covariance.diagonal(dim1=1, dim2=2).clamp(min=0)
    return Prediction(mean, (noise + between).sqrt(), between.sqrt(), by, likelihood, outputs)


WAYS = ("linearised", "sampled", "plug-in")
#: Jacobians are formed for so many data at a time, and for as many as stay below so many numbers.
_LINEARISED_AT_ONCE, JACOBIAN_BUDGET = 50, 2**24
#: Weights that are drawn together, and run together where that is faster.
_DRAWN_AT_ONCE = 16
#: Data, and targets for each, by which drawn weights are held against the linearised model; nats per datum that are far worse.
_COMPARED, _TARGETS, RUIN = 32, 8, 0.25


@torch.no_grad()
def predict(
    model: nn.Module,
    posterior: Posterior,
    likelihood: Likelihood,
    inputs: Tensor,
    *,
    by: str | None = None,
    samples: int = 128,
    batch_size: int = 250,
    generator: Generator | None = None,
) -> Prediction:
    """What a model predicts under a posterior of its weights, in evaluation mode.

    What is drawn, weights or normal outputs, is drawn once for all data: a datum is predicted the same whatever it is beside.

    Args:
        model: Any module that maps a batch of inputs to outputs [n, c].
        posterior: Of its weights; those that it has itself are not used.
        likelihood: Of targets given outputs.
        inputs: One or more, on the device of the model.
        by: "linearised", "sampled" or "plug-in"; as the posterior says when None.
        samples: Draws of weights, or of outputs where these are normal and the likelihood is not.
        batch_size: Data in a forward pass; fewer where their Jacobians would be too large.
        generator: For the draws; seeded with 0 when None, so that the same is predicted again.

    Raises:
        ValueError: If settings make no sense, or the posterior is of another model.
        RuntimeError: If the model cannot be linearised by torch, naming other ways.
        NotFiniteError: If inputs or outputs are not finite.
    """
    way = by or posterior.predicts
    if way not in WAYS:
        raise ValueError(f"by must be one of {', '.join(WAYS)}, got {way!r}.")
    if samples < 1 or batch_size < 1:
        raise ValueError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}.")
    _check(model, posterior, inputs)
    generator = generator if generator is not None else torch.Generator().manual_seed(0)
    likelihood = deepcopy(likelihood).requires_grad_(False)
    with evaluating(model):
        with naming_types(inputs, next(model.parameters()).dtype):
            _plugged_in(model, posterior.mean, inputs[:2], 2)
        if way == "plug-in" or not posterior.parts:
            return of_draws(_plugged_in(model, posterior.mean, inputs, batch_size)[None], likelihood, "plug-in")
        if way == "sampled":
            values = _finite(_predict_sampled(model, posterior, inputs, samples, batch_size, generator))
            found = of_draws(values, likelihood, f"sampled ({samples} draws; {posterior.words})")
            found = replace(found, plug_in=_plugged_in(model, posterior.mean, inputs, batch_size))
            if posterior.predicts == "linearised":
                _warn_of_ruin(model, posterior, likelihood, values, inputs)
            return found
        outputs = linearised(model, posterior, inputs, batch_size)
    found = prediction_of(outputs, likelihood, f"linearised ({posterior.words})", samples, generator)
    return replace(found, plug_in=outputs.mean)


def _check(model: nn.Module, posterior: Posterior, inputs: Tensor) -> None:
    if not len(inputs):
        raise ValueError("There must be at least one input to predict for, got none.")
    check_finite(inputs)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    odd = sorted(name for name, value in posterior.mean.items() if shapes.get(name) != tuple(value.shape))
    if odd:
        raise ValueError(
            f"The posterior must be of the weights of this model; it has {', '.join(odd)}, which the model has not, or in "
            "another shape. Pass the model that it was found for, or one of the same structure."
        )


def _plugged_in(model: nn.Module, mean: Weights, inputs: Tensor, batch_size: int) -> Float[Tensor, "n c"]:
    tensors = {**held(model, differentiable=False), **mean}
    # A single datum beside a copy: models may drop the axis of one.
    several = inputs if len(inputs) > 1 else inputs.repeat(2, *(1,) * (inputs.ndim - 1))
    outputs = torch.cat([call_with(model, tensors, part) for part in chunks(several, max(2, batch_size))])[: len(inputs)]
    if outputs.ndim != 2 or len(outputs) != len(inputs):
        raise ValueError(
            f"The model must give outputs [n, c], a row for each of the {len(inputs)} inputs; got shape {tuple(outputs.shape)}."
        )
    return _finite(outputs)


def _finite(outputs: Tensor) -> Tensor:
    if not outputs.isfinite().all():
        raise NotFiniteError(
            "Outputs of the model must be finite under its posterior, got NaN or infinity. Weights have probably diverged: fit "
            "again with a smaller learning rate, and check the scale of inputs."
        )
    return outputs


def _warn_of_ruin(
    model: nn.Module, posterior: Posterior, likelihood: Likelihood, values: Float[Tensor, "s n c"], inputs: Tensor
) -> None:
    """Warn where drawn weights predict far worse than the linearised model what the model at the mean expects."""
    few = inputs[:_COMPARED]
    sure = _plugged_in(model, posterior.mean, few, len(few))
    generator = torch.Generator().manual_seed(0)
    targets = [likelihood.sample(sure, generator=generator) for _ in range(_TARGETS)]
    try:
        beside = prediction_of(linearised(model, posterior, few), likelihood, "", 128, generator)
    except RuntimeError:  # it may be that torch cannot linearise it, which is why weights are drawn
        beside = of_draws(sure[None], likelihood, "")
    drawn = of_draws(values[:, : len(few)], likelihood, "")
    loss = float(torch.stack([beside.log_prob(y) - drawn.log_prob(y) for y in targets]).double().mean())
    if loss > RUIN:
        warnings.warn(
            f"Weights drawn from Laplace's posterior predict {loss:.2g} nats per datum worse than the linearised model: it "
            "is a posterior of that model, and the network is another one so far from its weights. Use by='linearised', "
            "or learn a posterior to draw from by sb.Elbo().",
            stacklevel=3,
        )


def _predict_sampled(
    model: nn.Module, posterior: Posterior, inputs: Tensor, samples: int, batch_size: int, generator: Generator
) -> Float[Tensor, "s n c"]:
    found = []
    for start in range(0, samples, _DRAWN_AT_ONCE):
        drawn = posterior.sample(min(_DRAWN_AT_ONCE, samples - start), generator=generator)
        passes = (outputs_under(model, drawn, part) for part in inputs.split(batch_size))
        found.append(torch.cat(list(passes), 1))
    return torch.cat(found)


def linearised(model: nn.Module, posterior: Posterior, inputs: Tensor, batch_size: int = _LINEARISED_AT_ONCE) -> NormalOutputs:
    """N(f(x; mean), T J Σ Jᵀ), in the mode that the model is in.

    Raises:
        RuntimeError: If torch cannot differentiate the model datum by datum, naming other ways.
        NotFiniteError: If means or covariances are not finite.
    """
    c = _plugged_in(model, posterior.mean, inputs[:2], 2).shape[1]
    at_once = max(1, min(batch_size, _LINEARISED_AT_ONCE, JACOBIAN_BUDGET // (c * max(1, posterior.size))))
    shapes = {name: shape for members, _ in posterior.parts for name, shape in members.shapes.items()}
    sizes = [posterior.mean[name].numel() for name in shapes]
    means, covariances = [], []
    jacobians = Jacobians(model, list(shapes), posterior.mean)
    for part in inputs.split(at_once):
        try:
            outputs, J = jacobians(part, differentiable=False)
        except RuntimeError as error:
            raise RuntimeError(
                f"torch could not differentiate the model datum by datum ({error}). Predict with by='sampled' or by='plug-in'."
            ) from error
        pieces = zip(shapes.items(), J.split(sizes, 2), strict=True)
        by_tensor = {name: piece.reshape(*piece.shape[:2], *shape) for (name, shape), piece in pieces}
        means.append(_finite(outputs))
        covariances.append(_finite(posterior.covariance(by_tensor)))
    return NormalOutputs(torch.cat(means), torch.cat(covariances))


def prediction_of(outputs: NormalOutputs, likelihood: Likelihood, by: str, samples: int, generator: Generator) -> Prediction:
    """Of normal outputs: in closed form where the likelihood is normal, too, else by draws of them."""
    if likelihood.is_normal:
        return of_normal(outputs, likelihood, by)
    return of_draws(_spread_out(outputs, samples, generator), likelihood, by)


def _spread_out(outputs: NormalOutputs, samples: int, generator: Generator) -> Float[Tensor, "s n c"]:
    """Draws of normal outputs, by points that are spread evenly (Sobol's, scrambled): averages have far less noise."""
    c = outputs.mean.shape[1]
    seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
    shares = SobolEngine(c, scramble=True, seed=seed).draw(samples, dtype=torch.float64)
    noise = torch.special.ndtri(shares.clamp(1e-9, 1 - 1e-9)).to(outputs.mean)
    # The symmetric root: it is there for a singular matrix, too, and unique.
    values, vectors = torch.linalg.eigh(outputs.covariance.double())
    root = (vectors * values.clamp(min=0).sqrt()[:, None, :]) @ vectors.mT
    return outputs.mean + torch.einsum("ncd,sd->snc", root.to(outputs.mean), noise)


#: Letters in a line of words.
_WIDTH = 110


@dataclass(frozen=True)
class Calibration:
    """How well a prediction knows what it does not know; prints as a table.

    Args:
        of: "classes", also for labels, or "values".
        by: How it was predicted, in words.
        num_data: Of the test.
        rows: Bins of confidence that are not empty, or levels of intervals.
        nll: Mean of −log p(y) per datum, outputs together.
        accuracy: As `CalibrationScores` has it, and the next three.
        nll_plug_in: The same of the model at the mean of its weights, where that is another prediction.
    """

    of: Literal["classes", "values"]
    by: str
    num_data: int
    rows: tuple[ConfidenceRow, ...] | tuple[CoverageRow, ...]
    nll: float
    accuracy: float | None = None
    ece: float | None = None
    brier: float | None = None
    rmse: float | None = None
    nll_plug_in: float | None = None

    def words(self) -> str:
        """Its scores in a line."""
        scores = {"accuracy": self.accuracy, "expected calibration error": self.ece, "Brier score": self.brier}
        scores |= {"root mean squared error": self.rmse, "nll": self.nll, "nll plug-in": self.nll_plug_in}
        known = ", ".join(f"{name} {value:.4g}" for name, value in scores.items() if value is not None)
        return f"{known}; {self.num_data} data, {self.by}"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and the cells of every row."""
        if self.of == "values":
            return ("level", "coverage"), [row.cells() for row in self.rows]
        return ("confidence", "of", "mean confidence", "accuracy"), [row.cells() for row in self.rows]

    def __str__(self) -> str:
        return f"{fill(self.words(), _WIDTH, break_on_hyphens=False)}\n{text_table(*self.table())}"


def calibration(prediction: Prediction, targets: Tensor, bins: int = 10) -> Calibration:
    """How far a prediction can be trusted, on data with known targets.

    Args:
        prediction: Of classes, labels or values. Every label is a prediction of its own, of confidence p or 1 − p; as are the
            values of several outputs.
        targets: As the likelihood has them.
        bins: Of confidence, equally wide, for classes and labels.

    Raises:
        ValueError: If there are no bins, targets do not fit, or the likelihood has no calibration.
    """
    if bins < 1:
        raise ValueError(f"There must be at least one bin of confidence, got {bins}.")
    prediction.likelihood.check_calibration()
    targets = targets.to(prediction.mean.device)
    nll = {name: float(values.double().mean()) for name, values in prediction.metrics(targets).items() if "nll" in name}
    found = prediction.likelihood.calibrate(prediction.mean, prediction.std, targets, bins)
    scores = (found.accuracy, found.ece, found.brier, found.rmse)
    return Calibration(found.of, prediction.by, len(prediction), found.rows, nll["nll"], *scores, nll.get("nll plug-in"))
