"""The contract of training: a problem, checked once; an objective, which makes a trainer; one state, moved epoch by epoch.

The state is everything that training changes: weights, precisions, noise, extents, what optimisers remember, running factors,
random numbers and the position in the data. It can be written to a folder and read again, without pickle; training then goes on
as if it had not stopped.
"""

import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from math import cos, isnan, pi
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from symbayes.curvature.capture import Capture
from symbayes.curvature.check import Reference, check_capture, check_functional, check_outputs, reference_of
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.gradients import refuse_unused
from symbayes.data.folders import Contents, read_folder, write_folder
from symbayes.data.source import DataSource
from symbayes.data.storage import DAMAGE, error_words, parse_json
from symbayes.evidence.evidence import Evidence
from symbayes.layout import weights
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.posterior.posterior import Posterior
from symbayes.priors import Prior
from symbayes.processes import ALONE, Processes
from symbayes.training.optimiser import PLAIN, Optimiser
from symbayes.training.record import EvidenceRecord, Record

#: Examples of a result have together no more numbers than this, unless they are 4: a megabyte.
_MOST_NUMBERS = 2**18


@dataclass(frozen=True)
class Problem:
    """A model and everything that defines its evidence."""

    model: nn.Module
    data: DataSource
    likelihood: Likelihood
    prior: Prior
    #: Of torch.autocast, for steps by curvature alone; None for the precision of weights.
    precision: torch.dtype | None = None

    def examples(self, count: int = 4) -> Tensor:
        """The first inputs of a pass over the data; of large ones no more than 4, so that they can be saved."""
        found: list[Tensor] = []
        for inputs, _ in self.data.batches(count):
            found.append(inputs[: count - sum(map(len, found))])
            kept = min(count, max(4, _MOST_NUMBERS // max(1, inputs[0].numel())))
            if sum(map(len, found)) >= kept:
                break
        return torch.cat(found)[:kept].detach().clone()

    @torch.no_grad()
    def described(self, evidence: Evidence) -> EvidenceRecord:
        """Evidence in plain numbers, with the precisions and the noise it is of."""
        return EvidenceRecord(
            float(evidence.log_likelihood),
            float(evidence.log_prior),
            float(evidence.log_volume),
            float(evidence.total),
            evidence.estimator,
            {name: float(value) for name, value in self.prior.precisions().items()},
            {name: float(value) for name, value in evidence.effective.items()},
            self.likelihood.noise().tolist(),
            *(None if isnan(value) else value for value in (evidence.standard_error, evidence.slack)),
        )

    def check(self, batch_size: int, *, curvature: bool = True) -> float:
        """Refuse what cannot work, before training: shapes, labels, NaN, modules whose curvature cannot be captured.

        Args:
            batch_size: Data in a forward pass.
            curvature: Whether it is needed.

        Returns:
            The loss per datum of the model as it is, or of outputs that are zero, whichever is more.

        Raises:
            ValueError: If types do not fit; `check_capture`, data, likelihood and prior raise their own.
        """
        self.prior.check(self.model)
        weight = next(parameter for parameter in self.model.parameters() if parameter.requires_grad)
        capture = Capture(self.model) if curvature else None
        seen, total, of_nothing, moments = 0, 0.0, 0.0, torch.zeros(())
        with self.data.processes.together(), ExitStack() as evaluation, torch.no_grad():
            for inputs, targets in self.data.own_batches(batch_size):
                if inputs.is_floating_point() and inputs.dtype != weight.dtype:
                    raise ValueError(
                        f"Inputs and weights must be of one type, got {inputs.dtype} and {weight.dtype}. "
                        "Convert one: inputs.float(), or model.double()."
                    )
                if not seen:
                    reference = self._check_first(capture, inputs)
                    evaluation.enter_context(capture if capture is not None else evaluating(self.model))
                outputs = capture.forward(inputs) if capture is not None else self.model(inputs)
                check_outputs(outputs, len(inputs))
                if not seen and reference is not None:
                    reference.refuse_others(outputs)
                total += float(log_likelihood(self.likelihood, inputs, outputs, targets, self.data.number(seen)))
                if self.likelihood.has_scale:
                    moments = moments + _moments(self.likelihood.moments(outputs)[0].double(), targets.double())
                of_nothing += float(self.likelihood.log_prob(torch.zeros_like(outputs), targets).sum())
                seen += len(inputs)
        (moments,) = self.data.processes.sum([moments])
        totals = self.data.processes.sum([torch.tensor([total, of_nothing], dtype=torch.float64)])[0]
        if self.likelihood.has_scale and self.data.size > 1:
            _warn_of_scale(moments / self.data.size)
        return -float(totals.min()) / self.data.size

    def _check_first(self, capture: Capture | None, inputs: Tensor) -> Reference | None:
        if capture is not None:
            return check_capture(capture, inputs)
        reference = reference_of(self.model, inputs)
        with evaluating(self.model):
            refuse_unused(self.model, tuple(weights(self.model)), inputs)
        if reference is not None:
            check_functional(self.model, reference)
        return reference


#: How far from one the scale of targets may be, and from outputs their mean, before it is said aloud.
_ODD_SCALE = 30.0


def _moments(means: Float[Tensor, "n v"], targets: Float[Tensor, "n v"]) -> Float[Tensor, "3 v"]:
    """Sums of targets, of their squares, and of how far they are from what the network says."""
    return torch.stack([targets.sum(0), targets.square().sum(0), (targets - means).sum(0)])


def _warn_of_scale(moments: Float[Tensor, "3 v"]) -> None:
    """Say so where targets are of another size than outputs of a network are: to get there takes longer than most training."""
    mean, square, shift = moments
    spread = (square - mean.square()).clamp(min=0).sqrt()
    if ((spread > _ODD_SCALE) | ((spread > 0) & (spread < 1 / _ODD_SCALE)) | (shift.abs() > _ODD_SCALE)).any():
        worst = int(torch.maximum(spread.log().nan_to_num(neginf=0.0).abs(), shift.abs().log()).argmax())
        warnings.warn(
            "Networks and priors are made for targets of about mean 0 and standard deviation 1; output "
            f"{worst} has {float(mean[worst]):.3g} and {float(spread[worst]):.3g}, so that it may not be learned. "
            "Standardise targets, (y - y.mean(0)) / y.std(0), and scale predictions back.",
            stacklevel=2,
        )


#: Records, one for each epoch; and at the end the posterior of what was learned, to be computed when it is needed.
Training = Generator[Record, None, Callable[[], Posterior]]
#: Tensors, and what JSON can hold, by name.
StateDict = Mapping[str, Any]
#: Of a saved state: its version, and its files.
FORMAT, TENSORS, NUMBERS = 1, "state.safetensors", "state.json"


@dataclass(frozen=True)
class Schedule:
    """How long and how fast.

    Args:
        epochs: Passes over the data.
        batch_size: Data in a step.
        learning_rate: Of the weights; it falls to zero along a cosine. By Adam, matrices with more than 2000 features on both
            sides move at a third of it, or at a tenth where they break a symmetry that other paths keep.
        warm_up: Share of the epochs, the first ones, in which it rises from little, so that it may be higher.
    """

    epochs: int = 100
    batch_size: int = 250
    learning_rate: float = 6e-3
    warm_up: float = 0.1

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1 or not self.learning_rate > 0:
            raise ValueError(
                f"epochs and batch_size must be at least 1 and learning_rate positive; got {self.epochs}, {self.batch_size} "
                f"and {self.learning_rate}."
            )
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"warm_up must be a share of the epochs, at least 0 and below 1; got {self.warm_up}.")

    def rate_share(self, epoch: int) -> float:
        """The share of every learning rate that there is in an epoch, counted from 1."""
        risen = min(1.0, epoch / (1 + self.warm_up * self.epochs))
        return risen * (1 + cos(pi * (epoch - 1) / self.epochs)) / 2


@runtime_checkable
class Part(Protocol):
    """A part of a state, with torch's two methods."""

    def state_dict(self) -> StateDict:
        """Tensors and plain values, by name."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Become what `state_dict` gave."""


def copy_parts(parts: Mapping[str, Part]) -> dict[str, Any]:
    """What all parts have in their states, by part and name: copies, which do not move with them."""
    return {f"{part}.{name}": _copy(value) for part, own in parts.items() for name, value in own.state_dict().items()}


def restore_parts(parts: Mapping[str, Part], kept: StateDict) -> None:
    """Put parts back to what `copy_parts` gave."""
    for part, own in parts.items():
        prefix = f"{part}."
        # Copies again, since some keep what they are given.
        own.load_state_dict({n.removeprefix(prefix): _copy(v) for n, v in kept.items() if n.startswith(prefix)})


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else deepcopy(value)


@runtime_checkable
class CountsPasses(Protocol):
    """A module whose random draws follow from the number of its passes."""

    passes: int


@dataclass
class State:
    """Everything that training changes. It refers to the model, prior and likelihood of the problem, which move in place."""

    problem: Problem
    generator: torch.Generator
    #: Epochs that are done.
    epoch: int = field(default=0, kw_only=True)
    seconds: float = field(default=0.0, kw_only=True)

    def parts(self) -> dict[str, Part]:
        """What keeps a state of its own, by name."""
        return {"model": self.problem.model, "prior": self.problem.prior, "likelihood": self.problem.likelihood}

    def generators(self) -> dict[str, torch.Generator]:
        """Generators that training draws from, by name: those of torch itself, too, for dropout."""
        found = {"training": self.generator, "cpu": torch.default_generator}
        device = next(self.problem.model.parameters()).device
        if device.type == "cuda":
            found["cuda"] = torch.cuda.default_generators[device.index or 0]
        return found | {f"data {index}": own for index, own in enumerate(self.problem.data.generators())}

    def random_state(self) -> dict[str, Tensor]:
        """Where all generators are, by name."""
        return {name: generator.get_state() for name, generator in self.generators().items()}

    def load_random_state(self, random: Mapping[str, Tensor]) -> None:
        """Put generators to where `random_state` found them."""
        for name, generator in self.generators().items():
            generator.set_state(random[name].cpu())

    def numbers(self) -> dict[str, Any]:
        """Values of the state itself."""
        return {"epoch": self.epoch, "seconds": self.seconds}

    def load_numbers(self, numbers: Mapping[str, Any]) -> None:
        """Take the values that `numbers` gave."""
        self.epoch, self.seconds = int(numbers["epoch"]), float(numbers["seconds"])

    def state_dict(self) -> dict[str, Any]:
        """Copies of all tensors, and plain values, by part and name."""
        found: dict[str, Any] = {f"state.{name}": _copy(value) for name, value in self.numbers().items()}
        found |= copy_parts(self.parts())
        found |= {f"generators.{name}": value for name, value in self.random_state().items()}
        return found | {f"passes.{name}": module.passes for name, module in _counting(self.problem.model).items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Become the state that `state_dict` described.

        Raises:
            ValueError: If it is the state of another training.
        """
        by_part: dict[str, dict[str, Any]] = {}
        for name, value in state.items():
            part, _, key = name.partition(".")
            by_part.setdefault(part, {})[key] = value
        try:
            self.load_numbers(by_part["state"])
            for name, own in self.parts().items():
                own.load_state_dict(by_part.get(name, {}))
            self.load_random_state(by_part["generators"])
            for name, module in _counting(self.problem.model).items():
                module.passes = int(by_part["passes"][name])
        except (RuntimeError, *DAMAGE) as error:
            raise ValueError(
                f"The state must be that of a training of this model by the same objective and optimiser; it is not "
                f"({error_words(error)}). Build model, prior, likelihood and data as they were, and give the same settings."
            ) from error


S = TypeVar("S", bound=State)


def _counting(model: nn.Module) -> dict[str, CountsPasses]:
    return {name: module for name, module in model.named_modules() if isinstance(module, CountsPasses)}


class Trainer(ABC, Generic[S]):
    """How an objective trains a problem, over a state.

    Args:
        objective: What is maximised.
        problem: What is learned.
        schedule: How long and how fast.
        optimiser: How weights are moved.
    """

    #: Whether sums over data are shared out where several processes train; each computes all of them where not.
    shares: bool = False
    #: Those that train together.
    processes: Processes = ALONE

    def __init__(self, objective: "Objective", problem: Problem, schedule: Schedule, optimiser: Optimiser) -> None:
        self.problem, self.schedule, self.optimiser = problem, schedule, optimiser
        # The schedule first, since usual settings of the others follow from it.
        self.settings = {"schedule": repr(schedule), "objective": repr(objective), "optimiser": repr(optimiser)}

    @abstractmethod
    def check(self) -> float:
        """Refuse what cannot work, before time is spent; the loss per datum without training, as `Problem.check` gives it."""

    @abstractmethod
    def init(self, generator: torch.Generator) -> S:
        """The state before the first epoch; training draws from the generator."""

    @abstractmethod
    def epoch(self, state: S) -> Record:
        """Move the state by one epoch, and say what happened; the last one gives the evidence of the result."""

    def is_done(self, state: S) -> bool:
        """Whether there is no epoch left."""
        return state.epoch >= self.schedule.epochs

    def conclude(self, state: S) -> EvidenceRecord | None:
        """The evidence of what there is, where training is stopped before its end; None if it cannot be told.

        The state may be changed: what was only being tried is taken back.
        """
        return None

    @abstractmethod
    def finish(self, state: S) -> Callable[[], Posterior]:
        """After the last epoch: what gives the posterior, of the weights as they are now."""

    def save(self, state: S, folder: str | Path) -> None:
        """Write a state, with the settings it belongs to, as safetensors and JSON; an earlier one is replaced as a whole.

        Raises:
            TypeError: If a module keeps extra state that is neither a tensor nor plain.
        """
        write_folder(Path(folder), self.files(state))

    def files(self, state: S) -> dict[str, bytes | str]:
        """What `save` writes, by name."""
        values = state.state_dict()
        tensors = {name: value.contiguous() for name, value in values.items() if isinstance(value, Tensor)}
        plain = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        # Products of matrices are rounded by their layout in memory, too.
        strides = {n: v.stride() for n, v in values.items() if isinstance(v, Tensor) and not v.is_contiguous()}
        content = {"format": FORMAT, "settings": self.settings, "numbers": plain, "strides": strides}
        try:
            written = json.dumps(content, indent=1)
        except TypeError as error:
            raise TypeError(f"A state must be made of tensors, numbers and text to be saved; it is not ({error}).") from error
        return {TENSORS: save(tensors), NUMBERS: written}

    def load(self, folder: str | Path) -> S:
        """A state that was saved, for the objects of this trainer: the model takes its weights.

        Raises:
            FileNotFoundError: If there is none.
            ValueError: If it is damaged, or of another training.
        """
        folder = Path(folder)
        try:
            contents = read_folder(folder, (TENSORS, NUMBERS))
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"A folder with a saved state must hold {TENSORS} and {NUMBERS}; {folder} has no {error.args[0]}."
            ) from error
        except ValueError as error:
            raise damaged_state(folder, error) from error
        return self.parse(contents, folder)

    def parse(self, contents: Contents, folder: Path, generator: torch.Generator | None = None) -> S:
        """A state from the files of a folder; as `load`. Training draws from the generator, which is put to where it was."""
        tensors, numbers, given = _parse(contents, folder)
        for name, own in self.settings.items():
            if given.get(name) != own:
                raise ValueError(
                    f"The training in {folder} must go on with the {name} it began with, {given.get(name)}; got {own}. Give "
                    "the same, or name another folder for a new training."
                )
        state = self.init(torch.Generator() if generator is None else generator)
        state.load_state_dict({**numbers, **tensors})
        for part in (self.problem.model, self.problem.prior, self.problem.likelihood):
            for name, parameter in part.named_parameters():
                if not parameter.isfinite().all():
                    raise damaged_state(folder, ValueError(f"{name} must be finite"))
        return state


def damaged_state(folder: Path, error: Exception) -> ValueError:
    """What to raise where the files of a state are not what they should be."""
    return ValueError(f"The state in {folder} is damaged ({error_words(error)}). Copy it again, or train anew.")


def _parse(contents: Contents, folder: Path) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, str]]:
    """Tensors, plain values and settings."""
    try:
        # Evidences of what was never tried are infinite.
        content, tensors = parse_json(contents.files[NUMBERS], NUMBERS, finite=False), load(contents.files[TENSORS])
        if content["format"] != FORMAT:
            raise ValueError(f"it has format {content['format']}; this version reads format {FORMAT}")
        for name, strides in content["strides"].items():
            if sum((size - 1) * step for size, step in zip(tensors[name].shape, strides, strict=True)) >= tensors[name].numel():
                raise ValueError(f"the strides of {name} must be those of as many numbers as it has")  # before allocation
            tensors[name] = torch.empty_strided(tensors[name].shape, strides, dtype=tensors[name].dtype).copy_(tensors[name])
        return tensors, dict(content["numbers"]), dict(content["settings"])
    except (SafetensorError, RuntimeError, *DAMAGE) as error:
        raise damaged_state(folder, error) from error


@dataclass(frozen=True)
class Objective(ABC):
    """What training maximises, as frozen settings."""

    def usual_optimiser(self, problem: Problem) -> Optimiser:
        """What moves weights where nothing else is asked for."""
        return PLAIN

    @abstractmethod
    def trainer(self, problem: Problem, schedule: Schedule, optimiser: Optimiser | None = None) -> Trainer[Any]:
        """What trains a problem by this objective.

        Args:
            problem: What is learned.
            schedule: How long and how fast.
            optimiser: How weights are moved; `usual_optimiser` when None.

        Raises:
            ValueError: If they do not go together.
        """


def train(
    problem: Problem,
    objective: Objective,
    schedule: Schedule,
    optimiser: Optimiser | None = None,
    *,
    generator: torch.Generator,
) -> Training:
    """Weights and, unless the objective keeps them, precisions, noise and extents together; a record after every epoch.

    Returns:
        A generator of records, which returns what gives the posterior.

    Raises:
        NotFiniteError: If the loss stops being a number.
    """
    trainer = objective.trainer(problem, schedule, optimiser)
    state = trainer.init(generator)
    while not trainer.is_done(state):
        yield trainer.epoch(state)
    return trainer.finish(state)
