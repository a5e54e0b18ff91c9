"""The result of training: the model, its evidence, what was learned, and how it got there; saved without pickle."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.rule import Rule
from symbayes.data.source import Data, as_source
from symbayes.errors import NoPosteriorError
from symbayes.evidence.laplace import laplace_evidence
from symbayes.invariance.augmentation import Augmentation, learned_augmentation
from symbayes.invariance.extents import described_extents
from symbayes.invariance.pictures import sample_orbits
from symbayes.layers.structure import weight_tensors, weights
from symbayes.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from symbayes.models.allconv import AllConv, build_allconv
from symbayes.posterior.calibration import Calibration, calibration, check_kind
from symbayes.posterior.posterior import Posterior
from symbayes.posterior.prediction import Prediction
from symbayes.posterior.predictive import predict
from symbayes.posterior.saving import load_posterior, save_posterior
from symbayes.priors import LayerwisePrior, PathwisePrior, Prior, ScalarPrior, TensorwisePrior
from symbayes.training.record import EvidenceRecord, Record, write_records
from symbayes.training.symmetries import Symmetries, symmetries

_FORMAT = 1
_EXAMPLES = "examples:inputs"
_POSTERIOR = "posterior.safetensors"
_LIKELIHOODS: dict[str, type[Likelihood]] = {kind.__name__: kind for kind in (Categorical, Bernoulli, Gaussian)}
_PRIORS: dict[str, type[Prior]] = {
    kind.__name__: kind for kind in (ScalarPrior, LayerwisePrior, PathwisePrior, TensorwisePrior)
}


@dataclass(frozen=True)
class Result:
    """A trained model and what its evidence says."""

    model: nn.Module
    likelihood: Likelihood
    prior: Prior
    history: tuple[Record, ...]
    num_data: int
    #: A few inputs, to show what was learned on; None where there are none.
    examples: Tensor | None = None
    #: Finds the posterior of the weights, when it is first asked for; None where there is none.
    make_posterior: Callable[[], Posterior] | None = None

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
    def symmetries(self) -> Symmetries:
        """By layer and path: prior precision, effective parameters, share."""
        return symmetries(weight_tensors(self.model), self.evidence.precision, self.evidence.effective)

    def augmentation(self) -> Augmentation:
        """The invariance that was learned, as an augmentation for any training pipeline.

        Raises:
            ValueError: If the model has no extents, or has them more than once.
        """
        return learned_augmentation(self.model)

    def predict(
        self,
        inputs: Tensor,
        by: str | None = None,
        samples: int = 128,
        batch_size: int = 250,
        only: Sequence[str] | None = None,
    ) -> Prediction:
        """What the model says of new inputs, with the uncertainty of its weights; the same every time.

        Args:
            inputs: As many as one likes.
            by: "linearised", "sampled" or "plug-in"; when None the first for Laplace's posterior, the second for others.
            samples: Draws, as `sb.predict` takes them.
            batch_size: Data in a forward pass.
            only: Patterns of the tensors that are uncertain, such as ["head2*"]; all when None (`Posterior.only`).

        Raises:
            NoPosteriorError: If there is no posterior, and `by` is not "plug-in".
        """
        weight = next(self.model.parameters())
        if by == "plug-in":
            known = Posterior({name: weight.detach() for name, weight in weights(self.model).items()}, (), "weights alone")
        else:
            known = self.posterior.like(weight)  # the model may have been moved since
            known = known if only is None else known.only(only)
        inputs = inputs.to(weight.device)
        return predict(self.model, known, self.likelihood, inputs, by=by, samples=samples, batch_size=batch_size)

    def evaluate(self, data: Data, batch_size: int = 500, by: str | None = "plug-in", samples: int = 128) -> dict[str, float]:
        """Mean metrics of the likelihood and negative log-likelihood per datum, on other data.

        Args:
            data: A pair of tensors, a Dataset or a DataLoader.
            batch_size: Data in a forward pass.
            by: As in `predict`; by default the model at its weights, without their uncertainty.
            samples: As in `predict`.
        """
        totals: dict[str, Tensor] = {}
        source = as_source(data, next(self.model.parameters()).device)
        for inputs, targets in source.batches(batch_size):
            for name, values in self.predict(inputs, by, samples, batch_size).metrics(targets).items():
                totals[name] = totals.get(name, torch.zeros(())) + values.sum()
        return {name: float(total) / source.size for name, total in totals.items()}

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
            ValueError: If the likelihood is none of Categorical, Bernoulli and Gaussian.
        """
        check_kind(self.likelihood)
        source = as_source(data, next(self.model.parameters()).device)
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

    def save(self, folder: str | Path, calibration: Calibration | None = None) -> None:
        """Write weights.safetensors, result.json, history.jsonl and report.html; `load_result` reads them back.

        And posterior.safetensors, where there is a posterior.

        Args:
            folder: Made if it is not there.
            calibration: What `calibration` gave, to be shown on the page.

        Raises:
            ValueError: If the likelihood or the prior is of a kind that could not be built again.
        """
        for part, known in ((self.likelihood, _LIKELIHOODS), (self.prior, _PRIORS)):
            if type(part).__name__ not in known:
                raise ValueError(
                    f"To be saved, a result must have a likelihood and a prior among {', '.join(known)}; got "
                    f"{type(part).__name__}. Save the state_dict of its parts instead."
                )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"model": self.model, "prior": self.prior, "likelihood": self.likelihood}
        tensors = {f"{part}:{name}": tensor for part, module in parts.items() for name, tensor in module.state_dict().items()}
        if self.examples is not None:
            tensors[_EXAMPLES] = self.examples
        # Copies, since safetensors refuse what shares memory, as tied weights do.
        copies = {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}
        save_file(copies, folder / "weights.safetensors")
        write_records(folder, self.summary(calibration), self.history)
        try:
            save_posterior(self.posterior, folder / _POSTERIOR)
        except NoPosteriorError:
            (folder / _POSTERIOR).unlink(missing_ok=True)  # of another result

    def summary(self, calibration: Calibration | None = None) -> dict[str, Any]:
        """Everything but weights and history, in plain numbers and words."""
        return {
            "format": _FORMAT,
            "model": {
                "recipe": self.model.recipe if isinstance(self.model, AllConv) else None,
                "description": self.model.description if isinstance(self.model, AllConv) else type(self.model).__name__,
            },
            "likelihood": {"kind": type(self.likelihood).__name__, "settings": self.likelihood.settings()},
            "prior": type(self.prior).__name__,
            "learn": self.prior.learn,
            "num_data": self.num_data,
            "evidence": asdict(self.evidence),
            "symmetries": [asdict(row) for row in self.symmetries.rows],
            "words": self.symmetries.words(),
            "extents": described_extents(self.model),
            "orbits": sample_orbits(self.model, self.examples) if self.examples is not None else [],
            "calibration": asdict(calibration) if calibration is not None else None,
        }


