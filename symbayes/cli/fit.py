"""`symbayes fit` and `symbayes report`."""

import warnings
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.markup import escape
from torch import nn

from symbayes.cli.terminal import (
    CHECKPOINT,
    CheckpointEvery,
    Deterministic,
    Overwrite,
    Resume,
    check_page,
    console,
    plain_table,
    run_folder,
    stopped,
    writing,
)
from symbayes.data.folders import remove_folder
from symbayes.data.load import DIGITS, FILES, load
from symbayes.data.read import is_data, read_task
from symbayes.data.source import as_source
from symbayes.data.storage import DAMAGE, error_words, write_whole
from symbayes.data.task import Task
from symbayes.data.transform import FlipCrop
from symbayes.dynamics.discover import check_device
from symbayes.invariance.extents import describe_extents
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.models import AllConv
from symbayes.networks import averaged_network, network_for
from symbayes.posterior.predict import Calibration
from symbayes.priors import TensorwisePrior
from symbayes.processes import all_processes, of_torchrun
from symbayes.report.invariance import extent_words, invariance_headline
from symbayes.report.runs import PAGE, make_page, side_by_side, write_page
from symbayes.text import listed
from symbayes.training.elbo import Elbo
from symbayes.training.fit import fit as fit_model
from symbayes.training.fit import preset
from symbayes.training.held_out import held_out as held_out_data
from symbayes.training.record import HeldOut
from symbayes.training.result import Result
from symbayes.training.symmetries import headline
from symbayes.training.trainer import Problem

#: Test data on which `fit` looks at calibration: linearised predictions of large networks take a while.
_CALIBRATED = 200
_METHODS, _AUGMENTS = ("evidence", "elbo", "map"), ("learn", "flip-crop")
#: By which a folder is known to hold a result.
_FILES = ("result.json", "history.jsonl", "weights.safetensors", "report.html")


def complete_tasks(begun: str) -> list[str]:
    """Names of tasks that begin so, for shells."""
    return [name for name in (*DIGITS, *FILES) if name.startswith(begun)]


