"""What is to be learned: a model, data, a likelihood and a prior, checked once before time is spent."""

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symbayes.curvature.capture import Capture, refuse_unused
from symbayes.curvature.check import Reference, check_capture, check_functional, check_outputs, reference_of
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.data.source import DataSource
from symbayes.evidence.terms import Evidence
from symbayes.layout import weights
from symbayes.likelihoods import Likelihood
from symbayes.priors import Prior
from symbayes.training.record import EvidenceRecord


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
        """The first inputs of a pass over the data."""
        return next(self.data.batches(count))[0][:count].detach().clone()

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
        weight = next(self.model.parameters())
        capture = Capture(self.model) if curvature else None
        seen, total, of_nothing = 0, 0.0, 0.0
        with ExitStack() as evaluation, torch.no_grad():
            for inputs, targets in self.data.batches(batch_size):
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
                of_nothing += float(self.likelihood.log_prob(torch.zeros_like(outputs), targets).sum())
                seen += len(inputs)
        return -min(total, of_nothing) / seen

    def _check_first(self, capture: Capture | None, inputs: Tensor) -> Reference | None:
        if capture is not None:
            return check_capture(capture, inputs)
        reference = reference_of(self.model, inputs)
        with evaluating(self.model):
            refuse_unused(self.model, tuple(weights(self.model)), inputs)
        if reference is not None:
            check_functional(self.model, reference)
        return reference
