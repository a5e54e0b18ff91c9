"""`symbayes fit` and `symbayes report`."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import torch
import typer

from symbayes.cli.terminal import (
    CHECKPOINT,
    CheckpointEvery,
    Deterministic,
    Overwrite,
    Resume,
    console,
    plain_table,
    run_folder,
    stopped,
    writing,
)
from symbayes.data.folders import remove_folder
from symbayes.data.load import load
from symbayes.data.source import as_source
from symbayes.data.storage import DAMAGE, error_words, write_whole
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.dynamics.discover import check_device
from symbayes.likelihoods.classes import Categorical
from symbayes.models import allconv
from symbayes.posterior.predict import Calibration
from symbayes.priors import TensorwisePrior
from symbayes.processes import all_processes, of_torchrun
from symbayes.report.runs import PAGE, make_page, write_page
from symbayes.training.elbo import Elbo
from symbayes.training.fit import fit as fit_model
from symbayes.training.fit import preset
from symbayes.training.result import Result
from symbayes.training.trainer import Problem

#: Test data on which `fit` looks at calibration: linearised predictions of large networks take a while.
_CALIBRATED = 200
_METHODS = ("evidence", "elbo", "map")
#: By which a folder is known to hold a result.
_FILES = ("result.json", "history.jsonl", "weights.safetensors", "report.html")


def fit(
    task: Annotated[
        str,
        typer.Argument(help="placed-digits, quadrant-digits, turned-digits, …, mnist, cifar10."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result and its page.")],
    data: Annotated[Path | None, typer.Option(help="Folder that holds the files of mnist or cifar10.")] = None,
    paths: Annotated[
        str, typer.Option(help="Of every block: dense, factored, sparse, conv, sparse_conv, gconv; with commas.")
    ] = "factored,conv",
    group: Annotated[str, typer.Option(help="Of gconv paths: p4, p4m, flips or cube.")] = "p4",
    width: Annotated[int, typer.Option(min=1)] = 10,
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    by: Annotated[str, typer.Option(help="'evidence' by Laplace's method, 'elbo', or 'map' for a fixed prior.")] = "evidence",
    augment: Annotated[bool, typer.Option("--augment", help="Flip and crop training images at random.")] = False,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    overwrite: Overwrite = False,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = 60.0,
    deterministic: Deterministic = False,
) -> None:
    """Train the paper's network on a task, and save the result with its page; under torchrun by all its processes."""
    if by not in _METHODS:
        raise typer.BadParameter(f"--by must be one of {', '.join(_METHODS)}, got {by!r}.")
    with of_torchrun(device) as device:
        try:
            check_device(device)
            loaded = load(task, data)
            model = allconv(loaded, paths.split(","), width, group=group, generator=torch.Generator().manual_seed(seed)).to(
                device
            )
        except (ValueError, KeyError, OSError) as error:
            raise typer.BadParameter(str(error.args[0] if isinstance(error, KeyError) else error)) from error
        prior = TensorwisePrior(model)
        problem = Problem(model, as_source(loaded.train, torch.device(device)), Categorical(), prior)
        usual = preset(problem, Elbo() if by == "elbo" else None, epochs)
        usual = usual.by_map() if by == "map" else usual
        first = all_processes().is_first
        folder = run_folder(out, holds=_FILES, overwrite=overwrite, resume=resume) if first else nullcontext(out / CHECKPOINT)
        with folder as checkpoint:
            console.quiet = not first
            console.print(str(loaded), highlight=False)
            console.print(model.description, highlight=False)
            try:
                result = fit_model(
                    model,
                    loaded.train,
                    prior=prior,
                    objective=usual.objective,
                    optimiser=usual.optimiser,
                    schedule=usual.schedule,
                    augment=FlipCrop() if augment else None,
                    seed=seed,
                    checkpoint=checkpoint,
                    checkpoint_every=checkpoint_every,
                    resume=resume,
                    deterministic=deterministic,
                )
            except ValueError as error:  # a checkpoint of something else
                raise typer.BadParameter(str(error)) from error
            if not first:
                return
            calibration = _show(result, loaded)
            with writing(out):
                result.save(out, calibration)
                write_page(out)
            if result.is_partial:
                raise stopped(out)
            remove_folder(checkpoint)
        console.print(f"Saved to {out}", highlight=False)


def _show(result: Result, task: Task) -> Calibration:
    """Print what was learned, and how good it is; the calibration on some test data."""
    console.print(plain_table(*result.symmetries.table(), left=3))
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in result.evaluate(task.test, by="plug-in").items())
    spread, size = result.evidence.standard_error, result.num_data
    evidence = f"log evidence {result.log_evidence / size:.4f}" + ("" if spread is None else f" ± {spread / size:.4f}")
    console.print(f"test, plug-in: {metrics}; {evidence} per datum ({result.evidence.estimator})", highlight=False)
    calibration = result.calibration((task.test[0][:_CALIBRATED], task.test[1][:_CALIBRATED]))
    console.print(calibration.words())
    console.print(plain_table(*calibration.table()))
    return calibration


def report(folder: Annotated[Path, typer.Argument(help="Folder where a result or a discovery was saved.")]) -> None:
    """Make the page of a saved result or discovery."""
    try:
        page = make_page(folder)
    except (OSError, *DAMAGE) as error:
        raise typer.BadParameter(f"No page can be made of {folder}: {error_words(error)}.") from error
    with writing(folder):
        write_whole(folder / PAGE, page)
    console.print(f"{folder / PAGE}", highlight=False)
