"""The state of training by Laplace's method, and the best of it so far."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Generator, Tensor

from symbayes.curvature.kfac import RunningCurvature
from symbayes.curvature.rule import Curvature
from symbayes.evidence.evidence import Evidence
from symbayes.training.hyper import HyperAdam
from symbayes.training.optimiser import Descent
from symbayes.training.record import EvidenceRecord
from symbayes.training.scale import Search
from symbayes.training.steps import Steps
from symbayes.training.trainer import Part, Problem, State, copy_parts, restore_parts

#: In front of names of generators, where it is kept where they were.
BEFORE = "before."


class Best:
    """What is kept: the state of highest evidence so far.

    Args:
        problem: Whose model, prior and likelihood are restored.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        #: The evidence, in plain numbers and as it is compared.
        self.record: EvidenceRecord | None = None
        self.total = torch.tensor(-torch.inf, dtype=torch.float64)
        #: Its epoch, and where generators were before its curvature was found.
        self.epoch, self.before = 0, dict[str, Tensor]()
        self.kept: dict[str, Any] = {}

    def offer(self, evidence: Evidence, epoch: int, before: Mapping[str, Tensor]) -> None:
        """Keep everything as it is now, if its evidence is higher.

        Args:
            evidence: As it is now.
            epoch: The number of this epoch.
            before: Where generators were before its curvature was found.
        """
        total = evidence.total.detach().cpu()
        if self.record is None or total > self.total:
            self.record, self.total = self.problem.described(evidence), total
            self.epoch, self.before = epoch, dict(before)
            self.kept = copy_parts(self._parts())

    def restore(self) -> EvidenceRecord:
        """Put everything back to where it was at its best; the evidence then."""
        assert self.record is not None  # the last epoch makes an offer
        restore_parts(self._parts(), self.kept)
        return self.record

    def state_dict(self) -> dict[str, Any]:
        record = None if self.record is None else asdict(self.record)
        found = {"record": record, "epoch": self.epoch, "total": self.total, **self.kept}
        return found | {f"{BEFORE}{name}": value for name, value in self.before.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.record = None if state["record"] is None else EvidenceRecord(**state["record"])
        self.total, self.epoch, self.before = state["total"], int(state["epoch"]), _before(state)
        self.kept = {name: value for name, value in state.items() if name.partition(".")[0] in self._parts()}

    def _parts(self) -> dict[str, Part]:
        return {"model": self.problem.model, "prior": self.problem.prior, "likelihood": self.problem.likelihood}


@dataclass
class CurvatureState(State):
    """The state of training by Laplace's method."""

    descent: Descent
    hyper: HyperAdam
    #: From which running factors draw, on the device of the model.
    draws: Generator
    running: RunningCurvature | None = None
    #: Where the best state is kept, rather than the last.
    best: Best | None = None
    #: Of the scale of precisions, where there is one.
    search: Search | None = None
    #: Made with the rest, whose steps they take.
    steps: Steps = field(init=False)
    #: Where generators were before the last pass for curvature, and what it gave, which is not saved but found again.
    before: dict[str, Tensor] = field(default_factory=dict)
    curvature: Curvature | None = None
    #: The share of learning rates in this epoch.
    rate_share: float = 1.0

    def parts(self) -> dict[str, Part]:
        found: dict[str, Part] = {**super().parts(), "descent": self.descent, "hyper": self.hyper, "steps": self.steps}
        optional: dict[str, Part | None] = {"running": self.running, "best": self.best, "search": self.search}
        return found | {name: part for name, part in optional.items() if part is not None}

    def generators(self) -> dict[str, Generator]:
        return {**super().generators(), "draws": self.draws}

    def numbers(self) -> dict[str, Any]:
        return {**super().numbers(), **{f"{BEFORE}{name}": value for name, value in self.before.items()}}

    def load_numbers(self, numbers: Mapping[str, Any]) -> None:
        super().load_numbers(numbers)
        self.before, self.curvature = _before(numbers), None


def _before(state: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name.removeprefix(BEFORE): value for name, value in state.items() if name.startswith(BEFORE)}
