"""Invariant weights by variational inference (van der Ouderaa and van der Wilk 2022), as rows of a file.

A shallow network whose filters are turned, shifted and scaled, and its hidden units averaged over that. Both layers have a
posterior; filters, map, spreads and extents follow the gradient of one bound. The same model sees digits as they are, turned by
up to 90° or 180°, shifted and scaled. Beside it stands maximum likelihood, under which small extents vanish.

The bound has several maxima in the extents. So there are several starts, little of everything and much of one kind, and what
counts is the run of highest bound (`filter_table.py`); test data choose nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn

from papers import lila
from papers.rows import Figures, Options, check_names, kept, refuse_partial, whole_numbers
from symbayes.data.source import as_source
from symbayes.data.task import Pair, Task
from symbayes.groups.lie import LieGroup, affine2d
from symbayes.invariance.filters import FilterBank
from symbayes.layout import hyperparameters
from symbayes.likelihoods.classes import Categorical
from symbayes.posterior.families import MeanField
from symbayes.posterior.functional import outputs_under
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Augerino
from symbayes.training.checkpoint import Checkpoint
from symbayes.training.elbo import Elbo
from symbayes.training.fit import learn
from symbayes.training.optimiser import PLAIN
from symbayes.training.result import Result
from symbayes.training.trainer import Objective, Problem, Schedule

#: How images are transformed, by task and name. Digits are 8 × 8 in a field of 12 × 12, those of MNIST 20 × 20 in 28 × 28.
VERSIONS: dict[str, dict[str, dict[str, Any]]] = {
    "upright-digits": {**lila.VERSIONS, "translated": {"translation": 2.0}, "scaled": {"scale": 1.5}},
    "mnist": lila.VERSIONS,
}
METHODS = ("elbo", "likelihood")
#: First extents, in units of the generators, where they are not `_LITTLE`.
STARTS: dict[str, dict[str, float]] = {
    "small": {},
    "turned": {"rotation": 2.6},
    "shifted": {"translation": 1 / 3},
    "scaled": {"scale": 0.4},
}
_LITTLE = 0.1
#: Where likelihood is maximised: the learning rate of extents, and the precision of a prior that is as good as none.
_LIKELIHOOD_RATE, _FLAT = 0.02, 1e-3
#: Draws of weights that predictions are averaged over, and test images at once.
_DRAWS, _AT_ONCE = 32, 500
#: Filters that are kept to be drawn, and the number that stands for the largest value of a filter.
_SHOWN, LARGEST = 3, 99


@dataclass(frozen=True)
class Row:
    """One training run."""

    task: str
    version: str
    size: int
    method: str
    start: str
    seed: int


@dataclass(frozen=True)
class Settings:
    """What all runs of a task have in common.

    Args:
        width: Filters.
        samples: Transformations of each.
        epochs: Passes over the data.
        batch_size: Data in a step.
        learning_rate: Of the weights, at the start.
        spread_rate: Of the spread, relative to that of the weights.
        extent_rate: Of the extents, by the bound.
        warm_up: Share of the epochs in which the divergence is let in, and extents rest.
        device: Where to compute.
    """

    width: int = 48
    samples: int = 8
    epochs: int = 60
    batch_size: int = 100
    learning_rate: float = 0.02
    spread_rate: float = 10.0
    extent_rate: float = 0.1
    warm_up: float = 0.2
    device: str = "cpu"

    def described(self) -> Figures:
        """In plain numbers; where it was computed is kept elsewhere."""
        return {name: value for name, value in asdict(self).items() if name != "device"}

    def schedule(self, epochs: int) -> Schedule:
        """For so many epochs."""
        return Schedule(epochs, self.batch_size, self.learning_rate, warm_up=0.0)


#: By task.
SETTINGS = {
    "upright-digits": Settings(),
    "mnist": Settings(width=64, samples=12, batch_size=200, learning_rate=0.01, spread_rate=3.0, extent_rate=0.05),
}


def group() -> LieGroup:
    """Turns, shifts and scales, the same extent along both axes; nothing comes into a filter from outside."""
    return affine2d("translation", "rotation", "scale", padding="zeros").shared("translation").shared("scale")


def prepared(row: Row, whole: Task) -> Task:
    """The data of a row, on an empty ground that is zero; the embedded digits without the rim that nothing reaches."""
    task = whole.transformed(**VERSIONS[row.task][row.version])
    task = task if row.size == len(task.train[0]) else task.subset(row.size, row.seed)
    ground = torch.tensor(task.background).view(1, -1, 1, 1)
    rim = slice(2, -2) if row.task == "upright-digits" else slice(None)

    def moved(pair: Pair) -> Pair:
        return pair[0][:, :, rim, rim] - ground, pair[1]

    return replace(task, train=moved(task.train), test=moved(task.test), background=(0.0,))


def network(row: Row, task: Task, settings: Settings, generator: Generator) -> nn.Sequential:
    """The filter bank and the map behind it."""
    moves = group().starting(_LITTLE, **STARTS[row.start])
    bank = FilterBank(task.in_shape, settings.width, moves, settings.samples, seed=row.seed, generator=generator)
    classes = nn.Linear(settings.width, task.classes)
    bound = settings.width**-0.5
    with torch.no_grad():
        for parameter in classes.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
    return nn.Sequential(bank, classes)


def objective(method: str, settings: Settings) -> Objective:
    """What a method maximises."""
    if method == "elbo":
        return Elbo(MeanField(), annealing=settings.warm_up, spread_rate=settings.spread_rate, extent_rate=settings.extent_rate)
    return Augerino(strength=0.0, extent_rate=_LIKELIHOOD_RATE)


def run_row(row: Row, whole: Task, settings: Settings, folder: Path | None = None, options: Options | None = None) -> Figures:
    """Train one row and evaluate it on the whole test set: figures in plain numbers, with a few filters.

    Args:
        row: Which.
        whole: Its task, before it is transformed.
        settings: Of the experiment.
        folder: Where its training is kept; nowhere when None.
        options: Which say how often.
    """
    task = prepared(row, whole)
    generator = Generator().manual_seed(row.seed)
    device = torch.device(settings.device)
    model = network(row, task, settings, generator).to(device)
    prior = TensorwisePrior(model, 1.0 if row.method == "elbo" else _FLAT).to(device)
    problem = Problem(model, as_source(task.train, device), Categorical().to(device), prior)
    problem.check(settings.batch_size)
    result = _train(problem, row.method, settings, generator, partial(kept, folder, options))
    last = result.history[-1]
    found: Figures = {"plug_in_accuracy": _scores(model, _plug_in(model), task.test, device)["accuracy"]}
    if row.method == "elbo":
        drawn = result.posterior.sample(_DRAWS, generator=generator, antithetic=True)
        found |= {**_scores(model, drawn, task.test, device), "bound": result.log_evidence / row.size}
        found["effective"] = {name: round(value, 1) for name, value in result.evidence.effective.items()}
    else:
        found |= _scores(model, _plug_in(model), task.test, device)
    bank = model[0]
    assert isinstance(bank, FilterBank)
    return {
        **asdict(row),
        **found,
        "loss": last.loss,
        "extents": last.extents,
        "amounts": dict(zip(bank.orbit.names, bank.orbit.value.tolist(), strict=True)),
        "filters": _filters(model),
        "settings": settings.described(),
        "seconds": last.seconds,
    }


def _train(
    problem: Problem, method: str, settings: Settings, generator: Generator, keep: Callable[[str], Checkpoint | None]
) -> Result:
    """What training gives.

    Likelihood is maximised in the weights first, with extents at rest as long as the bound has them so: while nothing fits yet
    it has no use for what an extent takes away.
    """
    maximised, epochs = objective(method, settings), settings.epochs
    if method == "likelihood":
        extents = list(hyperparameters(problem.model).values())
        resting = round(settings.warm_up * epochs)
        for extent in extents:
            extent.requires_grad_(False)
        first = maximised.trainer(problem, settings.schedule(max(1, resting)), PLAIN)
        refuse_partial(learn(first, generator=generator, checkpoint=keep("first"), stoppable=True))
        for extent in extents:
            extent.requires_grad_(True)
        epochs = max(1, epochs - resting)
    trainer = maximised.trainer(problem, settings.schedule(epochs), PLAIN)
    return refuse_partial(learn(trainer, generator=generator, checkpoint=keep("last"), stoppable=True))


def _plug_in(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are, the posterior means, as one draw."""
    return {name: value.detach()[None] for name, value in model.named_parameters()}


