"""`sb.discover`: from trajectories to an energy, conserved quantities and symmetries."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from symbayes.data.source import as_source
from symbayes.data.storage import from_json, to_json
from symbayes.dynamics.discovery import Discovery
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.quantity import span_of
from symbayes.dynamics.search import Search
from symbayes.dynamics.summary import DiscoveryRecord
from symbayes.dynamics.systems import System
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.trajectories import Scaling, Trajectories
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.training.deterministic import deterministic_algorithms
from symbayes.training.fit import checkpoint_of, learn_with_bar
from symbayes.training.record import Record
from symbayes.training.trainer import Problem


def discover(
    trajectories: Trajectories | Tensor | np.ndarray,
    *,
    step: float | None = None,
    symmetry: str | Quadratics = "quadratic",
    noise: float | None = None,
    search: Search | None = None,
    held_out: Trajectories | float = 0.2,
    begin: Discovery | None = None,
    units: Scaling | None = None,
    system: System | str | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    each_epoch: Callable[[Record], None] = lambda record: None,
    progress: bool = True,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = 60.0,
    resume: bool = False,
    deterministic: bool = False,
) -> Discovery:
    """Learn the Hamiltonian of a system, its conserved quantities and its symmetries, from trajectories alone.

    The energy is a network that is averaged over the flows of learned observables; how far, the evidence says. Where an
    observable is conserved, the average costs nothing and leaves less to fit with, so it grows; others vanish. It is Noether's
    razor (van der Ouderaa, van der Wilk and de Haan 2024).

    Args:
        trajectories: Or an array [trajectories, times, coordinates] of positions and then momenta.
        step: The time between states, where trajectories are an array.
        symmetry: Observables to be learned, "quadratic", or "neural" for any form; "none", the plain network; or fixed
            `Quadratics`, known beforehand.
        noise: The standard deviation of what is observed, in all coordinates; learned for each coordinate when None.
        search: Settings.
        held_out: On which conserved quantities are checked: trajectories, or the share of the given ones to set apart. The
            longer they are, the more they say; a single one that is cut in time is followed from its start.
        begin: A discovery in the same data whose energy to begin with, such as that of a plain network. Where a system is hard
            to fit, symmetries that hold only roughly are found first, and kept; beside an energy that fits they are not.
        units: In which the network sees states; those of `begin`, or those in which they are of size one when None.
        system: What made the trajectories, or its name, where that is known: a truth to compare with, and nothing else.
        device: Where to compute.
        seed: For initial weights, draws and the order of data.
        each_epoch: Called with what training says after every epoch.
        progress: Whether to show a bar.
        checkpoint: A folder in which training is kept while it goes on; as in `fit`.
        checkpoint_every: Seconds from one checkpoint to the next.
        resume: Whether to go on from the checkpoint in that folder.
        deterministic: As in `fit`.

    Raises:
        ValueError: If settings, data and what is held out do not fit together.
    """
    search = search if search is not None else Search()
    if noise is not None and not 0 < noise < inf:
        raise ValueError(
            f"noise must be above 0 and finite, got {noise:g}. It is a standard deviation; leave it out, and it is learned."
        )
    check_device(device)
    known = _as_trajectories(trajectories, step)
    train, rest = (known, held_out) if isinstance(held_out, Trajectories) else known.split(float(held_out))
    if rest.names != train.names:
        raise ValueError(
            f"Trajectories held out must have the coordinates {', '.join(train.names)}; got {', '.join(rest.names)}."
        )
    if abs(rest.step - train.step) > 1e-6 * train.step:
        raise ValueError(
            f"Trajectories held out must have the step of the others, {train.step:g}; got {rest.step:g}. What is learned "
            "predicts one step."
        )
    truth = by_name(system) if isinstance(system, str) else system
    if truth is not None and truth.degrees != train.degrees:
        raise ValueError(
            f"The system must have {train.degrees} degrees of freedom, as the trajectories; {truth.name} has {truth.degrees}."
        )
    units = units if units is not None else begin.units if begin is not None else Scaling.of(train)
    inside = units.entered(train).float()
    model = search.model(inside.step, train.degrees, units, symmetry, seed).to(device)
    if begin is not None:
        _begin_with(begin, model, units)
    likelihood = Gaussian(0.1, outputs=2 * train.degrees)
    if noise is not None:
        likelihood.log_noise.data.copy_((noise / units.scale).log())
        likelihood.log_noise.requires_grad_(False)
    problem = Problem(
        model,
        as_source(inside.pairs(), torch.device(device)),
        likelihood.to(device),
        TensorwisePrior(model).to(device),
    )
    problem.check(search.batch_size, curvature=False)
    history = _History()

    def note(record: Record) -> None:
        learned = model.observables if isinstance(model.observables, Quadratics) else None
        strengths = tuple(span_of(learned, search.threshold).strengths.tolist()) if learned is not None else ()
        bound = record.evidence.total / problem.data.size - units.log_volume if record.evidence else None
        history.records.append(DiscoveryRecord(record.epoch, None if bound is None else -bound, strengths))
        each_epoch(record)

    with deterministic_algorithms(torch.device(device)) if deterministic else nullcontext():
        result = learn_with_bar(
            search.objective(symmetry).trainer(problem, search.schedule(problem.data.size)),
            generator=torch.Generator().manual_seed(seed),
            each_epoch=note,
            progress=progress,
            checkpoint=checkpoint_of(checkpoint, checkpoint_every, resume),
            beside={"history": history},
            stoppable=True,
        )
    followed = known if len(known) == 1 and not isinstance(held_out, Trajectories) else rest  # one that was cut in time
    seconds = result.history[-1].seconds
    return Discovery(result, units, search, train, rest, truth, tuple(history.records), seconds, followed)


class _History:
    """What is noted of the epochs, kept with checkpoints."""

    def __init__(self) -> None:
        self.records: list[DiscoveryRecord] = []

    def state_dict(self) -> dict[str, Any]:
        return {"records": to_json(self.records)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.records = from_json(state["records"], list[DiscoveryRecord], "history")


def _begin_with(begin: Discovery, model: HamiltonianNetwork, units: Scaling) -> None:
    """Copy the energy of another network, which must be of the same form.

    Raises:
        ValueError: If it is of another form, or in other units.
    """
    shapes = [{name: tuple(value.shape) for name, value in each.net.state_dict().items()} for each in (begin.model, model)]
    if shapes[0] != shapes[1] or not torch.equal(begin.units.scale, units.scale) or begin.units.time != units.time:
        raise ValueError(
            "The discovery to begin with must have the width, the hidden layers, the coordinates and the units of the new one. "
            "Use the same settings and data for both."
        )
    model.net.load_state_dict(begin.model.net.state_dict())


def check_device(device: str | torch.device) -> None:
    """Refuse a device that there is not, or that has no double precision, before anything is done.

    Raises:
        ValueError: Saying which.
    """
    try:
        torch.zeros(1, device=device).sum().item()
    except Exception as error:  # torch has many ways to say that something is not there
        words = str(error).partition("\n")[0].partition(". ")[0]
        raise ValueError(
            f"device must be one that torch can compute on here, such as cpu; got {str(device)!r}: {words}"
        ) from error
    try:
        torch.zeros(1, dtype=torch.float64, device=device).sum().item()
    except Exception as error:
        raise ValueError(
            f"device must have double precision, in which curvature is decomposed; {str(device)!r} has not. Use cpu or cuda."
        ) from error


def _as_trajectories(given: Trajectories | Tensor | np.ndarray, step: float | None) -> Trajectories:
    if isinstance(given, Trajectories):
        if step is not None and step != given.step:
            raise ValueError(f"Trajectories know their step, {given.step:g}; leave step out, got {step:g}.")
        return given
    if step is None:
        raise ValueError("An array does not say the time between its states; give step.")
    states = torch.as_tensor(given)
    return Trajectories(states if states.is_floating_point() else states.double(), float(step))
