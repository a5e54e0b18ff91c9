"""Curvature in passing: KFAC's sums of some training batches, averaged as training goes on, in place of passes over all data.

A batch costs a forward pass, one backward pass per column without weight gradients, and second moments: with one column about
two steps of training, so that every tenth batch adds a fifth to its price, and every twentieth a tenth. Sums of a batch, times
N / batch, are those of the data on average, and weights move little while the mean remembers: so hyper-steps may use it at any
time.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.capture import Capture
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import BlockCurvature
from symbayes.curvature.sweep import Accumulator, collect, collected, make_blocks
from symbayes.data.batches import Batch
from symbayes.layers.structure import weights
from symbayes.likelihoods import Likelihood

#: Where means of log p(D | W) and of weights are kept: names of no map.
_LOG_LIKELIHOOD, _WEIGHTS = ("log p(D | W)", ""), "W"


class RunningCurvature:
    """KFAC of the batches that were seen last.

    Args:
        model: Whose curvature it is; it may be trained meanwhile.
        likelihood: Of targets given outputs.
        rule: What is collected.
        memory: Batches that count: the mean is over all at first, then decays at a rate of 1 / memory.
        generator: For sampled columns; on the device of the model.
    """

    def __init__(self, model: nn.Module, likelihood: Likelihood, rule: Kfac, memory: int, generator: Generator) -> None:
        if memory < 1:
            raise ValueError(f"memory must be at least one batch, got {memory}.")
        self.likelihood, self.rule, self.memory, self.generator = likelihood, rule, memory, generator
        self._capture = Capture(model)
        self._accumulators: Mapping[str, Accumulator] = {}
        self._means: dict[tuple[str, str], Tensor] = {}
        self._batches = torch.zeros((), dtype=torch.float64, device=generator.device)
        self._size = 0

    @torch.no_grad()
    def add(self, batch: Batch) -> None:
        """See a batch, of the same size as all others; nothing waits for the device.

        Raises:
            ValueError: If it is of another size.
        """
        inputs, targets = batch
        if self._size not in (0, len(inputs)):
            raise ValueError(f"All batches must be of one size, so that they count alike: {self._size}, got {len(inputs)}.")
        self._size = len(inputs)
        accumulators = {name: self.rule.accumulator(site) for name, site in self._capture.sites.maps.items()}
        free: dict[str, Tensor] = {}
        with self._capture as capture:
            outputs = capture.forward(inputs)
            predicted = outputs.detach()
            columns = self.rule.fisher.columns(self.likelihood, predicted, targets, self.generator)
            collect(capture, accumulators, free, inputs, outputs, columns)
        self._batches += 1
        share = self._batches.reciprocal().clamp(min=1 / self.memory)
        found = collected(accumulators, free) | {_LOG_LIKELIHOOD: self.likelihood.log_prob(predicted, targets).sum()}
        for name, weight in weights(capture.model).items():
            found[_WEIGHTS, name] = weight.detach()
        for key, value in found.items():
            if key not in self._means:
                self._means[key] = torch.zeros_like(value)
            self._means[key].lerp_(value, share.to(value.dtype))
        self._accumulators = accumulators

    @property
    def is_known(self) -> bool:
        """Whether a batch was seen."""
        return self._size > 0

    @torch.no_grad()
    def squares(self) -> dict[str, Float[Tensor, ""]]:
        """‖W‖² by tensor, of the weights or of their mean, whichever is less.

        MacKay's update is about the mode. Weights jitter around it by the noise of their steps, and in a large tensor that is
        off, where the mode is next to nothing, their squares are those of noise; the mean of weights that fall lags behind.
        """
        named = weights(self._capture.model)
        means = {name: mean for (what, name), mean in self._means.items() if what == _WEIGHTS}
        return {name: torch.minimum(mean.square().sum(), named[name].square().sum()) for name, mean in means.items()}

    @torch.no_grad()
    def curvature(self, num_data: int) -> BlockCurvature:
        """H of all the data, as the batches that were seen say.

        Raises:
            RuntimeError: If none was seen.
        """
        if not self.is_known:
            raise RuntimeError("No batch was seen yet, so there is no curvature. Add batches first.")
        scale = num_data / self._size
        # A is a mean over rows and needs no scale; all else is multiplied by those of the parts.
        sums = {key: value for key, value in self._means.items() if key[0] != _WEIGHTS}
        log_likelihood = sums.pop(_LOG_LIKELIHOOD) * scale
        blocks = make_blocks(self._accumulators, sums, self.rule.fisher.scales(self.likelihood) * scale)
        return BlockCurvature(blocks, log_likelihood, f"{self.rule}, running mean", None)