def load_result(folder: str | Path, model: nn.Module | None = None) -> Result:
    """A result that was saved; with its posterior, if that was saved, too.

    Args:
        folder: What `Result.save` was given.
        model: A module of the same structure, which gets the saved weights. Not needed for models of `allconv`.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the model does not fit the weights.
    """
    folder = Path(folder)
    for name in ("result.json", "history.jsonl", "weights.safetensors"):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} must hold {name}, as Result.save writes it; it does not.")
    try:
        summary = json.loads((folder / "result.json").read_text())
        lines = (folder / "history.jsonl").read_text().splitlines()
        history = tuple(_record(json.loads(line)) for line in lines)
        tensors = load_file(folder / "weights.safetensors")
    except (json.JSONDecodeError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"The result in {folder} is damaged ({error}). Copy it again, or train again.") from error
    if summary.get("format") != _FORMAT:
        raise ValueError(f"The result in {folder} has format {summary.get('format')}; this version reads format {_FORMAT}.")
    if model is None:
        saved = next(tensor for name, tensor in tensors.items() if name.startswith("model:"))
        model = _rebuilt(summary, folder).to(saved.dtype)
        for name, parameter in weights(model).items():
            parameter.requires_grad_(name in summary["evidence"]["precision"])  # what was frozen stays so
    likelihood = _likelihood(summary["likelihood"])
    prior = _PRIORS[summary["prior"]](model, learn=summary.get("learn"))
    for part, module in (("model", model), ("prior", prior), ("likelihood", likelihood)):
        state = {name.removeprefix(f"{part}:"): t for name, t in tensors.items() if name.startswith(f"{part}:")}
        try:
            module.load_state_dict(state)
        except RuntimeError as error:
            raise ValueError(f"The {part} does not fit what is saved in {folder}: {error}") from error
    found = _posterior(folder / _POSTERIOR, model)
    make = (lambda: found) if found is not None else None
    return Result(model, likelihood, prior, history, summary["num_data"], tensors.get(_EXAMPLES), make)


def _posterior(path: Path, model: nn.Module) -> Posterior | None:
    if not path.is_file():
        return None
    found = load_posterior(path, next(model.parameters()).device)
    known = {name: tuple(weight.shape) for name, weight in weights(model).items()}
    if {name: tuple(value.shape) for name, value in found.mean.items()} != known:
        raise ValueError(
            f"The posterior in {path} does not fit the weights beside it. Copy the folder again; or remove the file, and do "
            "without a posterior."
        )
    return found


def _rebuilt(summary: dict[str, Any], folder: Path) -> nn.Module:
    recipe = summary["model"]["recipe"]
    if recipe is None:
        raise ValueError(
            f"The model in {folder} ({summary['model']['description']}) was not made by sb.allconv, so it cannot be built from "
            "the files alone. Pass one of the same structure: sb.load_result(folder, model=...)."
        )
    return build_allconv(**{**recipe, "in_shape": tuple(recipe["in_shape"])})


def _likelihood(saved: dict[str, Any]) -> Likelihood:
    return _LIKELIHOODS[saved["kind"]](**saved["settings"])


def _record(saved: dict[str, Any]) -> Record:
    evidence = saved.pop("evidence")
    return Record(**saved, evidence=EvidenceRecord(**evidence) if evidence else None)
