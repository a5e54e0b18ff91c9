"""Classes in an order: a class is reached by steps from the one below it."""

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional

from symbayes.diagonal import Diagonal
from symbayes.likelihoods import Categorical, ManyOutputs, ManyValues, Outputs, register


@register
class Ordinal(Diagonal, Categorical):
    """One of K classes in an order; outputs [n, K − 1] are logits of steps, p(y > k | y ≥ k) = sigmoid(f_k).

    This is the continuation-ratio model (sequential logit; CORN of Shi, Cao and Raschka 2021): thresholds are learned with the
    weights, any probabilities of classes have their outputs, and the information of f_k is p(y ≥ k) sigmoid(f_k) sigmoid(−f_k).
    For steps along one direction, end the network with nn.Linear(h, 1) and nn.Linear(1, K − 1). Targets are class numbers from
    0 on, or probabilities of classes [n, K].
    """

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        return super().log_prob(_log_probabilities(outputs), targets)

    def fisher_root(self, outputs: Outputs) -> Outputs:
        return ((functional.logsigmoid(outputs).cumsum(1) + functional.logsigmoid(-outputs)) / 2).exp()

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        soft = targets if targets.is_floating_point() else functional.one_hot(targets.long(), outputs.shape[1] + 1)
        above = _above(soft.to(outputs))
        return above * (-outputs).sigmoid() - soft[:, :-1].to(outputs) * outputs.sigmoid()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        return super().sample(_log_probabilities(outputs), generator=generator)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        super().check(_log_probabilities(outputs), targets)

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """Accuracy, and by how many classes the most probable one is off."""
        log_p = _log_probabilities(outputs)
        wanted = targets.argmax(1) if targets.is_floating_point() else targets.long()
        return {**super().metrics(log_p, targets), "absolute error": (log_p.argmax(1) - wanted).abs().to(outputs.dtype)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyValues, ManyValues]:
        return super().moments(_log_probabilities(outputs))

    def link(self, mean: ManyValues) -> ManyOutputs:
        tiny = torch.finfo(mean.dtype).tiny  # a step from a class that is never reached is as likely as not
        return _above(mean).clamp(min=tiny).log() - mean[..., :-1].clamp(min=tiny).log()


def _log_probabilities(outputs: ManyOutputs) -> ManyValues:
    """Of all classes: of all steps up to each, and of staying there."""
    reached = functional.pad(functional.logsigmoid(outputs).cumsum(-1), (1, 0))
    return reached + functional.pad(functional.logsigmoid(-outputs), (0, 1))


def _above(mean: ManyValues) -> Float[Tensor, "*batch _"]:
    """p(y > k) for every step k, by probabilities of classes."""
    return mean.flip(-1).cumsum(-1).flip(-1)[..., 1:]
