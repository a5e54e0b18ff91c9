"""The result of training: the model, its evidence, what was learned and how; saved without pickle."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from safetensors.torch import save
from torch import Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.rule import Rule
from symbayes.data.folders import write_folder
from symbayes.data.numbers import Numbers, first_weight
from symbayes.data.packed import Inputs
from symbayes.data.source import Data, inputs_for, source_for
from symbayes.data.storage import DAMAGE
from symbayes.equivariance import LayerSymmetry, measure_layers
from symbayes.errors import NoPosteriorError, NotFiniteError
from symbayes.evidence.by_class import ClassGradients, gradients_by_class
from symbayes.evidence.evidence import laplace_evidence
from symbayes.groups.group import Group
from symbayes.invariance.augmentation import LearnedAugmentation, learned_augmentation
from symbayes.invariance.extents import describe_extents
from symbayes.invariance.orbit_average import sample_orbits
from symbayes.layout import Layout, WeightTensor, weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood, is_registered
from symbayes.models import AllConv
from symbayes.posterior.posterior import Posterior, dump_posterior
from symbayes.posterior.predict import Calibration, Prediction, calibration, predict
from symbayes.priors import LayerwisePrior, PathwisePrior, Prior, ScalarPrior, TensorwisePrior
from symbayes.processes import all_processes
from symbayes.training.convergence import Convergence, Difference, difference, judge
from symbayes.training.hub import check_repo, push_folder
from symbayes.training.rebuild import describe_layers, model_words
from symbayes.training.record import (
    FILES,
    FORMAT,
    POSTERIOR,
    WEIGHTS,
    Decision,
    EvidenceRecord,
    HeldOut,
    LikelihoodSummary,
    ModelSummary,
    Record,
    Summary,
    written_records,
)
from symbayes.training.symmetries import Symmetries, symmetries

#: Where in what is saved examples are.
EXAMPLES, OUTPUTS = "examples:inputs", "examples:outputs"
#: Equivariance is measured on no fewer examples, unless there are fewer data; so many are shown.
_ENOUGH, _SHOWN = 16, 4
#: Numbers of the Jacobian of a datum with which a test set takes long to linearise.
_LONG = 2**22
#: Kinds that can be built again, by name.
PRIORS: dict[str, type[Prior]] = {kind.__name__: kind for kind in (ScalarPrior, LayerwisePrior, PathwisePrior, TensorwisePrior)}

_log = logging.getLogger("symbayes")


@dataclass(frozen=True, repr=False)
class Result:
    """A trained model and what its evidence says."""

    model: nn.Module
    likelihood: Likelihood
    prior: Prior
    history: tuple[Record, ...]
    num_data: int
    #: Some inputs, to show and to measure what was learned; None where there are none.
    examples: Tensor | None = None
    #: Finds the posterior of the weights, when it is first asked for; None where there is none.
    make_posterior: Callable[[], Posterior] | None = None
    #: What layers keep of their symmetries, where it was measured before and saved.
    measured: Mapping[str, LayerSymmetry] | None = None
    #: Whether training was stopped before its end.
    is_partial: bool = False
    #: log p(D) per datum of outputs that are zero, where it is known.
    floor: float | None = None

    @cached_property
    def posterior(self) -> Posterior:
        """The distribution of the weights.

        Raises:
            NoPosteriorError: If there is none, or the rule of the evidence gives none.
        """
        if self.make_posterior is None:
            raise NoPosteriorError(
                "This result has no posterior of its weights: it was saved without one, or made by hand. Fit again, or find "
                "one by sb.laplace_posterior and give it to dataclasses.replace(result, make_posterior=...); by='plug-in' "
                "predicts without."
            )
        return self.make_posterior()

    @property
    def evidence(self) -> EvidenceRecord:
        """The terms of the evidence at the weights and precisions that were kept."""
        return cast(EvidenceRecord, self.history[-1].evidence)

    @property
    def log_evidence(self) -> float:
        """log p(D), by the estimator that `evidence.estimator` names."""
        return self.evidence.total

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was tried in training, in order, and whether it was kept, by the evidence; empty where nothing was."""
        return tuple(record.decision for record in self.history if record.decision is not None)

    @cached_property
    def converged(self) -> Convergence:
        """Whether training has come to its end: true or false, with reasons."""
        return judge(self.history, self.num_data, is_partial=self.is_partial, floor=self.floor)

    def compare(self, other: "Result") -> Difference:
        """How much higher the log evidence is than that of another result on the same data, and whether that can be told.

        Raises:
            ValueError: If the two are of different numbers of data.
        """
        if self.num_data != other.num_data:
            raise ValueError(f"Both results must be of the same data; they are of {self.num_data:,} and {other.num_data:,}.")
        return difference(self.evidence, other.evidence)

    @cached_property
    def symmetries(self) -> Symmetries:
        """By layer and path: equivariance error and energy on the examples, prior precision, effective parameters, share."""
        tensors = Layout.of(self.model).tensors
        return symmetries(tensors, self.evidence.precision, self.evidence.effective, self._measure(tensors.values()))

    def _measure(self, tensors: Iterable[WeightTensor]) -> Mapping[str, LayerSymmetry]:
        """What layers with a symmetry are measured to keep of it, on the examples; nothing where these are too few."""
        if self.measured is not None:
            return self.measured
        groups: dict[str, dict[str, Group]] = {}
        for tensor in tensors:
            if tensor.group is not None:
                groups.setdefault(tensor.layer, {})[tensor.group.name] = tensor.group
        if self.examples is None or len(self.examples) < min(_ENOUGH, self.num_data) or not groups:
            return {}
        try:
            return measure_layers(self.model, self.examples, {name: list(some.values()) for name, some in groups.items()})
        except (RuntimeError, NotFiniteError, *DAMAGE) as error:
            _log.info("Equivariance was not measured: %s", error)
            return {}

    def augmentation(self) -> LearnedAugmentation:
        """The invariance that was learned, as an augmentation for any training pipeline.

        Raises:
            ValueError: If the model has neither extents nor probabilities, or has them more than once.
        """
        return learned_augmentation(self.model)

    def gradients_by_class(self, data: Data) -> ClassGradients:
        """Which classes want more of each invariance that was learned, and which less, by the evidence (`ClassGradients`).

        Args:
            data: What was learned from, of classes.

        Raises:
            ValueError: If the model has no extents that are learned, or targets are no classes, or too few of one.
        """
        if not isinstance(self.likelihood, Categorical):
            raise ValueError(f"Targets must be classes, as of Categorical; got {type(self.likelihood).__name__}.")
        return gradients_by_class(self.model, data, self.prior)

    def __repr__(self) -> str:
        """In a line: `symmetries`, `evidence` and `history` say the rest."""
        count, kind = sum(weight.numel() for weight in weights(self.model).values()), type(self.likelihood).__name__
        last = self.history[-1]
        epochs = f"stopped after {last.epoch} of {last.epochs} epochs" if self.is_partial else f"{last.epoch} epochs"
        return (
            f"Result({type(self.model).__name__} with {count:,} weights, {kind}, {self.num_data:,} data, {epochs}, "
            f"log evidence {self.log_evidence:.6g})"
        )

    def _repr_html_(self) -> str:
        doubts = "" if self.converged else f"<p><strong>{escape(str(self.converged))}</strong></p>"
        return f"<p>{escape(repr(self))}</p>{doubts}{self.symmetries._repr_html_()}{self.evidence._repr_html_()}"

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: what it was made of, with the posterior found."""
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        try:
            state["make_posterior"] = Known(self.posterior)
        except NoPosteriorError:
            state["make_posterior"] = None
        return state

    def predict(
        self,
        inputs: Numbers | Inputs | Data,
        by: str | None = None,
        samples: int = 128,
        batch_size: int = 250,
        only: Sequence[str] | None = None,
    ) -> Prediction:
        """What the model says of new inputs, with the uncertainty of its weights; the same every time.

        Args:
            inputs: As many as one likes, of any kind that `fit` takes, with targets, which are left aside, or without.
            by: "linearised", "sampled" or "plug-in"; when None the first for Laplace's posterior, the second for others.
            samples: Draws, as `sb.predict` takes them.
            batch_size: Data in a forward pass.
            only: Patterns of the tensors that are uncertain, such as ["head2*"]; all when None (`Posterior.only`).

        Raises:
            NoPosteriorError: If there is no posterior, and `by` is not "plug-in".
        """
        weight = cast(Tensor, first_weight(self.model))
        if by == "plug-in":
            known = Posterior({name: weight.detach() for name, weight in weights(self.model).items()}, (), "weights alone")
        else:
            known = self.posterior.like(weight)  # the model may have been moved since
            known = known if only is None else known.only(only)
        given = inputs_for(self.model, inputs)
        try:
            return predict(self.model, known, self.likelihood, given, by=by, samples=samples, batch_size=batch_size)
        except (RuntimeError, ValueError) as error:
            learned_on = tuple(self.examples.shape[1:]) if self.examples is not None else tuple(given.shape[1:])
            if tuple(given.shape[1:]) == learned_on:
                raise
            raise ValueError(
                f"Inputs must be a batch of data as in training, [n, {', '.join(map(str, learned_on))}]; the model does not "
                f"take {list(given.shape)} ({error}). For a single datum, inputs[None]."
            ) from error

    def evaluate(self, data: Data, batch_size: int = 500, by: str | None = None, samples: int = 128) -> dict[str, float]:
        """Mean metrics of the likelihood and negative log-likelihood per datum, on other data: those of `predict`.

        "nll" is that of the prediction, as in `calibration`; where weights are uncertain in it, "nll plug-in" is that of the
        model at their mean. By plug-in alone it takes a forward pass; linearised, a backward pass for every output.

        Args:
            data: Of any kind that `fit` takes.
            batch_size: Data in a forward pass.
            by: As in `predict`; when None, "plug-in" where there is no posterior, where torch cannot linearise the model, or
                where that would take long: where the Jacobian of a datum has more than 2²² numbers.
            samples: As in `predict`.
        """
        totals: dict[str, Tensor] = {}
        source = source_for(self.model, data)
        for inputs, targets in source.batches(batch_size):
            by = by or self._usual_way(inputs[:2])
            for name, values in self.predict(inputs, by, samples, batch_size).metrics(targets).items():
                totals[name] = totals.get(name, torch.zeros(())) + values.sum()
        return {name: float(total) / source.size for name, total in totals.items()}

    def _usual_way(self, inputs: Tensor) -> str:
        """How inputs are predicted where nothing is asked for, and always can be."""
        try:
            outputs = self.predict(inputs, "plug-in").mean.shape[1]
            if self.posterior.predicts == "linearised" and outputs * self.posterior.size > _LONG:
                return "plug-in"
            self.predict(inputs, samples=1)
        except (NoPosteriorError, RuntimeError, ValueError):
            return "plug-in"  # which says what is wrong with inputs, if they are
        return self.posterior.predicts

    def calibration(
        self,
        data: Data,
        by: str | None = None,
        samples: int = 128,
        batch_size: int = 250,
        only: Sequence[str] | None = None,
        bins: int = 10,
    ) -> Calibration:
        """Whether predictions on other data are as sure as they should be; `by` and what follows are as in `predict`.

        Raises:
            ValueError: If the likelihood has no calibration.
        """
        self.likelihood.check_calibration()
        source = source_for(self.model, data)
        inputs, targets = zip(*source.batches(batch_size), strict=True)
        return calibration(self.predict(torch.cat(inputs), by, samples, batch_size, only), torch.cat(targets), bins)

    @torch.no_grad()
    def compare_estimators(self, data: Data, rules: Mapping[str, Rule] | None = None, seed: int = 0) -> dict[str, float]:
        """The log evidence under several curvature rules; by default exact KFAC beside the full GGN by Lanczos.

        What an estimator charges can differ from the full GGN by a factor; this says by how much it does here.
        """
        chosen = rules or {"KFAC": Kfac(), "full GGN": Lanczos()}
        found = {}
        for name, rule in chosen.items():
            generator = torch.Generator().manual_seed(seed)
            evidence = laplace_evidence(self.model, data, self.likelihood, self.prior, rule=rule, generator=generator)
            found[name] = float(evidence.total)
        return found

    def save(self, folder: str | Path, calibration: Calibration | None = None, held_out: HeldOut | None = None) -> None:
        """Write weights.safetensors, result.json and history.jsonl; `load_result` reads them back.

        And posterior.safetensors, where there is a posterior, and seal.json, by which they are known to belong together. An
        earlier result in the folder is replaced as a whole: where there is no room, or the process is killed, it stays. The
        command `symbayes report` makes a page of them. Of processes that trained together the first writes, and others do not.

        Args:
            folder: Made if it is not there.
            calibration: What `calibration` gave, to be shown on the page.
            held_out: What `held_out` gave, to be shown there, too.

        Raises:
            OSError: If the folder cannot be written to.
            ValueError: If the likelihood or the prior is of a kind that could not be built again.
        """
        files = self.files(calibration, held_out)
        if not all_processes().is_first:
            return
        try:
            files[POSTERIOR] = dump_posterior(self.posterior)
        except NoPosteriorError:
            pass
        finally:  # whatever becomes of the posterior, the rest is kept
            write_folder(Path(folder), files, leaving_out=FILES)

    def push_to_hub(
        self,
        repo: str,
        calibration: Calibration | None = None,
        held_out: HeldOut | None = None,
        *,
        private: bool | None = None,
        examples: bool = False,
    ) -> str:
        """Save the result to a repository of the Hugging Face Hub, with a card; `sb.load_result("hf://owner/name")` reads it.

        Args:
            repo: "owner/name"; made if it is not there. An earlier result in it is replaced, in one commit.
            calibration: As in `save`.
            held_out: As in `save`; the card has it.
            private: Whether a new repository is; as the owner's usual ones are when None.
            examples: Whether the training inputs that the result keeps go along, up to 64. Who loads it is then sure that the
                model computes the same, and others can see them.

        Returns:
            Where it is.

        Raises:
            ImportError: If the package huggingface_hub is not there.
            ValueError: If that is no repository; and as in `save`.
        """
        check_repo(repo)
        known = self._measure(Layout.of(self.model).tensors.values())
        shared = self if examples else replace(self, examples=None, measured=known)
        with TemporaryDirectory() as folder:
            shared.save(folder, calibration, held_out)
            return push_folder(Path(folder), repo, self.summary(calibration, held_out), self.history, private)

    def files(self, calibration: Calibration | None = None, held_out: HeldOut | None = None) -> dict[str, bytes | str]:
        """What `save` writes, by name, but for the posterior."""
        if not is_registered(self.likelihood):
            raise ValueError(
                f"To be saved, a result must have a likelihood that can be found by its name; {type(self.likelihood).__name__} "
                "cannot. Decorate the class with symbayes.likelihoods.register."
            )
        if type(self.prior).__name__ not in PRIORS:
            raise ValueError(
                f"To be saved, a result must have a prior among {', '.join(PRIORS)}; got {type(self.prior).__name__}. Save the "
                "state_dict of its parts instead."
            )
        parts = {"model": self.model, "prior": self.prior, "likelihood": self.likelihood}
        tensors = {f"{part}:{name}": tensor for part, module in parts.items() for name, tensor in module.state_dict().items()}
        if self.examples is not None:
            tensors[EXAMPLES], tensors[OUTPUTS] = self.examples, example_outputs(self.model, self.examples)
        # Copies, since safetensors refuse what shares memory, as tied weights do.
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
        return {WEIGHTS: save(copies), **written_records(self.summary(calibration, held_out), self.history)}

    def summary(self, calibration: Calibration | None = None, held_out: HeldOut | None = None) -> Summary:
        """Everything but weights and history, in plain numbers and words."""
        likelihood, symmetries = self.likelihood, self.symmetries
        orbits = sample_orbits(self.model, self.examples[:_SHOWN]) if self.examples is not None else []
        return Summary(
            format=FORMAT,
            model=ModelSummary(
                self.model.recipe if isinstance(self.model, AllConv) else None,
                model_words(self.model),
                describe_layers(self.model),
            ),
            likelihood=LikelihoodSummary(type(likelihood).__name__, dict(likelihood.settings()), likelihood.learns_noise),
            prior=type(self.prior).__name__,
            learn=self.prior.learn,
            num_data=self.num_data,
            evidence=self.evidence,
            symmetries=symmetries.rows,
            words=tuple(symmetries.words()),
            extents=tuple(describe_extents(self.model)),
            orbits=tuple(map(tuple, orbits)),
            calibration=calibration,
            is_partial=self.is_partial,
            floor=self.floor,
            held_out=held_out,
        )


@dataclass(frozen=True)
class Known:
    """A posterior that has been found, and can be pickled."""

    posterior: Posterior

    def __call__(self) -> Posterior:
        return self.posterior


@torch.no_grad()
def example_outputs(model: nn.Module, examples: Tensor) -> Tensor:
    """What a model gives for examples while it evaluates, by which it is known again."""
    with evaluating(model):
        found: Tensor = model(_as_weights(examples, cast(Tensor, first_weight(model))))
        return found


def _as_weights(inputs: Tensor, weight: Tensor) -> Tensor:
    """Inputs on the device of weights, and in their precision where they are real numbers."""
    return inputs.to(weight) if inputs.is_floating_point() else inputs.to(weight.device)