@torch.no_grad()
def _scores(model: nn.Module, drawn: dict[str, Tensor], test: Pair, device: torch.device) -> dict[str, float]:
    """Test accuracy and negative log-likelihood of probabilities that are averaged over draws of weights."""
    correct, log_prob = 0.0, 0.0
    for inputs, targets in as_source(test, device).batches(_AT_ONCE):
        probabilities = outputs_under(model, drawn, inputs).double().softmax(-1).mean(0)
        correct += float((probabilities.argmax(1) == targets).sum())
        log_prob += float(probabilities.gather(1, targets[:, None]).log().sum())
    return {"accuracy": correct / len(test[1]), "nll": -log_prob / len(test[1])}


@torch.no_grad()
def _filters(model: nn.Sequential) -> list[list[list[int]]]:
    """The filters that matter most, |map| · |filter|: their first channel as whole numbers, so that they are short to keep."""
    bank, classes = model[0], model[1]
    assert isinstance(bank, FilterBank)
    assert isinstance(classes, nn.Linear)
    weight = bank.filters.weight
    importance = classes.weight.norm(dim=0) * weight.flatten(1).norm(dim=1)
    images = weight[importance.topk(min(_SHOWN, len(weight))).indices, 0]
    whole = (LARGEST * images / images.abs().amax((1, 2), keepdim=True).clamp(min=1e-12)).round().long()
    return whole.tolist()


