"""How a frequency is learned: curves through points, frequencies over epochs, and the evidence over them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from papers.drawing import ENDED, FAINT, SCANNED, TEXT, Numbers, bare, card, drawn, pairs, plain
from symbayes.report.page import FigureTable, TableCell, TableRow, render
from symbayes.text import number, significant

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

EVIDENCE, LIKELIHOOD = "evidence", "maximum likelihood"
_COLOURS = {EVIDENCE: "#009E73", LIKELIHOOD: "#CC79A7"}
_TWIN = "#0072B2"
_SQUARES = (0.1, 0.3, 1, 3, 10, 30)
_TRUTH: dict[str, Any] = {"color": FAINT, "linestyle": "--", "linewidth": 1}
#: Nats below the best that plots of the evidence reach at most.
_DEPTH = 100.0


def frequency_table(found: Numbers) -> FigureTable:
    """A row for each start and way to learn; columns are what was learned, the evidence, and errors."""
    rows = []
    for words, one in _learned(found):
        known = one.get("log_evidence")
        values = [significant(one["square"]), number(known, 1) if known is not None else "–", *map(significant, _errors(one))]
        rows.append(TableRow(words, tuple(map(TableCell, values))))
    noise = found["settings"]["noise"]
    return FigureTable(
        ("learned ω²", "log evidence", "training", "test"),
        tuple(rows),
        outcome=f"{outcome(found)}.",
        legend="Training and test: mean squared errors on the data that were learned from and on fresh ones, of which the "
        f"noise makes {significant(noise**2)}. The function has ω² = {significant(found['settings']['square'])}.",
        note=f"Log evidence in nats: of the network, {best(found)['estimator']}; of the twin, exact.",
    )


def outcome(found: Numbers) -> str:
    """Where learning ended, from all starts."""
    ends = {by: " to ".join(dict.fromkeys(map(significant, _span(found, by)))) for by in (LIKELIHOOD, EVIDENCE)}
    return f"ω² ends at {ends[LIKELIHOOD]} by maximum likelihood, at {ends[EVIDENCE]} by the evidence"


def best(found: Numbers) -> Numbers:
    """Of the runs that learned by the evidence, the one that has most of it."""
    return max(_by(found, EVIDENCE), key=lambda one: float(one["log_evidence"]))


def frequency_page(found: Numbers) -> str:
    """A page that opens offline."""
    return render(
        "frequency.html",
        "papers",
        picture=picture(found),
        table=frequency_table(found),
        settings=found["settings"],
        best=best(found),
        spans={by: _span(found, by) for by in (EVIDENCE, LIKELIHOOD)},
        twin=found["twin"]["scan"][::6],
        twin_best=max(found["twin"]["starts"], key=lambda one: float(one["log_evidence"])),
        twin_closest=min(found["twin"]["scan"], key=lambda one: float(one["least squares"]["training"])),
    )


@drawn
def picture(found: Numbers) -> "Figure":
    """Six panels with curves, by maximum likelihood above and by the evidence below; then how frequencies were learned."""
    settings = found["settings"]
    figure = card(
        1000,
        900,
        outcome(found),
        f"NN(x) = W₃ relu(W₂ cos(ω² W₁ x + π/4)); {settings['data']} points of a smooth function, with noise. "
        "The frequency ω² is a hyperparameter",
        notes=[
            "Dashed: the function, and its ω². Small dots: data. Large dots: where learning ended. Circles: ω² by hand.",
            "Bands are ±2 deviations of the function under the posterior. Errors are mean squares, of which the noise makes "
            f"{significant(settings['noise'] ** 2)}. No run was chosen by its test error.",
            f"Log evidence in nats: {best(found)['estimator']}; exact for the twin, wᵀ √(2/H) cos(ω² W₁ x + π/4).",
        ],
        legend={"by the evidence": _COLOURS[EVIDENCE], "by maximum likelihood": _COLOURS[LIKELIHOOD], "the twin": _TWIN},
    )
    titles = {LIKELIHOOD: "By maximum likelihood", EVIDENCE: "By the evidence, weights integrated over"}
    *rows, below = figure.subfigures(3, 1, squeeze=False, height_ratios=[1, 1.08, 1.1], hspace=0.03)[:, 0]
    for part, (by, title) in zip(rows, titles.items(), strict=True):
        part.suptitle(title, x=0, ha="left", size="large", weight="bold", color=_COLOURS[by])
        shown = panels(found, by)
        for axes, (words, one) in zip(part.subplots(1, len(shown)), shown.items(), strict=True):
            _panel(axes, words, one, found)
    epochs, network, twin = below.subplots(1, 3)
    _epochs(epochs, found)
    fixed, learned = (_by(found, by) for by in ("fixed", EVIDENCE))
    _evidence(network, "Log evidence of the network over ω²", fixed, learned, found, _COLOURS[EVIDENCE], "o-")
    exact = found["twin"]
    _evidence(twin, "Exact log evidence of the twin over ω²", exact["scan"], exact["starts"], found, _TWIN, "-")
    return figure


def panels(found: Numbers, by: str) -> dict[str, Numbers]:
    """The three runs of a row by title: from the lowest start, from the middle and from the highest, or fixed there."""
    if by == LIKELIHOOD:
        chosen = sorted(_by(found, by), key=lambda one: float(one["start"]))
        shown = [chosen[0], chosen[len(chosen) // 2], chosen[-1]]
        return {f"from ω² = {significant(one['start'])} to {significant(one['square'])}": one for one in shown}
    fixed = sorted(_by(found, "fixed"), key=lambda one: float(one["square"]))
    chosen = [fixed[0], best(found), fixed[-1]]
    titles = ("lowest by hand: ω² = {}", "learned, of most evidence: ω² = {}", "highest by hand: ω² = {}")
    return {title.format(significant(one["square"])): one for title, one in zip(titles, chosen, strict=True)}


def _panel(axes: "Axes", title: str, one: Numbers, found: Numbers) -> None:
    """A curve with its band, the function and the data."""
    reach, values = found["reach"], [*found["function"], *(y for _, y in found["data"])]
    room = 0.15 * (max(values) - min(values))
    colour = _COLOURS[LIKELIHOOD if one["by"] == LIKELIHOOD else EVIDENCE]
    grid, mean, deviation = found["grid"], one["mean"], one["deviation"]
    if any(deviation):
        low, high = ([m + sign * 2 * d for m, d in zip(mean, deviation, strict=True)] for sign in (-1, 1))
        axes.fill_between(grid, low, high, color=colour, alpha=0.22, linewidth=0)
    axes.plot(grid, found["function"], **_TRUTH)
    axes.plot(*zip(*found["data"], strict=True), "o", color=TEXT, markersize=3)
    axes.plot(grid, mean, color=colour)
    bare(axes)
    axes.set(xlim=(-reach, reach), ylim=(min(values) - room, max(values) + room))
    axes.set_title(title, weight="bold" if "learned" in title else "normal")
    training, test = _errors(one)
    rows = {"training error": significant(training, 2), "test error": significant(test, 2)}
    if one["by"] != LIKELIHOOD:
        rows["log evidence"] = number(one["log_evidence"], 1)
    pairs(axes, rows, ("test error", "log evidence"))


def _epochs(axes: "Axes", found: Numbers) -> None:
    """Frequencies as they were learned, from every start."""
    axes.axhline(found["settings"]["square"], **_TRUTH)
    for by in (LIKELIHOOD, EVIDENCE):
        for one in _by(found, by):
            axes.plot(one["history"], color=_COLOURS[by])
    axes.set_yscale("log")
    axes.set(xlim=(0, found["settings"]["epochs"]), yticks=_SQUARES, yticklabels=map(significant, _SQUARES))
    axes.minorticks_off()
    axes.autoscale(axis="y")
    plain(axes, "ω² over epochs, from several starts")


def _evidence(
    axes: "Axes",
    title: str,
    scan: Sequence[Numbers],
    learned: Sequence[Numbers],
    found: Numbers,
    colour: str,
    marker: str,
) -> None:
    """The evidence over ω², a line through what was scanned, and where learning ended."""
    axes.axvline(found["settings"]["square"], **_TRUTH)
    ordered = sorted(scan, key=lambda one: float(one["square"]))
    axes.plot(*_points(ordered), marker, **SCANNED)
    axes.plot(*_points(learned), "o", color=colour, **ENDED)
    least, most = _floor([*scan, *learned]), max(one["log_evidence"] for one in [*scan, *learned])
    room = 0.06 * (most - least or 1.0)
    squares = [one["square"] for one in found["twin"]["scan"]]
    axes.set_xscale("log")
    axes.set(xticks=_SQUARES, xticklabels=map(significant, _SQUARES))
    axes.minorticks_off()
    axes.set(xlim=(min(squares), max(squares)), ylim=(least - room, most + room))
    plain(axes, title)


def _points(runs: Sequence[Numbers]) -> tuple[list[float], list[float]]:
    return [one["square"] for one in runs], [one["log_evidence"] for one in runs]


def _by(found: Numbers, by: str) -> list[Numbers]:
    return [one for one in found["runs"] if one["by"] == by]


def _floor(runs: Sequence[Numbers]) -> float:
    """The lowest log evidence that is drawn."""
    values = [float(one["log_evidence"]) for one in runs]
    return max(min(values), max(values) - _DEPTH)


def _learned(found: Numbers) -> list[tuple[str, Numbers]]:
    """What the rows of the table are, in words."""
    ways = [(by, one) for by in (EVIDENCE, LIKELIHOOD) for one in _by(found, by)]
    ways += [("twin", one) for one in found["twin"]["starts"]]
    return [(f"{by}, from {significant(one['start'])}", one) for by, one in ways]


def _errors(one: Numbers) -> tuple[float, float]:
    """On the training data and on the test data."""
    held = one.get("bayes", one)
    return held["training"], held["test"]


def _span(found: Numbers, by: str) -> tuple[float, float]:
    squares = [float(one["square"]) for one in _by(found, by)]
    return min(squares), max(squares)
