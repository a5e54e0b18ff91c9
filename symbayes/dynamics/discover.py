"""`sb.discover`: from trajectories to an energy, conserved quantities and symmetries."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from symbayes.data.source import as_source
from symbayes.data.storage import from_json, to_json
from symbayes.dynamics.denoising import common, denoised, different, unwrapped
from symbayes.dynamics.discovery import Discovery, TermsDiscovery
from symbayes.dynamics.energy import EnergyDiscovery
from symbayes.dynamics.fitting import shaped
from symbayes.dynamics.library import Library, libraries
from symbayes.dynamics.network import HamiltonianNetwork
from symbayes.dynamics.observables import Quadratics
from symbayes.dynamics.quantity import span_of
from symbayes.dynamics.search import Search
from symbayes.dynamics.summary import DiscoveryRecord
from symbayes.dynamics.systems import System
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.tables import load_trajectories
from symbayes.dynamics.terms import Sum, Terms, candidates
from symbayes.dynamics.trajectories import Scaling, Trajectories
from symbayes.dynamics.verdict import ENOUGH, Verdict, controlled, judge_either_way
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.training.checkpoint import Checkpoint, is_checkpoint
from symbayes.training.deterministic import deterministic_algorithms
from symbayes.training.fit import checkpoint_of, learn_with_bar
from symbayes.training.record import Record
from symbayes.training.result import Result
from symbayes.training.trainer import Problem


def discover(
    trajectories: Trajectories | Tensor | np.ndarray | str | Path,
    *,
    step: float | None = None,
    symmetry: str | Quadratics | None = None,
    noise: float | None = None,
    search: Search | Terms | None = None,
    held_out: Trajectories | float | None = None,
    system: System | str | None = None,
    **energy: Any,
) -> Discovery:
    """Find what is conserved along trajectories, and how sure that is.

    There are two ways, and one verdict. Sums of terms ("terms") are sought that are constant along trajectories and differ
    between them, whatever moves these: in any coordinates, with friction or without, at uneven times. Or an energy is learned
    ("quadratic", "neural" or "none"; `learn_energy`), from positions and momenta, with the symmetries that evidence finds in
    it. Either way each quantity is judged on trajectories that nothing was learned from.

    Args:
        trajectories: Or an array [trajectories, times, coordinates], or a file of them.
        step: The time between states, where they do not say it.
        symmetry: How: "terms"; or observables to be learned with an energy, "quadratic", or "neural" for any form; "none", a
            plain energy; or fixed `Quadratics`, known beforehand. None for what settings are of: "quadratic" with a `Search`,
            and otherwise "terms".
        noise: The standard deviation of what is observed, in all coordinates; learned for each coordinate when None.
        search: Settings, `Search` of an energy or `Terms`.
        held_out: On which quantities are judged: trajectories, or the share of the given ones to set apart. None for a half,
            and with an energy for a fifth.
        system: What made the trajectories, or its name, where that is known: a truth to compare with, and nothing else.
        **energy: What else `learn_energy` takes.

    Raises:
        ValueError: If settings, data and what is held out do not fit together.
    """
    title = Path(trajectories).name if isinstance(trajectories, str | Path) else ""
    known = (
        load_trajectories(trajectories, step) if isinstance(trajectories, str | Path) else _as_trajectories(trajectories, step)
    )
    if symmetry is None:
        symmetry = "quadratic" if isinstance(search, Search) else TERMS
    if symmetry == TERMS:
        if isinstance(search, Search):
            raise ValueError("Sums of terms need settings Terms(...); got a Search, which is of an energy.")
        _check_harmless(energy)
        return find_terms(
            known, noise=noise, terms=search, held_out=0.5 if held_out is None else held_out, system=system, name=title
        )
    if isinstance(search, Terms):
        raise ValueError(f"An energy with symmetry={symmetry!r} needs settings Search(...); got Terms, of sums of terms.")
    share = 0.2 if held_out is None else held_out
    return learn_energy(known, symmetry=symmetry, noise=noise, search=search, held_out=share, system=system, **energy)


#: Sums of terms, as a way to discover, and what it may be told that changes nothing there.
TERMS = "terms"
_HARMLESS = ("device", "seed", "progress", "each_epoch", "checkpoint", "checkpoint_every", "resume", "deterministic")


def _check_harmless(energy: Mapping[str, Any]) -> None:
    if strange := [name for name in energy if name not in _HARMLESS]:
        raise ValueError(
            f"{', '.join(strange)} {'is' if len(strange) == 1 else 'are'} of an energy, and sums of terms have none. Give "
            'symmetry="quadratic" for one, or leave that out.'
        )


def find_terms(
    known: Trajectories,
    *,
    noise: float | None = None,
    terms: Terms | None = None,
    held_out: Trajectories | float = 0.5,
    system: System | str | None = None,
    name: str = "",
) -> TermsDiscovery:
    """Find sums of terms that are conserved along trajectories, in a few seconds; arguments are those of `discover`.

    Raises:
        ValueError: If trajectories are too few, or settings, data and what is held out do not fit together.
    """
    started = perf_counter()
    terms = terms if terms is not None else Terms()
    _check_noise(noise)
    given, wrapped = unwrapped(known)
    if isinstance(held_out, Trajectories):
        train, rest = given, unwrapped(held_out)[0]
    else:
        _check_many(len(given))
        train, rest = given.split(float(held_out))
    _check_names(train, rest)
    for part in (train, rest):
        _check_many(2 * len(part))
    _check_sizes(noise, train, rest)
    stds = None if noise is None else torch.full((train.states.shape[2],), noise, dtype=torch.float64)
    seen, other = denoised(train, stds), denoised(rest, stds)
    _check_copies(train, rest)
    few = different(train, rest, seen.noise) < ENOUGH
    both = torch.cat([each.trajectories.states.flatten(0, 1) for each in (seen, other)])
    verdicts: list[Verdict] = []

    def holds(found: Sum) -> bool:
        verdict = judge_either_way(found, rest, other)
        if few and not verdict.reason:
            verdict = replace(verdict, probability=0.0, p_value=1.0, reason="nearly all trajectories repeat the same few")
        verdicts.append(verdict)
        return verdicts[-1].holds

    with threadpool_limits(1, user_api="blas"):  # of small matrices, which threads only slow down
        sources = [*libraries(train.names, both, terms.libraries), *shaped(train.names, seen, terms.libraries)]
        _check_libraries(sources, terms)
        found = candidates(sources, seen, holds, terms)
    judged = [(one, follows, verdict) for (one, follows), verdict in zip(found, controlled(verdicts), strict=True)]
    truth = by_name(system) if isinstance(system, str) else system
    names = tuple(library.name for library in sources)
    seconds = perf_counter() - started
    return TermsDiscovery(
        learned_from=seen.trajectories,
        held_out=other.trajectories,
        found=tuple(judged),
        noise=seen.noise,
        judged_on=other,
        libraries=names,
        unwrapped=wrapped,
        system=truth,
        seconds=seconds,
        known_noise=noise is not None,
        name=name,
    )


#: Trajectories at least, of which half are held out.
_FEWEST = 6


def _check_many(count: int) -> None:
    if count < _FEWEST:
        raise ValueError(
            f"There must be {_FEWEST} trajectories or more, half of them held out; got {count}. What is conserved differs "
            "between trajectories and not along them, so a single one cannot tell; 16 or more can make sure."
        )


#: Sizes of coordinates, whose fourth powers are squared.
_SMALLEST, _LARGEST = 1e-35, 1e35


def _check_libraries(sources: Sequence[Library], terms: Terms) -> None:
    if not sources:
        raise ValueError(
            f"One library at least must suit the data; of {', '.join(terms.libraries or ())} none does. Some need coordinates "
            "that keep their sign, or a certain number of them, or a number that makes something constant: ask for more, or "
            "leave libraries out for all."
        )


def _check_sizes(noise: float | None, *parts: Trajectories) -> None:
    sizes = torch.stack([part.states.double().abs().amax((0, 1)) for part in parts]).amax(0)
    for name, size in zip(("noise", *parts[0].names), (noise, *sizes.tolist()), strict=True):
        if size and not _SMALLEST <= size <= _LARGEST:
            raise ValueError(
                f"Coordinates and their noise must be between {_SMALLEST:g} and {_LARGEST:g} in size, since products of them "
                f"are formed; {name} is up to {size:g}. Give it in another unit."
            )


def _check_copies(train: Trajectories, rest: Trajectories) -> None:
    rows = common(train, rest).flatten(1)
    if copies := len(rows) - len(rows.unique(dim=0)):
        raise ValueError(
            f"Trajectories must differ, since each counts as one of its own; {copies} of {len(rows)} are copies of others. "
            "Leave them out, and hold out none that was learned from."
        )


def _check_noise(noise: float | None) -> None:
    if noise is not None and not 0 < noise < inf:
        raise ValueError(
            f"noise must be above 0 and finite, got {noise:g}. It is a standard deviation; leave it out, and it is learned."
        )


def _check_names(train: Trajectories, rest: Trajectories) -> None:
    if rest.names != train.names:
        raise ValueError(
            f"Trajectories held out must have the coordinates {', '.join(train.names)}; got {', '.join(rest.names)}."
        )


def learn_energy(
    trajectories: Trajectories | Tensor | np.ndarray,
    *,
    step: float | None = None,
    symmetry: str | Quadratics = "quadratic",
    noise: float | None = None,
    search: Search | None = None,
    held_out: Trajectories | float = 0.2,
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
) -> EnergyDiscovery:
    """Learn the Hamiltonian of a system, its conserved quantities and its symmetries, from trajectories alone.

    The energy is a network that is averaged over the flows of learned observables; how far, the evidence says. Where an
    observable is conserved, the average costs nothing and leaves less to fit with, so it grows; others vanish. It is Noether's
    razor (van der Ouderaa, van der Wilk and de Haan 2024). A plain energy comes first where that helps (`Search.first`). Where
    data are few, observables may settle at what does not hold; so a plain energy is learned as well, with as many updates, and
    the higher bound decides (`EnergyDiscovery.gain`).

    Args:
        trajectories: Or an array [trajectories, times, coordinates] of positions and then momenta.
        step: The time between states, where trajectories are an array.
        symmetry: Observables to be learned, "quadratic", or "neural" for any form; "none", the plain network; or fixed
            `Quadratics`, known beforehand.
        noise: The standard deviation of what is observed, in all coordinates; learned for each coordinate when None.
        search: Settings.
        held_out: On which conserved quantities are checked: trajectories, or the share of the given ones to set apart. The
            longer they are, the more they say; a single one that is cut in time is followed from its start.
        units: In which the network sees states; those in which they are of size one when None.
        system: What made the trajectories, or its name, where that is known: a truth to compare with, and nothing else.
        device: Where to compute.
        seed: For initial weights, draws and the order of data.
        each_epoch: Called with what training says after every epoch, but for those of plain energies before and beside it.
        progress: Whether to show a bar.
        checkpoint: A folder in which training is kept while it goes on; as in `fit`.
        checkpoint_every: Seconds from one checkpoint to the next.
        resume: Whether to go on from the checkpoint in that folder.
        deterministic: As in `fit`.

    Raises:
        ValueError: If settings, data and what is held out do not fit together.
    """
    search = search if search is not None else Search()
    _check_noise(noise)
    check_device(device)
    known = _as_trajectories(trajectories, step)
    train, rest = (known, held_out) if isinstance(held_out, Trajectories) else known.split(float(held_out))
    _check_names(train, rest)
    if train.when is not None or rest.when is not None:
        raise ValueError(
            "Times must be even for an energy to be learned, which predicts one step; these are not. Resample the "
            'trajectories, or look for sums of terms: symmetry="terms".'
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
    units = units if units is not None else Scaling.of(train)
    training = _Training(train, units, noise, torch.device(device), seed, progress)
    kept, *beside = (
        None if checkpoint is None else checkpoint_of(Path(checkpoint) / part, checkpoint_every, resume)
        for part in ("", FIRST, PLAIN)
    )
    for part in beside:
        if part is not None and not resume and is_checkpoint(part.folder):
            raise ValueError(
                f"{part.folder} holds the checkpoint of a training, that of a plain energy beside this one. Go on with "
                "resume=True, or use another folder, or remove that one."
            )
    followed = known if len(known) == 1 and not isinstance(held_out, Trajectories) else rest  # one that was cut in time

    def discovered(run: _Run) -> EnergyDiscovery:
        partial = run.result.is_partial
        return EnergyDiscovery(
            run.result, units, search, train, rest, truth, run.history, run.seconds, followed, is_partial=partial
        )

    first, then = search.parts(symmetry, len(train) * (train.states.shape[1] - 1))
    with deterministic_algorithms(torch.device(device)) if deterministic else nullcontext():
        if first is not None:
            before = training.run(PLAIN, first, lambda record: None, beside[0])
            if before.result.is_partial:
                return discovered(before)
            training = replace(training, before=before)
        found = discovered(training.run(symmetry, then, each_epoch, kept))
        if not search.against_plain or symmetry not in LEARNED or found.is_partial:
            return found
        plain = discovered(training.run(PLAIN, then, lambda record: None, beside[1]))
    if plain.is_partial:
        return replace(found, is_partial=True)
    gain = plain.evidence["negative_elbo"] - found.evidence["negative_elbo"]
    return replace(found if gain >= 0 else plain, gain=gain)


#: No symmetry, and those that are learned.
PLAIN, LEARNED = "none", ("quadratic", "neural")
#: Where beside a checkpoint that of a plain energy is kept, which it begins with.
FIRST = "first"


@dataclass(frozen=True)
class _Run:
    """What training gave, what is noted of its epochs, and seconds; with those of what it began with."""

    result: Result
    history: tuple[DiscoveryRecord, ...]
    seconds: float


@dataclass(frozen=True)
class _Training:
    """Of an energy under some symmetry, with all else the same.

    Args:
        before: A plain energy to begin with.
    """

    train: Trajectories
    units: Scaling
    noise: float | None
    device: torch.device
    seed: int
    progress: bool
    before: _Run | None = None

    def run(
        self,
        symmetry: str | Quadratics,
        search: Search,
        each_epoch: Callable[[Record], None],
        checkpoint: Checkpoint | None,
    ) -> _Run:
        """Train."""
        units = self.units
        inside = units.entered(self.train).float()
        model = search.model(inside, units, symmetry, self.seed).to(self.device)
        if self.before is not None:
            model.net.load_state_dict(cast(HamiltonianNetwork, self.before.result.model).net.state_dict())
        likelihood = Gaussian(0.1, outputs=2 * self.train.degrees)
        if self.noise is not None:
            likelihood.log_noise.data.copy_((self.noise / units.scale).log())
            likelihood.log_noise.requires_grad_(False)
        problem = Problem(
            model,
            as_source(inside.pairs(), self.device),
            likelihood.to(self.device),
            TensorwisePrior(model).to(self.device),
        )
        problem.check(search.batch_size, curvature=False)
        history = _History(search)

        def note(record: Record) -> None:
            learned = model.observables if isinstance(model.observables, Quadratics) else None
            strengths = tuple(span_of(learned, search.threshold).strengths.tolist()) if learned is not None else ()
            bound = record.evidence.total / problem.data.size - units.log_volume if record.evidence else None
            history.records.append(DiscoveryRecord(record.epoch, None if bound is None else -bound, strengths))
            each_epoch(record)

        result = learn_with_bar(
            search.objective(symmetry).trainer(problem, search.schedule(problem.data.size)),
            generator=torch.Generator().manual_seed(self.seed),
            each_epoch=note,
            progress=self.progress,
            checkpoint=checkpoint,
            beside={"history": history},
            stoppable=True,
        )
        earlier, seconds = (self.before.history, self.before.seconds) if self.before is not None else ((), 0.0)
        later = (replace(record, epoch=len(earlier) + record.epoch) for record in history.records)
        return _Run(result, (*earlier, *later), seconds + result.history[-1].seconds)


class _History:
    """What is noted of the epochs, kept with checkpoints, and the settings that they are of."""

    def __init__(self, search: Search) -> None:
        self.records: list[DiscoveryRecord] = []
        self.search = str(replace(search, against_plain=True))  # whether there is another training changes nothing of this one

    def state_dict(self) -> dict[str, Any]:
        return {"records": to_json(self.records), "search": self.search}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        before = state.get("search", self.search)  # it was not kept at first
        if before != self.search:
            raise ValueError(f"A search must go on with the settings it began with, {before}; got {self.search}.")
        self.records = from_json(state["records"], list[DiscoveryRecord], "history")


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
    try:
        states = torch.as_tensor(given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"states must be an array of numbers, [trajectories, times, coordinates]; {error}") from error
    if states.is_complex():
        raise ValueError("states must be real numbers; got complex ones. Give real and imaginary parts as two coordinates.")
    return Trajectories(states if states.is_floating_point() else states.double(), float(step))
