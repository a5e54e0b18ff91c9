"""Whether the evidence can be trusted: from several starts to one answer, and whether it ranks networks as their test data do.

*Starts*: networks whose paths begin at equal scales with precisions of 1; with those that break a symmetry off; and with only
those on. *Ranks*: networks of many kinds by the evidence and by their test loss, with Spearman's correlation. All are trained
as `sb.fit` does by default. MAP, with all precisions at 1, is set beside.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import nn

from papers.data import load
from papers.ella.recipes import is_photographs, recipe
from papers.rows import refuse_partial
from symbayes.data.source import as_source
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.priors import Prior, TensorwisePrior, log_precision_of
from symbayes.training.fit import fit
from symbayes.training.result import Result
from symbayes.training.trainer import Problem

TASKS = ("upright-digits", "placed-digits", "quadrant-digits")
STARTS = ("equal", "breaking off", "only breaking on")
#: Passes over embedded digits, unless it is said how many.
_EPOCHS = 50
#: Paths where a layer has three to choose from: those of rotated images.
_TWO, _THREE = ("factored", "conv"), ("factored", "conv", "gconv")
#: Paths and widths of the networks that are ranked.
RANKED = tuple(
    product((("conv",), ("dense",), ("factored",), ("factored", "conv"), ("sparse_conv",), ("sparse", "sparse_conv")), (1, 2))
)
#: How small paths are that begin off.
_OFF = 0.03


@dataclass(frozen=True)
class Trained:
    """One network, in plain numbers, per datum."""

    task: str
    network: str
    start: str
    method: str
    seed: int
    log_evidence: float
    standard_error: float
    train_nll: float
    test_nll: float
    accuracy: float
    #: Equivariance error of every layer that had a choice, under the group of its most symmetric path.
    errors: tuple[float, ...]


def train(
    task: Task,
    paths: Sequence[str],
    width: int,
    start: str,
    method: str,
    epochs: int | None,
    seed: int,
    device: str = "cpu",
) -> Trained:
    """Train one network, for as long as the rows of ELLA's tables when epochs are None, and evaluate it."""
    generator, follows = torch.Generator().manual_seed(seed), not is_photographs(task.name)
    model = allconv(task, paths, width, relaxation=1.0, equivariant_stride=follows, generator=generator).to(device)
    prior = TensorwisePrior(model)
    begin(model, prior, start)
    problem = Problem(model, as_source(task.train, torch.device(device)), Categorical().to(device), prior)
    chosen = recipe(problem, task.name, method, epochs)
    result = fit(
        model, task.train, prior=prior, objective=chosen.objective, optimiser=chosen.optimiser, schedule=chosen.schedule,
        augment=FlipCrop() if chosen.augment else None, seed=seed, progress=False,
    )  # fmt: skip
    refuse_partial(result)
    return _described(result, task, f"{'+'.join(paths)}, width {width}", start, method, seed)


def _described(result: Result, task: Task, network: str, start: str, method: str, seed: int) -> Trained:
    size, evidence = result.num_data, result.evidence
    test = result.evaluate(task.test, by="plug-in")
    keeping = {row.layer: row.error for row in result.symmetries.rows if row.symmetry and not row.relaxes}
    layers = {name for name, layer in result.model.named_modules() if isinstance(layer, RelaxedLayer) and len(layer.paths) > 1}
    errors = tuple(float(error) for layer, error in keeping.items() if layer in layers and error is not None)
    return Trained(
        task.name, network, start, method, seed, result.log_evidence / size, (evidence.standard_error or 0.0) / size,
        -evidence.log_likelihood / size, test["nll"], test["accuracy"], errors,
    )  # fmt: skip


@torch.no_grad()
def begin(model: nn.Module, prior: Prior, start: str) -> None:
    """Bring a network whose paths are at equal scales to one of the starts.

    Raises:
        ValueError: If it is not one of them.
    """
    if start not in STARTS:
        raise ValueError(f"start must be one of {', '.join(STARTS)}, got {start!r}.")
    tensors, named = Layout.of(model).tensors, dict(model.named_parameters())
    with_choice = {tensor.layer for tensor in tensors.values() if tensor.relaxes}
    places = {(tensor.layer, tensor.path): tensor.relaxes for tensor in tensors.values() if tensor.layer in with_choice}
    for place, breaks in places.items():
        if start == "equal" or breaks == (start == "only breaking on"):
            continue
        members = [t for t in tensors.values() if (t.layer, t.path) == place]
        weights = [named[t.name] for t in members if t.kind == "weight"]
        for weight in weights:
            weight.mul_(_OFF ** (1 / len(weights)))
        begin_at = log_precision_of(weights)
        for tensor in members:
            prior.log_precision[prior.groups.index(prior.group_of[tensor.name])] = begin_at or 0.0


def starts(
    tasks: Sequence[Task],
    width: int,
    epochs: int | None,
    size: int | None,
    seeds: Sequence[int],
    device: str,
    say: Callable[[str], None],
) -> Iterator[Trained]:
    """Every start, and MAP beside them, on some of the data of each task, or all."""
    for whole, seed in product(tasks, seeds):
        usual = _EPOCHS if whole.name in TASKS else None
        task = whole if size is None else whole.subset(size, seed)
        paths = _THREE if "rotated" in task.name else _TWO
        for start, method in [*((start, "evidence") for start in STARTS), ("equal", "map")]:
            say(f"{task.name}, seed {seed}: {start}, {method}")
            yield train(task, paths, width, start, method, epochs or usual, seed, device)


def ranks(epochs: int, size: int, seed: int, say: Callable[[str], None]) -> Iterator[Trained]:
    """Networks of many kinds by the evidence, on three tasks."""
    for name in TASKS:
        task = load(name).subset(size, seed)
        for paths, width in RANKED:
            say(f"{name}: {'+'.join(paths)}, width {width}")
            yield train(task, paths, width, "equal", "evidence", epochs, seed)


def correlation(rows: Sequence[Trained]) -> float:
    """Spearman's, of the evidence and the test loss, which fall together: 1 where both rank alike."""
    from scipy.stats import spearmanr

    found = spearmanr([-row.log_evidence for row in rows], [row.test_nll for row in rows])
    return float(found.statistic)
