"""Invariance of the weights, with the evidence in closed form: how far should filters be turned, shifted and scaled?

Filters are images that are not trained, hidden units are radial functions of them under transformations, and the map to
classes is linear with Gaussian noise, so that the evidence is exact. The same model sees digits that are upright, turned by up
to 90° or 180°, shifted or scaled, and learns extents, lengthscale, precision and noise by the gradient of one number. There are
more filters than data: least squares fit them all whatever the extents are, so that the training error selects none.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import cos, degrees, log, pi
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional

from papers.data import load
from papers.figures.filters_picture import picture
from symbayes.evidence.exact import exact_evidence, posterior_mode
from symbayes.groups.lie import affine2d
from symbayes.invariance.filters import FilterBank, RadialFilterBank

Numbers = dict[str, Any]
#: Called with the share of all work that is done, and what is learned next.
Progress = Callable[[float, str], None]

#: What is done to digits: the largest amounts, in units of the generators; both scales are the same in each image.
DATA: dict[str, dict[str, float]] = {
    "upright": {},
    "turned by up to 90°": {"rotation": pi / 2},
    "turned by up to 180°": {"rotation": pi},
    "shifted by up to 2 px": {"translation_x": 1 / 3, "translation_y": 1 / 3},
    "scaled by up to 50 %": {"scale_x": log(1.5), "scale_y": log(1.5)},
}
_GROUP = affine2d("translation", "rotation", "scale")
#: First extents: nothing much, and turned by much. Halves of a circle are alike, so that the evidence may have two maxima.
_STARTS: tuple[dict[str, float], ...] = ({"rotation": 0.1}, {"rotation": 2.6})
#: First lengthscales, about a third of the distance of two digits; without transformations, the best of several.
_LENGTHSCALE, _LENGTHSCALES = 6.0, (4.0, 6.0, 9.0, 14.0)
#: Of least squares: what is added to the squares of features so that there is one solution.
_RIDGE = 1e-12
#: Gradients in nats for each datum below this are as good as none: Adam would make steps of rounding errors.
_FLOOR = 1e-3
_SHOWN, _VERSIONS = (0, 1), 7


@dataclass(frozen=True)
class Settings:
    """What all data sets have in common."""

    data: int = 300
    filters: int = 400
    #: Transformations while learning; twice as many afterwards.
    samples: int = 16
    steps: int = 60
    learning_rate: float = 0.15
    #: Whether filters are digits as they are. Otherwise they are transformed as the data are; from one to another of those it
    #: is up to twice as far.
    upright_filters: bool = True
    seed: int = 0


@dataclass(frozen=True)
class _Digits:
    """One data set, and the images that are its filters."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    filters: Tensor

    @property
    def targets(self) -> Float[Tensor, "n 10"]:
        """One for the class and zero for the others, centred."""
        return functional.one_hot(self.train[1], 10).double() - 0.1


def run(settings: Settings | None = None, progress: Progress | None = None) -> Numbers:
    """Learn extents on every data set; plain numbers, with the picture of filter banks as SVG text under "picture"."""
    settings = settings or Settings()
    rows = []
    for index, name in enumerate(DATA):
        if progress:
            progress(index / len(DATA), name)
        rows.append({"data": name, **learn(settings, name)})
    found: Numbers = {"settings": asdict(settings), "rows": rows}
    return {**found, "picture": picture(found)}


def learn(settings: Settings, name: str) -> Numbers:
    """One data set: without transformations, with extents learned by the evidence, and with extents learned by the data fit."""
    digits = _digits(settings, name)
    plain = [_Model(settings, digits, {}, lengthscale) for lengthscale in _LENGTHSCALES]
    candidates = [_Model(settings, digits, start) for start in _STARTS]
    for model in plain + candidates:
        model.maximise(model.evidence)
    best = max(candidates, key=_Model.log_evidence)
    fitted = _Model(settings, digits, _STARTS[0])
    fitted.share(best)
    fitted.maximise(fitted.fit, [fitted.bank.orbit.value])
    return {
        "true": _natural(DATA[name]),
        "plain": max(plain, key=_Model.log_evidence).facts(),
        "evidence": best.facts(),
        "starts": [model.facts() for model in candidates],
        "fit": fitted.facts(),
        "maps": best.maps(),
    }


