"""p(y | f): what the outputs of a network mean. The only owner of the scale of a loss.

A likelihood gives log-probabilities, summed over outputs and *not* averaged over data, and square roots of its Fisher
information: columns m with Σ_v m_v m_vᵀ = −E ∂² log p / ∂f². Columns come in k parts at unit scale, and `scales` says by
what each part is to be multiplied; so a learned noise enters the curvature exactly, and stays differentiable.
"""

from abc import ABC, abstractmethod
from math import log, pi

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.nn import functional

Outputs = Float[Tensor, "n c"]
#: For several draws of the weights, or the like.
ManyOutputs = Float[Tensor, "*batch c"]
Columns = Float[Tensor, "k v n c"]


class Likelihood(nn.Module, ABC):
    """The distribution of targets given outputs [n, c]."""

    @abstractmethod
    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        """log p(y_n | f_n), for each datum."""

    @abstractmethod
    def fisher_columns(self, outputs: Outputs) -> Columns:
        """The exact square root of the Fisher information, at unit scale."""

    @abstractmethod
    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        """Random columns, at unit scale, whose outer products are on average those of the exact ones.

        Exact columns are added up with random signs. That has far less variance than the usual scores of targets drawn from
        the model, which for a datum that is fitted well are nearly always zero, and now and then large.
        """

    @abstractmethod
    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        """∂ log p(y | f) / ∂f at the targets observed."""

    @abstractmethod
    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        """Targets drawn from p(y | f)."""

    @abstractmethod
    def check(self, outputs: Outputs, targets: Tensor) -> None:
        """Refuse targets that cannot be: wrong shape, kind or range."""

    @abstractmethod
    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        """What a person wants to know of a prediction, by name, for each datum."""

    @abstractmethod
    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        """E[y | f] and Var[y | f] by output; a class counts as the indicators of all classes."""

    @abstractmethod
    def link(self, mean: ManyOutputs) -> ManyOutputs:
        """Outputs f with this E[y | f]: the inverse of the first of the moments."""

    def scales(self) -> Float[Tensor, " k"]:
        """What each part of the columns' outer product is multiplied by."""
        return torch.ones(1)

    @property
    def learns_noise(self) -> bool:
        """Whether there is a noise to learn with the precisions."""
        return False

    def noise(self) -> Float[Tensor, " k"]:
        """σ, where there is one; else nothing."""
        return torch.ones(0)

    def update_noise(self, squares: Float[Tensor, " c"], effective: float, num_data: int, damping: float) -> None:
        """Move a learned noise towards MacKay's fixed point, given Σ_n (y − f)² by output and the effective parameters."""

    def settings(self) -> dict[str, int | None]:
        """What the constructor needs to make another of this kind."""
        return {}


