"""Classes: one out of several, several labels at once, or classes in an order."""

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional

from symbayes.likelihoods.likelihood import (
    Columns,
    DiagonalLikelihood,
    Likelihood,
    ManyOutputs,
    ManyValues,
    Outputs,
    check_outputs,
    random_signs,
    register,
)
from symbayes.scores import CalibrationScores, score_confidences


@register
class Categorical(Likelihood):
    """One class out of c; outputs are logits, targets class numbers.

    Or probabilities of classes [n, c], as label smoothing and mixup have them: the log-probability is the mean under these.
    """

    has_classes = True

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        targets = targets.to(outputs.dtype) if targets.is_floating_point() else targets.long()
        return -functional.cross_entropy(outputs, targets, reduction="none")

    def fisher_columns(self, outputs: Outputs) -> Columns:
        # F = diag(p) − ppᵀ = diag(q)(I − qqᵀ)diag(q) with the unit vector q = √p. The Householder reflection that takes q
        # to −e₀ has c − 1 further columns, an orthonormal basis of what is orthogonal to q: one column saved.
        q = (outputs.log_softmax(1) / 2).exp()  # rather than a root, which has no slope at zero
        u = q.clone()
        u[:, 0] += 1
        reflection = torch.eye(q.shape[1], dtype=q.dtype, device=q.device) - u[:, :, None] * (u / (1 + q[:, :1]))[:, None]
        return (q[:, :, None] * reflection[:, :, 1:]).permute(2, 0, 1)[None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        # F = MMᵀ also with M = (I − p1ᵀ) diag(√p), which needs no reflection.
        p = outputs.softmax(1)
        signed = (outputs.log_softmax(1) / 2).exp() * random_signs((samples, *p.shape), outputs, generator)
        found = signed.sub_(p * signed.sum(-1, keepdim=True))  # in its place: of words of a language there are very many
        return (found if samples == 1 else found / samples**0.5)[None]

    def product(self, outputs: Outputs, vectors: Outputs) -> Outputs:
        own = type(self)
        if own.fisher_columns is not Categorical.fisher_columns or own.scales is not Categorical.scales:
            return super().product(outputs, vectors)  # of a subclass with another Fisher information
        # (diag(p) − ppᵀ) v does not change with what is added to all of v: without that of the most probable class nothing
        # cancels where its probability is nearly one. Columns would be as many as classes.
        p, likely = outputs.softmax(1), outputs.argmax(1, keepdim=True)
        apart = vectors - vectors.gather(1, likely)
        return p * (apart - (p * apart).sum(1, keepdim=True))

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        soft = targets if targets.is_floating_point() else functional.one_hot(targets.long(), outputs.shape[1])
        return soft.to(outputs.dtype) - outputs.softmax(1)

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        p = outputs.softmax(1)
        on = p if generator is None else p.to(generator.device)
        return torch.multinomial(on, 1, generator=generator)[:, 0].to(p.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        check_outputs(outputs, targets)
        if outputs.shape[1] < 2:
            raise ValueError(
                "Categorical needs two outputs or more, one for each class, got one. Use Bernoulli(), with targets[:, None]."
            )
        if targets.is_floating_point() and targets.shape == outputs.shape:
            low, off = targets.min().item(), float((targets.sum(1) - 1).abs().max())
            if not (low >= 0 and off < 1e-3):
                raise ValueError(
                    f"{type(self).__name__} targets that are real numbers must be probabilities of classes, with sum 1; got "
                    f"values from {low:.3g}, and sums that are off by up to {off:.3g}. For class numbers, .long()."
                )
            return
        if targets.shape != outputs.shape[:1] or targets.is_floating_point() or targets.is_complex():
            raise ValueError(
                f"{type(self).__name__} targets must be class numbers, an integer tensor of shape ({len(outputs)},), or "
                f"probabilities of shape {tuple(outputs.shape)}; got {targets.dtype} of shape {tuple(targets.shape)}."
            )
        low, high = int(targets.long().min()), int(targets.long().max())
        if low < 0 or high >= outputs.shape[1]:
            raise ValueError(
                f"{type(self).__name__} targets must lie in 0 … {outputs.shape[1] - 1}, because the model has outputs for "
                f"{outputs.shape[1]} classes; got {low} … {high}. Relabel the classes, or widen the last layer."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        wanted = targets.argmax(1) if targets.is_floating_point() else targets
        return {"accuracy": (outputs.argmax(1) == wanted).to(outputs.dtype)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        p = outputs.softmax(-1)
        return p, p * (1 - p)

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean.log()

    def classes(self, mean: Outputs) -> Int[Tensor, " n"]:
        return mean.argmax(1)

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        mean = self._check_probabilities(mean, targets)
        confidence, chosen = mean.max(1)
        targets = targets.argmax(1) if targets.is_floating_point() else targets
        brier = float((mean - functional.one_hot(targets.long(), mean.shape[1])).square().sum(1).mean())
        return score_confidences(confidence, chosen == targets, bins, brier)


@register
class Bernoulli(DiagonalLikelihood):
    """c independent labels, each there or not; outputs are logits, targets [n, c] of zeros and ones, or of probabilities."""

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        targets = targets.to(outputs.dtype)
        return -functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)

    def fisher_root(self, outputs: Outputs) -> Outputs:
        # √(p (1 − p)), with a slope where it is nearly zero.
        return ((functional.logsigmoid(outputs) + functional.logsigmoid(-outputs)) / 2).exp()

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return targets.to(outputs.dtype) - outputs.sigmoid()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        p = outputs.sigmoid()
        on = p if generator is None else p.to(generator.device)
        return torch.bernoulli(on, generator=generator).to(p.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        check_outputs(outputs, targets)
        if targets.shape != outputs.shape or targets.is_complex() or not ((targets >= 0) & (targets <= 1)).all():
            raise ValueError(
                f"Bernoulli targets must be zeros and ones, or probabilities, of shape {tuple(outputs.shape)}, as the outputs "
                f"are; got {targets.dtype} of shape {tuple(targets.shape)}, with values {targets.flatten()[:3].tolist()} …. "
                "Reshape or relabel them; for one output, targets[:, None]."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        return {"accuracy": ((outputs > 0) == (targets > 0.5)).to(outputs.dtype).mean(1)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        p = outputs.sigmoid()
        return p, p * (1 - p)

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean.logit()

    def calibrate(self, mean: Outputs, std: Outputs, targets: Tensor, bins: int) -> CalibrationScores:
        mean = self._check_probabilities(mean, targets)
        confidence = torch.maximum(mean, 1 - mean).flatten()
        right = ((mean > 0.5) == (targets > 0.5)).flatten()
        return score_confidences(confidence, right, bins, float((mean - targets.to(mean)).square().mean()))


@register
class Ordinal(DiagonalLikelihood, Categorical):
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
