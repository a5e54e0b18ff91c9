"""Which frequency? A network of waves whose frequency ω² is learned: by the evidence, and by maximum likelihood.

The opening figure of a talk of van der Ouderaa, with data of our own: a smooth function of known frequency, and noise. Where ω
is too low the network cannot follow the data, where it is too high it can follow any. So the training loss should leave it
about where it starts, and the evidence find the frequency of the data, from below and from above. Weights W₂ and W₃ are
integrated over, by the evidence lower bound under a full covariance of each; precisions and noise are learned in closed form.
"""

from dataclasses import asdict
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from papers.demos.frequency_page import EVIDENCE, LIKELIHOOD, frequency_page, frequency_table, picture
from papers.demos.waves import Numbers, Settings, WaveNetwork, both, error, function, twin
from symbayes.cli.study import Cell, EachEpoch, Outcome, Study
from symbayes.curvature.diagonal import Diagonal
from symbayes.data.source import as_source
from symbayes.likelihoods.values import Gaussian
from symbayes.posterior.families import FullCovariance
from symbayes.posterior.functional import sampled_outputs
from symbayes.posterior.posterior import Posterior
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Augerino
from symbayes.training.elbo import Elbo
from symbayes.training.fit import learn as fit
from symbayes.training.optimiser import PLAIN
from symbayes.training.record import Record
from symbayes.training.trainer import Objective, Problem, Schedule

#: What the first or fixed frequency follows, as the task of a cell.
_AT = "ω² = "
#: Curves are drawn within ± this.
_SHOWN = 4.0
#: Of the prior by maximum likelihood, which is none but for weights that the data leave open.
_WEAK = 1e-4
#: Of weights, for predictions.
_DRAWS = 400


def study(settings: Settings) -> Study:
    """The network by evidence and by maximum likelihood from every start, at fixed frequencies, and its twin."""
    cells = [Cell(f"{_AT}{start}", "network", EVIDENCE, settings.seed, cost=3.0) for start in settings.starts]
    cells += [Cell(f"{_AT}{start}", "network", LIKELIHOOD, settings.seed, cost=1.0) for start in settings.starts]
    cells += [Cell(f"{_AT}{square}", "network", "fixed", settings.seed, cost=3.0) for square in settings.scan]
    cells += [Cell("all starts", "twin", "exact evidence", settings.seed, cost=0.5)]
    return Study(
        "Which frequency? Learned by the evidence",
        "NN(x) = W₃ relu(W₂ cos(ω² W₁ x + π/4)) on points of a smooth function with noise. Its frequency ω² is a "
        "hyperparameter, learned by gradient from several starts: by the evidence, which should lead all of them to about the "
        "same one, and by maximum likelihood, which should not. Beside it is a twin whose evidence is known in closed form.",
        cells,
        partial(work, settings),
        lambda outcomes: frequency_table(figures(settings, outcomes)),
        page=lambda outcomes: frequency_page(figures(settings, outcomes)),
        picture=lambda outcomes: picture(figures(settings, outcomes)),
    )


def work(settings: Settings, cell: Cell, each_epoch: EachEpoch) -> Outcome:
    """One cell; what it gave is in `found`."""
    if cell.model == "twin":
        found = twin(settings)
    else:
        found = learn(settings, cell.objective, float(cell.task.removeprefix(_AT)), each_epoch)
    return Outcome(cell, {}, found=found)


def figures(settings: Settings, outcomes: list[Outcome]) -> Numbers:
    """All that the picture, the page and the table are made of."""
    data, _ = both(settings)
    grid = _grid()
    return {
        "settings": asdict(settings),
        "reach": _SHOWN,
        "grid": grid[:, 0].tolist(),
        "function": function(settings, grid)[:, 0].tolist(),
        "data": torch.cat(data, 1).tolist(),
        "runs": [outcome.found for outcome in outcomes if outcome.cell.model == "network"],
        "twin": next(outcome.found for outcome in outcomes if outcome.cell.model == "twin"),
    }


def learn(settings: Settings, by: str, start: float, each_epoch: EachEpoch) -> Numbers:
    """One network: ω² at the end and over epochs, the evidence, errors, and what it predicts."""
    seen, fresh = both(settings)
    model = WaveNetwork(settings.width, settings.hidden, start, generator=torch.Generator().manual_seed(settings.seed))
    model.log_omega.requires_grad_(by != "fixed")
    likelihood = Gaussian(settings.noise)
    prior = TensorwisePrior(model, _WEAK if by == LIKELIHOOD else 1.0)
    problem = Problem(model, as_source(seen, torch.device("cpu")), likelihood, prior)
    schedule = Schedule(settings.epochs, settings.data, settings.learning_rate, warm_up=0.0)
    history = [start]

    def note(record: Record) -> None:
        history.append(model.square)
        each_epoch(record)

    generator = torch.Generator().manual_seed(settings.seed)
    trainer = _objective(settings, by).trainer(problem, schedule, PLAIN)
    result = fit(trainer, generator=generator, each_epoch=note)
    found = {"by": by, "start": start, "square": model.square, "history": [round(square, 4) for square in history]}
    if by != LIKELIHOOD:
        evidence = result.evidence
        found |= {"log_evidence": evidence.total, "estimator": evidence.estimator, "noise": evidence.noise}
    sampled = result.posterior if by != LIKELIHOOD else None
    for name, (inputs, targets) in (("training", seen), ("test", fresh)):
        found[name] = error(_predictions(model, sampled, inputs)[0], targets)
    for name, values in zip(("mean", "deviation"), _predictions(model, sampled, _grid()), strict=True):
        found[name] = [round(value, 4) for value in values[:, 0].tolist()]
    return found


def _objective(settings: Settings, by: str) -> Objective:
    if by == LIKELIHOOD:
        return Augerino(Diagonal(), strength=0.0, extent_rate=0.01)  # of which no evidence is taken
    # Weights fit something before ω moves, and follow each of its steps; those are larger than the ripples of the bound.
    return Elbo(
        FullCovariance(),
        samples=settings.samples,
        final_samples=512,
        annealing=0.1,
        spread_rate=3.0,
        extent_rate=0.1,
        hyper_every=min(50, max(1, settings.epochs // 5)),
    )


@torch.no_grad()
def _predictions(model: WaveNetwork, posterior: Posterior | None, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the function, under draws of weights; at the weights there are where there is no posterior."""
    if posterior is None:
        return model(inputs), torch.zeros_like(inputs)
    drawn = sampled_outputs(model, posterior, inputs, _DRAWS, generator=torch.Generator().manual_seed(0))
    return drawn.mean(0), drawn.std(0)


def _grid(count: int = 321) -> Float[Tensor, "g 1"]:
    return torch.linspace(-_SHOWN, _SHOWN, count)[:, None]