class _Model:
    """Radial features under transformations, and a linear map to classes that is integrated over."""

    def __init__(
        self, settings: Settings, digits: _Digits, starts: dict[str, float], lengthscale: float = _LENGTHSCALE
    ) -> None:
        self.settings, self.digits = settings, digits
        group = _GROUP.shared("translation").shared("scale").starting(0.1 if starts else 0.0, **starts)
        self.bank: RadialFilterBank = FilterBank.from_images(
            digits.filters,
            group,
            settings.samples if starts else 1,
            lengthscale=lengthscale,
            learn_lengthscale=True,
            seed=settings.seed,
        )
        self.bank.orbit.value.requires_grad_(bool(starts))
        self.log_precision = torch.zeros((), requires_grad=True)
        self.log_noise = torch.tensor(log(0.3), requires_grad=True)

    def share(self, other: "_Model") -> None:
        """Take the lengthscale, precision and noise that another has learned."""
        with torch.no_grad():
            self.bank.log_lengthscale.copy_(other.bank.log_lengthscale)
            self.log_precision.copy_(other.log_precision)
            self.log_noise.copy_(other.log_noise)

    def evidence(self) -> Tensor:
        """log p(D), of the transformations at hand."""
        features = self.bank(self.digits.train[0])
        return exact_evidence(features, self.digits.targets, self.log_precision.exp(), self.log_noise.exp()).total

    def fit(self) -> Tensor:
        """log p(D | W) with the noise held, at weights of least squares."""
        return -self._squares(self.bank(self.digits.train[0])) / (2 * (2 * self.log_noise.detach()).exp())

    def maximise(self, objective: Callable[[], Tensor], parameters: list[Tensor] | None = None) -> None:
        """Adam, with a step size that falls to zero; all parameters by default."""
        own = [self.log_precision, self.log_noise, *self.bank.parameters()]
        learned = [p for p in (parameters or own) if p.requires_grad]
        optimiser = torch.optim.Adam(learned, lr=self.settings.learning_rate, eps=_FLOOR)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: (1 + cos(pi * step / self.settings.steps)) / 2)
        self.bank.train()
        for _ in range(self.settings.steps):
            optimiser.zero_grad()
            (-objective() / len(self.digits.targets)).backward()
            optimiser.step()
            schedule.step()
            self.bank.orbit.clamp()
        self.bank.eval()
        self.bank.filters.copies *= 2 if self.bank.orbit.value.requires_grad else 1

    @torch.no_grad()
    def log_evidence(self) -> float:
        """For each datum, with the even set of transformations."""
        return self.evidence().item() / len(self.digits.targets)

    @torch.no_grad()
    def facts(self) -> Numbers:
        """Extents in natural units, log evidence, test accuracy of the posterior mean, and the error of least squares."""
        features, targets = self.bank(self.digits.train[0]), self.digits.targets
        precision, noise = self.log_precision.exp(), self.log_noise.exp()
        weights = posterior_mode(features, targets, precision, noise)
        correct = (self.bank(self.digits.test[0]).double() @ weights).argmax(1) == self.digits.test[1]
        return {
            "extents": self.bank.extents,
            "log_evidence": self.log_evidence(),
            "accuracy": correct.double().mean().item(),
            "training_error": self._squares(features).item() / targets.numel(),
            "lengthscale": self.bank.lengthscale,
            "precision": precision.item(),
            "noise": noise.item(),
        }

    @torch.no_grad()
    def maps(self) -> list[list[list[list[float]]]]:
        """A few filters, each in versions from one end of the rotation to the other: how much darker than the ground."""
        draws = self.bank.orbit.even(_VERSIONS)[0]
        draws = draws[draws[:, _GROUP.names.index("rotation")].argsort()]
        images = self.digits.filters[list(_SHOWN)]
        moved = self.bank.orbit.transform(draws[None], images)[:, :, 0]
        ink = moved - self.digits.filters.min()
        return [[[[round(v, 2) for v in row] for row in version] for version in one] for one in ink.tolist()]

    def _squares(self, features: Tensor) -> Tensor:
        targets = self.digits.targets
        weights = posterior_mode(features, targets, 1.0, _RIDGE**0.5)
        return (features.double() @ weights - targets).square().sum()


def _digits(settings: Settings, name: str) -> _Digits:
    task = load("upright-digits")
    generator = torch.Generator().manual_seed(settings.seed)
    # The digits are 8 × 8, in the middle of 16 × 16: what is cut off is empty.
    (images, labels), (held_out, answers) = ((x[:, :, 2:-2, 2:-2], y) for x, y in (task.train, task.test))
    end = settings.data + settings.filters
    if not (settings.data > 0 and settings.filters > len(_SHOWN) and end <= len(images)):
        raise ValueError(
            f"There are {len(images)} digits for data and filters together, and a few filters are drawn; got "
            f"data={settings.data} and filters={settings.filters}."
        )
    moved = _move(images[:end], DATA[name], generator)
    filters = images[settings.data : end] if settings.upright_filters else moved[settings.data :]
    train = (moved[: settings.data], labels[: settings.data])
    return _Digits(train, (_move(held_out, DATA[name], generator), answers), filters)


def _move(images: Tensor, amounts: dict[str, float], generator: Generator) -> Tensor:
    """Each image under a transformation of its own."""
    draws = 2 * torch.rand(len(images), 1, len(_GROUP.names), generator=generator) - 1
    draws[..., -1] = draws[..., -2]  # one scale for both axes
    return _GROUP.transform(draws * torch.tensor([amounts.get(name, 0.0) for name in _GROUP.names]), images)[:, 0]


def _natural(amounts: dict[str, float]) -> dict[str, float]:
    """What was done to the data, by the names and in the units of learned extents; an image is 12 pixels wide."""
    found = {g.name: g.natural(amounts.get(g.name, 0.0), 12) for g in _GROUP.generators}
    return {"translation": found["translation_x"], "rotation": degrees(amounts.get("rotation", 0.0)), "scale": found["scale_x"]}
