"""What is to be learned: a model, data, a likelihood and a prior, checked once before time is spent."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from symbayes.curvature.capture import Capture
from symbayes.curvature.evaluate import evaluating, log_likelihood
from symbayes.curvature.free import free_gradients, refuse_unused
from symbayes.data.source import DataSource
from symbayes.evidence.terms import Evidence
from symbayes.layers.structure import weights
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

    def check(self, batch_size: int, *, curvature: bool = True) -> None:
        """Refuse what cannot work, before training: shapes, labels, NaN, modules whose curvature cannot be captured.

        Args:
            batch_size: Data in a forward pass.
            curvature: Whether it is needed.

        Raises:
            ValueError: If types or the number of data do not fit; `Capture`, likelihood and prior raise their own.
        """
        self.prior.check(self.model)
        weight = next(self.model.parameters())
        capture = Capture(self.model) if curvature else None
        with capture if capture is not None else evaluating(self.model), torch.no_grad():
            seen = 0
            for inputs, targets in self.data.batches(batch_size):
                if inputs.is_floating_point() and inputs.dtype != weight.dtype:
                    raise ValueError(
                        f"Inputs and weights must be of one type, got {inputs.dtype} and {weight.dtype}. "
                        "Convert one: inputs.float(), or model.double()."
                    )
                outputs = capture.forward(inputs) if capture is not None else self._outputs(inputs)
                log_likelihood(self.likelihood, inputs, outputs, targets, seen)
                free = capture.sites.free if capture is not None else tuple(weights(self.model))
                if free and not seen:
                    refuse_unused(self.model, free, inputs)
                    if capture is not None:
                        free_gradients(self.model, free, inputs[:2], torch.ones_like(outputs[:2])[None])
                seen += len(inputs)
        if seen != self.data.size:
            raise ValueError(
                f"The data must give as many data as they say, {self.data.size}, in every pass; got {seen}. "
                "Use a sampler whose length is what it draws, without replacement."
            )

    def _outputs(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.model(inputs)
        if outputs.ndim != 2 or len(outputs) != len(inputs):
            raise ValueError(
                f"The model must give outputs [n, c], a row for each of the {len(inputs)} inputs; "
                f"got shape {tuple(outputs.shape)}."
            )
        return outputs
