"""`python -m papers demo`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from papers.demos import conserved, frequency, groups, inference, invariance, mirrors, sequences, sets, waves
from symbayes.cli.demo import show_study
from symbayes.cli.study import Study

#: The studies that can be demonstrated: how to make one, its settings, and how long it takes.
DEMOS: dict[str, tuple[Callable[[Any], Study], Callable[..., Any], str]] = {
    "groups": (groups.study, groups.Settings, "About four minutes"),
    "sets": (sets.study, sets.Settings, "About a minute"),
    "sequences": (sequences.study, sequences.Settings, "About a minute"),
    "elbo": (inference.study, inference.Settings, "About five minutes"),
    "invariance": (invariance.study, invariance.Settings, "About eight minutes"),
    "mirrors": (mirrors.study, mirrors.Settings, "About eight minutes"),
    "frequency": (frequency.study, waves.Settings, "About two minutes"),
    "conserved": (conserved.study, conserved.Settings, "About three minutes"),
}
_HELP = (
    "groups: which symmetry? Digits upright, shifted, turned. sets: a set or a sequence? sequences: does position matter? "
    "invariance: how far? Digits turned, shifted, scaled. mirrors: along which axes? Images and volumes. "
    "elbo: by Laplace's method and by variational inference. "
    "frequency: which one? A curve through points. conserved: what is? Oscillators in motion."
)


def demo(
    what: Annotated[str, typer.Argument(help=_HELP)],
    out: Annotated[Path, typer.Option(help="Page (a file); replaced if it is there.")] = Path("report.html"),
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in every run.", min=1)] = None,
    width: Annotated[int | None, typer.Option(help="Of the first layer; of conserved, of hidden ones.", min=1)] = None,
    images: Annotated[int | None, typer.Option(help="Training images, of invariance; of mirrors, data.", min=10)] = None,
    seed: Annotated[int, typer.Option(help="For initial weights and the order of data.")] = 0,
) -> None:
    """Learn which symmetries a network should have, from training data alone: eight more studies."""
    if what not in DEMOS:
        raise typer.BadParameter(f"There are {', '.join(DEMOS)} to demonstrate, got {what!r}.")
    if images is not None and what not in ("invariance", "mirrors"):
        raise typer.BadParameter("--images is an option of invariance and mirrors: other demos use all the images there are.")
    if width is not None and what == "mirrors":
        raise typer.BadParameter("--width is no option of mirrors, whose networks are given.")
    given = {"epochs": epochs, "width": width, "data": images}
    chosen = {name: value for name, value in given.items() if value is not None}
    make, settings, minutes = DEMOS[what]
    show_study(make(settings(seed=seed, **chosen)), out, "" if chosen else minutes)
