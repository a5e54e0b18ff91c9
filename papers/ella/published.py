"""The figures of the paper (van der Ouderaa, Immer and van der Wilk 2023), to stand beside ours.

Accuracies are in percent, negative log-likelihoods and negative log evidences in nats per image. One seed, no error bars; test
images of CIFAR-10 were flipped and cropped as training images are.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """What the paper prints of a run; None where it prints nothing."""

    accuracy: float
    nll: float | None = None
    #: Negative, per image.
    evidence: float | None = None


#: Table 1, by data, network and method.
TABLE1: Mapping[tuple[str, str, str], Printed] = {
    ("digit-mnist", "fc", "map"): Printed(95.73),
    ("digit-mnist", "conv", "map"): Printed(99.38),
    ("digit-mnist", "fc", "evidence"): Printed(97.04),
    ("digit-mnist", "conv", "evidence"): Printed(99.23),
    ("digit-mnist", "f-fc+conv", "evidence"): Printed(98.86),
    ("quadrant-mnist", "fc", "map"): Printed(95.10),
    ("quadrant-mnist", "conv", "map"): Printed(24.68),
    ("quadrant-mnist", "fc", "evidence"): Printed(95.46),
    ("quadrant-mnist", "conv", "evidence"): Printed(24.50),
    ("quadrant-mnist", "f-fc+conv", "evidence"): Printed(99.00),
}

_TABLE2 = {
    "fc": (Printed(64.42, 2.423), Printed(52.36, 1.319, 1.896)),
    "conv": (Printed(82.81, 1.184), Printed(84.07, 0.464, 1.022)),
    "fc+conv": (Printed(76.93, 1.713), Printed(83.32, 0.489, 1.019)),
    "f-fc": (Printed(50.47, 4.291), Printed(53.38, 1.307, 2.119)),
    "f-fc+conv": (Printed(81.61, 1.343), Printed(83.92, 0.468, 1.277)),
    "s-fc-u": (Printed(50.21, 5.614), Printed(46.18, 1.496, 1.926)),
    "s-conv-u": (Printed(82.53, 0.604), Printed(81.29, 0.562, 1.037)),
    "s-fc+s-conv-u": (Printed(58.80, 5.485), Printed(81.55, 0.538, 0.978)),
    "s-fc-omega": (Printed(49.69, 7.783), Printed(52.22, 1.319, 1.813)),
    "s-conv-omega": (Printed(81.84, 0.913), Printed(81.20, 0.549, 1.055)),
    "s-fc+s-conv-omega": (Printed(77.97, 2.040), Printed(80.63, 0.564, 1.067)),
}
_TABLE3 = {
    "mnist32": (Printed(97.59, 0.172), Printed(99.21, 0.023, 0.328)),
    "translated-mnist": (Printed(90.78, 0.812), Printed(98.27, 0.053, 0.216)),
    "rotated-mnist": (Printed(91.02, 0.819), Printed(95.55, 0.136, 0.896)),
    "cifar10": (Printed(68.33, 3.540), Printed(80.94, 0.552, 0.926)),
    "rotated-cifar10": (Printed(48.30, 5.953), Printed(55.68, 1.236, 1.630)),
}
TABLE2 = {("cifar10", name, m): p for name, pair in _TABLE2.items() for m, p in zip(("map", "evidence"), pair, strict=True)}
TABLE3 = {(task, "mixed", m): p for task, pair in _TABLE3.items() for m, p in zip(("map", "evidence"), pair, strict=True)}

#: Table 3, by data: shares of FC, CONV and GCONV in percent, mean (smallest–largest) over blocks.
SHARES: Mapping[str, tuple[str, str, str]] = {
    "mnist32": ("10 (0–46)", "15 (0–98)", "75 (1–100)"),
    "translated-mnist": ("0 (0–0)", "23 (0–99)", "77 (1–100)"),
    "rotated-mnist": ("8 (0–20)", "8 (0–47)", "83 (47–100)"),
    "cifar10": ("0 (0–1)", "44 (0–99)", "56 (0–100)"),
    "rotated-cifar10": ("4 (0–22)", "14 (0–41)", "82 (58–99)"),
}

#: Precisions on CIFAR-10 by network, block and path (of the factored path: the geometric mean of its two factors).
PRECISIONS: Mapping[str, tuple[Mapping[str, float], ...]] = {
    "fc+conv": tuple(
        {"dense": dense, "conv": conv}
        for dense, conv in (
            (3.59e6, 0.0751), (2.75e6, 1.264), (5.90e6, 14.51), (2.27e7, 230.8),
            (2.96e7, 5438), (3.56e7, 3797), (635.6, 3.13e7), (3.56e7, 1.758),
        )
    ),
    "f-fc+conv": tuple(
        {"factored": (u * v) ** 0.5, "conv": conv}
        for u, v, conv in (
            (4.01e4, 1.8e-3, 0.144), (4.31e4, 7.2e-3, 3.26), (1.30e5, 6.9e-3, 53.2), (8.00e5, 0.170, 6966),
            (4.82e5, 0.467, 97.6), (1.11, 1.26, 16.7), (0.0636, 0.813, 785), (1e-4, 1.96e4, 3.56),
        )
    ),
}  # fmt: skip
#: The path that each block chose: the one with the most effective parameters per weight.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "fc+conv": ("conv",) * 6 + ("dense", "conv"),
    "f-fc+conv": ("conv",) * 5 + ("factored", "factored", "conv"),
}