def fit(
    what: Annotated[
        str,
        typer.Argument(
            help="A folder of images by class, a table (.csv), arrays x and y (.npz); or placed-digits, …, mnist, cifar10.",
            metavar="DATA",
            autocompletion=complete_tasks,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the result and its page.")],
    data: Annotated[Path | None, typer.Option(help="Folder that holds the files of mnist or cifar10.")] = None,
    target: Annotated[str | None, typer.Option(help="Of a table: the column to be predicted.")] = None,
    task: Annotated[str | None, typer.Option(help="Targets are 'classes' or 'values'; by what they are when not said.")] = None,
    size: Annotated[int | None, typer.Option(help="Pixels a side to which images are resized.", min=4)] = None,
    held_out: Annotated[float, typer.Option(help="Share of your data to test on; not where there is a folder test.")] = 0.2,
    paths: Annotated[
        str | None,
        typer.Option(help="Of every block: dense, factored, sparse, conv, sparse_conv, gconv; with commas. factored,conv."),
    ] = None,
    group: Annotated[str | None, typer.Option(help="Of gconv paths: p4, p4m, flips or cube; p4.")] = None,
    width: Annotated[
        int | None, typer.Option(help="Of the first layer (10; 8 with --augment learn), or of a perceptron (64).", min=1)
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 60,
    by: Annotated[str, typer.Option(help="'evidence' by Laplace's method, 'elbo', or 'map' for a fixed prior.")] = "evidence",
    augment: Annotated[
        str | None,
        typer.Option(help="'learn' how far images should be turned, shifted, scaled; or 'flip-crop' them at random."),
    ] = None,
    device: Annotated[str, typer.Option(help="Where to compute, such as cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option()] = 0,
    overwrite: Overwrite = False,
    resume: Resume = False,
    checkpoint_every: CheckpointEvery = 60.0,
    deterministic: Deterministic = False,
) -> None:
    """Learn from your data or a task which symmetries a network needs, layer by layer; leave a page that says so.

    Under torchrun all its processes learn together.
    """
    if by not in _METHODS:
        raise typer.BadParameter(f"--by must be one of {', '.join(_METHODS)}, got {by!r}.")
    with of_torchrun(device) as device:
        try:
            check_device(device)
            own = what not in (*DIGITS, *FILES) and is_data(what)
            if not own and (target, task, size) != (None, None, None):
                raise ValueError(f"--target, --task and --size are for data of your own; {what!r} is a task by its name.")
            if own:
                loaded = read_task(what, target=target, kind=task, side=size, held_out=held_out, seed=seed)
            else:
                loaded = load(what, data)
            _check_choices(loaded, paths, group, augment, by)
            model = _network(loaded, paths, group, width, augment, seed).to(device)
        except (ValueError, KeyError, OSError) as error:
            raise typer.BadParameter(str(error.args[0] if isinstance(error, KeyError) else error)) from error
        prior = TensorwisePrior(model)
        likelihood = Categorical() if loaded.target_std is None else Gaussian()
        problem = Problem(model, as_source(loaded.train, torch.device(device)), likelihood, prior)
        usual = preset(problem, Elbo() if by == "elbo" else None, epochs)
        usual = usual.by_map() if by == "map" else usual
        first = all_processes().is_first
        folder = run_folder(out, holds=_FILES, overwrite=overwrite, resume=resume) if first else nullcontext(out / CHECKPOINT)
        with folder as checkpoint, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Training has not converged")  # said below
            console.quiet = not first
            console.print(str(loaded), highlight=False, markup=False)
            console.print(_words(model), highlight=False)
            try:
                result = fit_model(
                    model,
                    loaded.train,
                    likelihood=likelihood,
                    prior=prior,
                    objective=usual.objective,
                    optimiser=usual.optimiser,
                    schedule=usual.schedule,
                    augment=FlipCrop() if augment == "flip-crop" else None,
                    seed=seed,
                    checkpoint=checkpoint,
                    checkpoint_every=checkpoint_every,
                    resume=resume,
                    deterministic=deterministic,
                    validation=loaded.validation,
                )
            except ValueError as error:  # a checkpoint of something else
                raise typer.BadParameter(str(error)) from error
            if not first:
                return
            calibration, worth = _show(result, loaded)
            with writing(out):
                result.save(out, calibration, worth)
                write_page(out)
            if result.is_partial:
                raise stopped(out)
            remove_folder(checkpoint)
        console.print(f"The page: {out / PAGE}", highlight=False, markup=False)


def _check_choices(task: Task, paths: str | None, group: str | None, augment: str | None, by: str) -> None:
    """Refuse options that would be of no effect, or do not go together.

    Raises:
        ValueError: Naming the first.
    """
    if augment not in (None, *_AUGMENTS):
        raise ValueError(f"--augment must be one of {', '.join(_AUGMENTS)}, got {augment!r}.")
    if augment is not None and len(task.in_shape) != 3:
        raise ValueError(f"--augment is for images; inputs of {task.name} have shape {task.in_shape}. Leave it out.")
    if augment == "learn" and (paths, group) != (None, None):
        raise ValueError(
            "--augment learn averages a plain convolutional network over transformations, and its layers have no choice of "
            "paths: the two are not learned together yet. Leave --paths and --group out, or learn them in two runs."
        )
    if augment == "learn" and by == "map":
        raise ValueError("--augment learn is by the evidence; under a fixed prior nothing says how far. Leave --by map out.")
    if (paths, group) != (None, None) and len(task.in_shape) == 1:
        raise ValueError(
            f"--paths and --group are of layers on a grid, such as images and series; {task.name} is a table, for which there "
            "is a perceptron without a choice. Leave them out."
        )
    if group is not None and "gconv" not in (paths or ""):
        raise ValueError("--group is that of gconv paths, and there are none. Name them, --paths gconv,conv, or leave it out.")


def _network(task: Task, paths: str | None, group: str | None, width: int | None, augment: str | None, seed: int) -> nn.Module:
    if augment == "learn":
        return averaged_network(task, width, seed=seed)
    generator, chosen = torch.Generator().manual_seed(seed), ("factored,conv" if paths is None else paths).split(",")
    return network_for(task.in_shape, task.classes, chosen, width, group=group or "p4", generator=generator)


def _words(model: nn.Module) -> str:
    """What is to be learned."""
    if isinstance(model, OrbitAverage):
        names = listed([name.replace("_", " ") for name in model.orbit.names])
        return f"a convolutional network, averaged over {model.samples} transformations of each image: {names}"
    return model.description if isinstance(model, AllConv) else "a perceptron, whose layers have no choice of paths"


def _show(result: Result, task: Task) -> tuple[Calibration, HeldOut]:
    """Print what was learned, and how good it is; the calibration on some test data."""
    console.print(plain_table(*result.symmetries.table(), left=3))
    worth = held_out_data(result, task.test, task.names)
    if task.target_std is not None:
        error = worth.metrics["squared error"] ** 0.5 * task.target_std
        worth = replace(worth, metrics={**worth.metrics, "root mean squared error": error})
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in worth.metrics.items())
    spread, size = result.evidence.standard_error, result.num_data
    evidence = f"log evidence {result.log_evidence / size:.4f}" + ("" if spread is None else f" ± {spread / size:.4f}")
    console.print(f"test, plug-in: {metrics}; {evidence} per datum ({result.evidence.estimator})", highlight=False)
    calibration = result.calibration((task.test[0][:_CALIBRATED], task.test[1][:_CALIBRATED]))
    console.print(calibration.words())
    console.print(plain_table(*calibration.table()))
    extents = describe_extents(result.model)
    for extent in extents:
        console.print(extent_words(extent), highlight=False)
    learned = headline(result.symmetries.rows) or invariance_headline(extents)
    if result.converged and learned:
        console.print(f"[bold]{escape(learned)}[/]", highlight=False)
    elif not result.converged:
        so_far = f" What it says so far: {learned}" if learned else ""
        console.print(f"[bold]{escape(str(result.converged))}[/]{escape(so_far)}", highlight=False)
    return calibration, worth


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders where results were saved, or one with a discovery.")],
    out: Annotated[Path, typer.Option(help="Page of several results side by side.")] = Path("comparison.html"),
) -> None:
    """Make the page of a saved result or discovery, or of several results side by side."""
    several = len(folders) > 1
    target = out if several else folders[0] / PAGE
    if several:
        check_page(out)
    try:
        page = side_by_side(folders) if several else make_page(folders[0])
    except (OSError, *DAMAGE) as error:
        words = ", ".join(map(str, folders))
        raise typer.BadParameter(f"No page can be made of {words}: {error_words(error)}.") from error
    with writing(target):
        write_whole(target, page)
    console.print(f"{target}", highlight=False, markup=False)
