"""`symbayes discover`."""

from pathlib import Path
from typing import Annotated

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
from symbayes.dynamics.discover import check_device
from symbayes.dynamics.discover import discover as discover_in
from symbayes.dynamics.discovery import RUN
from symbayes.dynamics.phase import INTEGRATORS
from symbayes.dynamics.search import Search
from symbayes.dynamics.summary import DISCOVERY
from symbayes.dynamics.systems import System
from symbayes.dynamics.systems import system as by_name
from symbayes.dynamics.trajectories import Trajectories, load_trajectories, simulate
from symbayes.report.discovery import discovery_table
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
    trajectories: Annotated[int, typer.Option(help="To simulate.", min=2)] = 50,
    steps: Annotated[int, typer.Option(help="Of each, to simulate.", min=1)] = 10,
    symmetry: Annotated[str, typer.Option(help="quadratic, neural, or none for a plain Hamiltonian network.")] = "quadratic",
    quantities: Annotated[int | None, typer.Option(help="Observables to begin with; more than are conserved.", min=1)] = None,
    held_out: Annotated[float, typer.Option(help="Share of trajectories to check on; of a single one, of its states.")] = 0.2,
    noise: Annotated[float | None, typer.Option(help="Standard deviation of observations; learned when not given.")] = None,
    integrator: Annotated[str, typer.Option(help=f"{', '.join(INTEGRATORS)}.")] = "midpoint",
    substeps: Annotated[int, typer.Option(help="Steps of the integrator from a state to the next.", min=1)] = 2,
    updates: Annotated[int, typer.Option(help="Steps of training.", min=1)] = Search().updates,
    width: Annotated[int, typer.Option(help="Of the network of the energy.", min=1)] = Search().width,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(help="For simulation, initial weights and draws.")] = 0,
    overwrite: Overwrite = False,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = 60.0,
    deterministic: Deterministic = False,
) -> None:
    """Find the energy, the conserved quantities and the symmetries of a system, from its trajectories alone."""
    if integrator not in INTEGRATORS:
        raise typer.BadParameter(f"--integrator must be one of {', '.join(INTEGRATORS)}; got {integrator!r}.")
    search = Search(quantities=quantities, width=width, integrator=INTEGRATORS[integrator](substeps), updates=updates)
    try:
        check_device(device)
        data, system = _read(what, step, trajectories, steps, noise, seed)
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
        with writing(out):
            summary = found.save(out)
            write_page(out / RUN)
            write_page(out)
        if not found.result.is_partial:
            remove_folder(checkpoint)
    table = discovery_table(summary)
    if table.rows:
        console.print(paper_table(summary.headline(), table))
    console.print(f"{table.legend} {table.note}".strip(), highlight=False)
    terms = ", ".join(f"{name} {value:.3f}" for name, value in found.evidence.items())
    console.print(f"per pair of states, in nats: {terms}; {found.seconds:.0f} s of training", highlight=False)
    if found.result.is_partial:
        raise stopped(out)
    console.print(f"The page: {out / PAGE}", highlight=False)


def _read(
    what: str, step: float | None, trajectories: int, steps: int, noise: float | None, seed: int
) -> tuple[Trajectories, System | None]:
    """Trajectories of a file; or of a system, which is then known."""
    if Path(what).suffix.lower() in (".csv", ".npy") or Path(what).is_file():
        return load_trajectories(what, step), None
    system = by_name(what)
    made = simulate(
        system,
        trajectories=trajectories,
        steps=steps,
        step=step if step is not None else 0.2,
        noise=noise if noise is not None else _NOISE,
        seed=seed,
    )
    return made, system