class Categorical(Likelihood):
    """One class out of c; outputs are logits, targets class numbers.

    Or probabilities of classes [n, c], as label smoothing and mixup have them: the log-probability is the mean under these.
    """

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
        signed = (outputs.log_softmax(1) / 2).exp() * _signs((samples, *p.shape), outputs, generator)
        return ((signed - p * signed.sum(-1, keepdim=True)) / samples**0.5)[None]

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        soft = targets if targets.is_floating_point() else functional.one_hot(targets.long(), outputs.shape[1])
        return soft.to(outputs.dtype) - outputs.softmax(1)

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        p = outputs.softmax(1)
        on = p if generator is None else p.to(generator.device)
        return torch.multinomial(on, 1, generator=generator)[:, 0].to(p.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        _check_outputs(outputs, targets)
        if outputs.shape[1] < 2:
            raise ValueError(
                "Categorical needs two outputs or more, one for each class, got one. Use Bernoulli(), with targets[:, None]."
            )
        if targets.is_floating_point() and targets.shape == outputs.shape:
            low, off = targets.min().item(), float((targets.sum(1) - 1).abs().max())
            if not (low >= 0 and off < 1e-3):
                raise ValueError(
                    "Categorical targets that are real numbers must be probabilities of classes, with sum 1; got values from "
                    f"{low:.3g}, and sums that are off by up to {off:.3g}. For class numbers, .long()."
                )
            return
        if targets.shape != outputs.shape[:1] or targets.is_floating_point() or targets.is_complex():
            raise ValueError(
                f"Categorical targets must be class numbers, an integer tensor of shape ({len(outputs)},), or probabilities of "
                f"shape {tuple(outputs.shape)}; got {targets.dtype} of shape {tuple(targets.shape)}."
            )
        low, high = int(targets.long().min()), int(targets.long().max())
        if low < 0 or high >= outputs.shape[1]:
            raise ValueError(
                f"Categorical targets must lie in 0 … {outputs.shape[1] - 1}, because the model has {outputs.shape[1]} "
                f"outputs; got {low} … {high}. Relabel the classes, or widen the last layer."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        wanted = targets.argmax(1) if targets.is_floating_point() else targets
        return {"accuracy": (outputs.argmax(1) == wanted).to(outputs.dtype)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        p = outputs.softmax(-1)
        return p, p * (1 - p)

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean.log()


class Bernoulli(Likelihood):
    """c independent labels, each there or not; outputs are logits, targets [n, c] of zeros and ones, or of probabilities."""

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        targets = targets.to(outputs.dtype)
        return -functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)

    def fisher_columns(self, outputs: Outputs) -> Columns:
        return torch.diag_embed(_bernoulli_root(outputs)).permute(1, 0, 2)[None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        signs = _signs((samples, *outputs.shape), outputs, generator)
        return (_bernoulli_root(outputs) * signs / samples**0.5)[None]

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return targets.to(outputs.dtype) - outputs.sigmoid()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        p = outputs.sigmoid()
        on = p if generator is None else p.to(generator.device)
        return torch.bernoulli(on, generator=generator).to(p.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        _check_outputs(outputs, targets)
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


class Gaussian(Likelihood):
    """y = f + σε, with the noise σ learned from the evidence.

    Args:
        noise: The first value of σ.
        outputs: The number of outputs, for a σ of its own for each; None for one σ that they share.
    """

    def __init__(self, noise: float = 1.0, outputs: int | None = None) -> None:
        super().__init__()
        if not noise > 0:
            raise ValueError(f"noise must be positive, got {noise}.")
        self.shared = outputs is None
        self.log_noise = nn.Parameter(torch.full((outputs or 1,), log(noise)))

    @property
    def learns_noise(self) -> bool:
        return self.log_noise.requires_grad

    def noise(self) -> Float[Tensor, " k"]:
        """σ, one for each output or one for all."""
        return self.log_noise.exp()

    @torch.no_grad()
    def update_noise(self, squares: Float[Tensor, " c"], effective: float, num_data: int, damping: float) -> None:
        """σ² ← Σ (y − f)² / (N − γ); with a noise for each output, each is charged an equal part of γ."""
        total, count = (squares.sum()[None], num_data * len(squares)) if self.shared else (squares, num_data)
        free = max(count - effective / len(total), 1e-3 * count)
        target = (total / free).clamp(min=1e-12).log() / 2
        self.log_noise.lerp_(target.to(self.log_noise), damping)

    def settings(self) -> dict[str, int | None]:
        return {"outputs": None if self.shared else len(self.log_noise)}

    def log_prob(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, " n"]:
        log_noise = self.log_noise.to(outputs)
        residual = (targets - outputs) / log_noise.exp()
        return -(residual.square() / 2 + log_noise + log(2 * pi) / 2).sum(1)

    def scales(self) -> Float[Tensor, " k"]:
        return (-2 * self.log_noise).exp()

    def fisher_columns(self, outputs: Outputs) -> Columns:
        n, c = outputs.shape
        columns = torch.eye(c, dtype=outputs.dtype, device=outputs.device)[:, None].expand(c, n, c)
        return columns[None] if self.shared else columns[:, None]

    def sampled_columns(self, outputs: Outputs, samples: int, *, generator: Generator | None = None) -> Columns:
        if not self.shared:  # outputs of different noise stay apart, so there is nothing to gain by sampling
            return self.fisher_columns(outputs)
        return _signs((1, samples, *outputs.shape), outputs, generator) / samples**0.5

    def score(self, outputs: Outputs, targets: Tensor) -> Float[Tensor, "n c"]:
        return (targets - outputs) / self.noise().to(outputs).square()

    def sample(self, outputs: Outputs, *, generator: Generator | None = None) -> Tensor:
        device = generator.device if generator is not None else outputs.device
        drawn = torch.randn(outputs.shape, generator=generator, dtype=outputs.dtype, device=device)
        return outputs + self.noise().to(outputs) * drawn.to(outputs.device)

    def check(self, outputs: Outputs, targets: Tensor) -> None:
        _check_outputs(outputs, targets)
        if targets.shape != outputs.shape or not targets.is_floating_point():
            raise ValueError(
                f"Gaussian targets must be real numbers of shape {tuple(outputs.shape)}, as the outputs are; got "
                f"{targets.dtype} of shape {tuple(targets.shape)}. Reshape them (for one output, targets[:, None]) or call "
                ".float()."
            )
        if not targets.isfinite().all():
            bad = int((~targets.isfinite()).sum())
            raise ValueError(f"Gaussian targets must be finite, got {bad} that are not. Clean or drop them.")
        if not self.shared and len(self.log_noise) != outputs.shape[1]:
            raise ValueError(
                f"Gaussian(outputs={len(self.log_noise)}) has a noise for each of {len(self.log_noise)} outputs; "
                f"the model has {outputs.shape[1]}. Give it as many, or leave outputs out for a shared noise."
            )

    def metrics(self, outputs: Outputs, targets: Tensor) -> dict[str, Float[Tensor, " n"]]:
        return {"squared error": (outputs - targets).square().mean(1)}

    def moments(self, outputs: ManyOutputs) -> tuple[ManyOutputs, ManyOutputs]:
        return outputs, self.noise().to(outputs).square().expand_as(outputs)

    def link(self, mean: ManyOutputs) -> ManyOutputs:
        return mean


def _bernoulli_root(outputs: Outputs) -> Outputs:
    """√(p (1 − p)), with a slope where it is nearly zero."""
    return ((functional.logsigmoid(outputs) + functional.logsigmoid(-outputs)) / 2).exp()


def _signs(shape: tuple[int, ...], like: Tensor, generator: Generator | None) -> Tensor:
    """Random ±1, drawn where the generator lives."""
    device = generator.device if generator is not None else like.device
    return (torch.randint(0, 2, shape, generator=generator, device=device) * 2 - 1).to(like)


def _check_outputs(outputs: Tensor, targets: Tensor) -> None:
    if len(outputs) != len(targets):
        raise ValueError(f"There must be a target for each of the {len(outputs)} outputs, got {len(targets)}.")