def key(row: Figures) -> tuple[Any, ...]:
    """The order of rows, and what makes them the same run."""
    task, version, start = row["task"], list(lila.VERSIONS).index(row["version"]), list(STARTS).index(row["start"])
    return task, version, row["size"], METHODS.index(row["method"]), start, row["seed"]


def rows(lists: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """All combinations of tasks, versions, sizes, methods, starts and seeds.

    Raises:
        ValueError: If a name is not known, or a size or a seed is no number.
    """
    check_names(task=(lists["task"], list(VERSIONS)))
    for task in lists["task"]:
        known = {"versions": list(VERSIONS[task]), "methods": METHODS, "starts": list(STARTS)}
        check_names(**{what: (lists[what], names) for what, names in known.items()})
    sizes, seeds = (whole_numbers(name, lists[name]) for name in ("sizes", "seeds"))
    names = (lists["task"], lists["versions"], sizes, lists["methods"], lists["starts"], seeds)
    return (Row(*parts) for parts in product(*names))


def settings_of(row: Row, options: Options) -> Settings:
    """Those of its task, but for what a command asks for."""
    given = {name: value for name, value in options.asked.items() if value is not None}
    return replace(SETTINGS[row.task], device=options.device, **given)


def run(row: Row, whole: Task, options: Options, folder: Path) -> Figures:
    """`run_row` with these settings."""
    return run_row(row, whole, settings_of(row, options), folder, options)


_LISTS = {
    "task": ("upright-digits",),
    "versions": lila.VERSIONS,
    "sizes": ("1400",),
    "methods": METHODS,
    "starts": STARTS,
    "seeds": ("0",),
}
LISTS = {name: ",".join(values) for name, values in _LISTS.items()}
