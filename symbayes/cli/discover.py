"""`symbayes discover`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from symbayes.cli.terminal import (
    CheckpointEvery,
    Deterministic,
    Overwrite,
    Resume,
    console,
    paper_table,
    run_folder,
    stopped,
    writing,
)
from symbayes.data.folders import remove_folder
from symbayes.dynamics.discover import TERMS, check_device
from symbayes.dynamics.discover import discover as discover_in
from symbayes.dynamics.discovery import TermsDiscovery
from symbayes.dynamics.energy import RUN, EnergyDiscovery
from symbayes.dynamics.phase import INTEGRATORS
from symbayes.dynamics.search import Search
from symbayes.dynamics.summary import DISCOVERY
from symbayes.dynamics.systems import System
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.tables import load_trajectories
from symbayes.dynamics.trajectories import Trajectories, simulate
from symbayes.report.quantities import discovery_table
from symbayes.report.runs import PAGE, write_page

#: The standard deviation of what is observed of a simulated system, if none is given.
_NOISE = 1e-3**0.5


def discover(
    what: Annotated[
        str,
        typer.Argument(
            help="A .csv or .npy file of trajectories; or a system to simulate: oscillator, 2-oscillators, 3-body-2d, kepler, …"
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result and its page.")],
    step: Annotated[float | None, typer.Option(help="Time between states; a .csv with a column time knows it.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="Of a .csv: coordinates, with commas; for an energy, positions and then momenta.")
    ] = None,
    time: Annotated[str | None, typer.Option(help="Of a .csv: the column of times, if it is not called time or t.")] = None,
    trajectory: Annotated[
        str | None, typer.Option(help="Of a .csv: the column that tells trajectories apart, if not called trajectory or run.")
    ] = None,
    trajectories: Annotated[int, typer.Option(help="To simulate.", min=2)] = 50,
    steps: Annotated[int | None, typer.Option(help="Of each, to simulate; 100, and for an energy 10.", min=1)] = None,
    symmetry: Annotated[
        str | None,
        typer.Option(
            help="terms, sums of terms that are constant; or with an energy quadratic, neural, or none for a plain one. "
            "terms when not given, and quadratic where an option of an energy is."
        ),
    ] = None,
    quantities: Annotated[
        int | None, typer.Option(help="With an energy: observables to begin with; more than are conserved.", min=1)
    ] = None,
    held_out: Annotated[
        float | None, typer.Option(help="Share of trajectories to check on: a half, and with an energy a fifth.")
    ] = None,
    noise: Annotated[float | None, typer.Option(help="Standard deviation of observations; learned when not given.")] = None,
    integrator: Annotated[str | None, typer.Option(help=f"Of an energy: {', '.join(INTEGRATORS)}; midpoint.")] = None,
    substeps: Annotated[
        int | None, typer.Option(help="Of an energy: steps of the integrator from a state to the next; 2.", min=1)
    ] = None,
    updates: Annotated[int | None, typer.Option(help=f"Of an energy: steps of training; {Search().updates}.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help=f"Of the network of an energy; {Search().width}.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="For simulation, initial weights and draws.")] = 0,
    overwrite: Overwrite = False,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = 60.0,
    deterministic: Deterministic = False,
) -> None:
    """Find what is conserved in trajectories, and how sure that is."""
    of_energy = {"quantities": quantities, "integrator": integrator, "substeps": substeps, "updates": updates, "width": width}
    given = [f"--{name}" for name, value in of_energy.items() if value is not None]
    symmetry = symmetry or ("quadratic" if given else TERMS)
    if symmetry == TERMS and given:
        raise typer.BadParameter(f"{', '.join(given)} must be left out with --symmetry terms, which learns no energy.")
    integrator = integrator or "midpoint"
    if integrator not in INTEGRATORS:
        raise typer.BadParameter(f"--integrator must be one of {', '.join(INTEGRATORS)}; got {integrator!r}.")
    search = None
    if symmetry != TERMS:
        usual, rule = Search(), INTEGRATORS[integrator](substeps or 2)
        search = replace(usual, quantities=quantities, width=width or usual.width, integrator=rule)
        search = replace(search, updates=updates or usual.updates)
    try:
        check_device(device)
        named = [name.strip() for name in columns.split(",")] if columns else None
        header = {"columns": named, "time": time, "trajectory": trajectory}
        data, system = _read(what, step, header, trajectories, steps, noise, seed, symmetry)
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    with run_folder(out, holds=(DISCOVERY, PAGE, RUN), overwrite=overwrite, resume=resume) as checkpoint:
        try:
            found = discover_in(
                data,
                symmetry=symmetry,
                noise=noise,
                search=search,
                held_out=held_out,
                system=system,
                device=device,
                seed=seed,
                checkpoint=checkpoint,
                checkpoint_every=checkpoint_every,
                resume=resume,
                deterministic=deterministic,
            )
        except (ValueError, OSError) as error:
            raise typer.BadParameter(str(error)) from error
        if isinstance(found, TermsDiscovery) and system is None:
            found = replace(found, name=Path(what).name)
        with writing(out):
            summary = found.save(out)
            if isinstance(found, EnergyDiscovery):
                write_page(out / RUN)
            write_page(out)
        if not summary.is_partial:
            remove_folder(checkpoint)
    table = discovery_table(summary)
    if table.rows:
        console.print(paper_table(summary.headline(), table))
    console.print(f"{table.legend} {table.note}".strip(), highlight=False)
    if isinstance(found, EnergyDiscovery):
        terms = ", ".join(f"{name} {value:.3f}" for name, value in found.evidence.items())
        console.print(f"per pair of states, in nats: {terms}; {found.seconds:.0f} s of training", highlight=False)
        if summary.gain is not None:
            console.print(summary.gain_words(), highlight=False)
    if summary.is_partial:
        raise stopped(out)
    console.print(f"The page: {out / PAGE}", highlight=False)


def _read(
    what: str,
    step: float | None,
    header: dict[str, Any],
    trajectories: int,
    steps: int | None,
    noise: float | None,
    seed: int,
    symmetry: str,
) -> tuple[Trajectories, System | None]:
    """Trajectories of a file; or of a system, which is then known."""
    if Path(what).suffix.lower() in (".csv", ".npy") or Path(what).is_file():
        return load_trajectories(what, step, **header), None
    if named := [f"--{name}" for name, value in header.items() if value is not None]:
        raise ValueError(f"{', '.join(named)} must be left out for a system, which is simulated; they are of a .csv file.")
    system, std = by_name(what), _NOISE if noise is None else noise
    if symmetry != TERMS:
        made = simulate(system, trajectories=trajectories, steps=steps or 10, step=step or 0.2, noise=std, seed=seed)
        return made, system
    made = simulate(system, trajectories=trajectories, steps=steps or 100, step=step or 0.1, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    noisy = made.states + std * torch.randn(made.states.shape, generator=generator, dtype=made.states.dtype)
    return replace(made, states=noisy), system
