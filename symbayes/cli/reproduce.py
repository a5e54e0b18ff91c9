"""`symbayes reproduce`."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from symbayes.cli.terminal import console
from symbayes.data.task import Task
from symbayes.experiments import lila, noether
from symbayes.experiments.filter_table import PAPER as FILTERS
from symbayes.experiments.rows import Options

#: What there is to reproduce.
_PAPERS = {"lila": lila.PAPER, "filters": FILTERS, "conserved": noether.PAPER}


def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="lila: invariances of networks, against none and Augerino. filters: of weights, by a variational bound. "
            "conserved: Noether's razor, against plain Hamiltonian networks and known symmetries."
        ),
    ],
    task: Annotated[
        str,
        typer.Option(help="mnist or cifar10; for filters mnist or upright-digits; for conserved 2-oscillators, 3-body-2d, …"),
    ],
    out: Annotated[Path, typer.Option(help="File of results; rows of other runs in it are kept.")],
    data: Annotated[Path | None, typer.Option(help="Folder that holds the files of the task.")] = None,
    versions: Annotated[str | None, typer.Option(help="How images are transformed; with commas.")] = None,
    sizes: Annotated[str | None, typer.Option(help="Numbers of training images, or of trajectories; with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="With commas.")] = None,
    starts: Annotated[str | None, typer.Option(help="First extents, of filters; with commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="With commas.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data, if not as usual.", min=1)] = None,
    samples: Annotated[int | None, typer.Option(help="Transformations, if not as usual.", min=1)] = None,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    commit: Annotated[str, typer.Option(help="Of this code, to be kept with the results.")] = "",
) -> None:
    """Run an experiment of the papers, and keep its figures with the command that made them."""
    if what not in _PAPERS:
        raise typer.BadParameter(f"There are {' and '.join(map(repr, _PAPERS))} to reproduce, got {what!r}.")
    paper = _PAPERS[what]
    given = {"versions": versions, "sizes": sizes, "methods": methods, "starts": starts, "seeds": seeds}
    strange = [name for name, value in given.items() if value is not None and name not in paper.lists]
    if strange:
        raise typer.BadParameter(f"{what} has no {' or '.join(strange)}, only {', '.join(paper.lists)}.")
    lists = {name: given[name] or usual for name, usual in paper.lists.items()}
    try:
        todo = list(paper.rows(task, {name: value.split(",") for name, value in lists.items()}))
        whole = paper.load(task, data)
    except (ValueError, KeyError, OSError) as error:
        raise typer.BadParameter(str(error)) from error
    if isinstance(whole, Task) and max(row.size for row in todo) > len(whole.train[0]):
        raise typer.BadParameter(
            f"--sizes must be at most {len(whole.train[0])}, the training images of {task}; got {lists['sizes']}."
        )
    words = {"task": task, **lists, "samples": samples, "device": device, "epochs": epochs}
    command = f"symbayes reproduce {what} " + " ".join(
        f"--{name} {value}" for name, value in words.items() if value is not None
    )
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else device
    for index, row in enumerate(todo, start=1):
        found = paper.run(row, whole, Options(samples, epochs, device))
        rows = paper.keep(out, {**found, "command": command, "commit": commit, "machine": machine, "torch": torch.__version__})
        name = ", ".join(str(value) for value in vars(row).values())
        console.print(f"{index}/{len(todo)} {name}: {paper.words(found)}", highlight=False)
    console.print(", ".join(str(file) for file in [out, *paper.write(out, rows)]), highlight=False)
