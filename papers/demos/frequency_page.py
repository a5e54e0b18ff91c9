"""How a frequency is learned: curves through points, frequencies over epochs, and the evidence over them."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor, log
from typing import Any

from symbayes.report.page import FigureTable, TableCell, TableRow, render
from symbayes.report.svg import FAINT, LINE, TEXT, Card
from symbayes.text import number, significant

Numbers = Mapping[str, Any]
_Scale = Callable[[float | int], float]

EVIDENCE, LIKELIHOOD = "evidence", "maximum likelihood"
_COLOURS = {EVIDENCE: "#009E73", LIKELIHOOD: "#CC79A7"}
_TWIN, _POINT = "#0072B2", "#222222"

_WIDTH, _LEFT, _PANEL, _STEP = 1000, 40, 290, 320
#: The top of each row of panels, their height, and that of the plots below them.
_ROWS, _HEIGHT = {LIKELIHOOD: 118, EVIDENCE: 350}, 150
_PLOT_TOP, _PLOT_HEIGHT, _PLOT_LEFT, _PLOT_WIDTH = 594, 180, 18, 272
_SQUARES = (0.1, 0.3, 1, 3, 10, 30)
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
    runs: list[Numbers] = [one for one in found["runs"] if one["by"] == EVIDENCE]
    return max(runs, key=lambda one: float(one["log_evidence"]))


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


def picture(found: Numbers) -> str:
    """Six panels with curves, by maximum likelihood above and by the evidence below; then how frequencies were learned."""
    settings = found["settings"]
    subtitle = (
        f"NN(x) = W₃ relu(W₂ cos(ω² W₁ x + π/4)); {settings['data']} points of a smooth function, with noise. "
        "The frequency ω² is a hyperparameter"
    )
    card = Card(
        _WIDTH,
        _PLOT_TOP + _PLOT_HEIGHT + 110,
        outcome(found),
        subtitle,
    )
    for by, top in _ROWS.items():
        title = "By maximum likelihood" if by == LIKELIHOOD else "By the evidence, weights integrated over"
        card.text(_LEFT - 16, top - 34, title, size=14, bold=True, colour=_COLOURS[by])
        for index, (words, one) in enumerate(panels(found, by).items()):
            _panel(card, _LEFT + _STEP * index, top, words, one, found)
    _epochs(card, found)
    _network(card, found)
    _twin(card, found)
    y = _PLOT_TOP + _PLOT_HEIGHT + 46
    card.legend(_LEFT + _PLOT_LEFT, y, {"by the evidence": _COLOURS[EVIDENCE], "by maximum likelihood": _COLOURS[LIKELIHOOD]})
    card.line(_LEFT + 420, y - 4, _LEFT + 442, y - 4, FAINT, "5 4", 1.2)
    card.text(_LEFT + 449, y, "the function, and its ω²")
    card.dot(_LEFT + 640, y - 4, 2.4, _POINT)
    card.text(_LEFT + 651, y, "data")
    card.dot(_LEFT + 708, y - 4, 5, TEXT, "#ffffff")
    card.text(_LEFT + 719, y, "where learning ended")
    notes = (
        "Bands are ±2 deviations of the function under the posterior. Errors are mean squares, of which the noise makes "
        f"{significant(settings['noise'] ** 2)}. No run was chosen by its test error.",
        f"Log evidence in nats: {best(found)['estimator']}; exact for the twin, wᵀ √(2/H) cos(ω² W₁ x + π/4). "
        "Circles: ω² by hand.",
    )
    for line, words in enumerate(notes):
        card.text(_LEFT - 16, y + 28 + 17 * line, words, size=12, colour=FAINT)
    return card.svg()


def panels(found: Numbers, by: str) -> dict[str, Numbers]:
    """The three runs of a row by title: from the lowest start, from the middle and from the highest, or fixed there."""
    runs = [one for one in found["runs"] if one["by"] == by]
    if by == LIKELIHOOD:
        chosen = sorted(runs, key=lambda one: float(one["start"]))
        shown = [chosen[0], chosen[len(chosen) // 2], chosen[-1]]
        return {f"from ω² = {significant(one['start'])} to {significant(one['square'])}": one for one in shown}
    fixed = sorted((one for one in found["runs"] if one["by"] == "fixed"), key=lambda one: float(one["square"]))
    chosen = [fixed[0], best(found), fixed[-1]]
    titles = ("lowest by hand: ω² = {}", "learned, of most evidence: ω² = {}", "highest by hand: ω² = {}")
    return {title.format(significant(one["square"])): one for title, one in zip(titles, chosen, strict=True)}


def _panel(card: Card, left: float | int, top: float | int, title: str, one: Numbers, found: Numbers) -> None:
    """A curve with its band, the function and the data."""
    reach, values = found["reach"], [*found["function"], *(y for _, y in found["data"])]
    room = 0.15 * (max(values) - min(values))
    low, high = min(values) - room, max(values) + room
    across = _linear((-reach, reach), (left, left + _PANEL))
    down = _linear((low, high), (top + _HEIGHT, top))
    colour = _COLOURS[LIKELIHOOD if one["by"] == LIKELIHOOD else EVIDENCE]
    card.text(left, top - 10, title, bold="learned" in title)
    card.rect(left, top, _PANEL, _HEIGHT, "none", LINE)
    grid, mean, deviation = found["grid"], one["mean"], one["deviation"]
    if any(deviation):
        edges = [[min(max(m + sign * 2 * d, low), high) for m, d in zip(mean, deviation, strict=True)] for sign in (1, -1)]
        line = list(zip(grid, edges[0], strict=True)) + list(zip(grid, edges[1], strict=True))[::-1]
        card.area([(across(x), down(y)) for x, y in line], colour, 0.22)
    for part in _inside(grid, found["function"], low, high):
        card.curve([(across(x), down(y)) for x, y in part], FAINT, 1.2, "5 4")
    for x, y in found["data"]:
        card.dot(across(x), down(y), 2.4, _POINT)
    for part in _inside(grid, mean, low, high):
        card.curve([(across(x), down(y)) for x, y in part], colour, 2)
    training, test = _errors(one)
    card.text(left, top + _HEIGHT + 17, f"training error {significant(training, 2)}", size=12, colour=FAINT)
    card.text(left + _PANEL, top + _HEIGHT + 17, f"test error {significant(test, 2)}", size=12, anchor="end", bold=True)
    if one["by"] != LIKELIHOOD:
        card.text(left, top + _HEIGHT + 34, f"log evidence {number(one['log_evidence'], 1)}", size=12, bold=True)


def _epochs(card: Card, found: Numbers) -> None:
    """Frequencies as they were learned, from every start."""
    runs = [one for one in found["runs"] if one["by"] in _COLOURS]
    epochs = found["settings"]["epochs"]
    left, down = _frame(card, 0, "ω² over epochs, from several starts")
    across = _linear((0, epochs), (left, left + _PLOT_WIDTH))
    squares = [square for one in runs for square in one["history"]]
    up = _logarithmic((min(squares) / 1.3, max(squares) * 1.3), (_PLOT_TOP + _PLOT_HEIGHT, _PLOT_TOP))
    for square in _SQUARES:
        if min(squares) / 1.3 <= square <= max(squares) * 1.3:
            _tick(card, left, up(square), significant(square))
    for share in (0, 0.5, 1):
        card.text(across(share * epochs), down, number(share * epochs), size=11, anchor="middle", colour=FAINT)
    truth = up(found["settings"]["square"])
    card.line(left, truth, left + _PLOT_WIDTH, truth, FAINT, "5 4", 1.2)
    for one in sorted(runs, key=lambda one: str(one["by"]), reverse=True):
        curve = list(enumerate(one["history"]))
        kept = curve[:: max(1, len(curve) // 200)] + curve[-1:]
        card.curve([(across(epoch), up(square)) for epoch, square in kept], _COLOURS[one["by"]], 2)


def _network(card: Card, found: Numbers) -> None:
    """The bound of networks trained at fixed frequencies, and where learning ended."""
    fixed = sorted((one for one in found["runs"] if one["by"] == "fixed"), key=lambda one: float(one["square"]))
    learned = [one for one in found["runs"] if one["by"] == EVIDENCE]
    across, up = _evidence(card, 1, "Log evidence of the network over ω²", fixed, learned, found)
    for one in fixed:
        if one["log_evidence"] >= _floor([*fixed, *learned]):
            card.dot(across(one["square"]), up(one["log_evidence"]), 4, "#ffffff", FAINT, width=1.5)
    for one in learned:
        card.dot(across(one["square"]), up(one["log_evidence"]), 5, _COLOURS[EVIDENCE], "#ffffff")


def _twin(card: Card, found: Numbers) -> None:
    """The exact evidence, and where its gradient led."""
    scan, learned = found["twin"]["scan"], found["twin"]["starts"]
    across, up = _evidence(card, 2, "Exact log evidence of the twin over ω²", scan, learned, found)
    for one in learned:
        card.dot(across(one["square"]), up(one["log_evidence"]), 5, _TWIN, "#ffffff")


def _evidence(
    card: Card, place: int, title: str, scan: Sequence[Numbers], learned: Sequence[Numbers], found: Numbers
) -> tuple[_Scale, _Scale]:
    """A plot of the evidence over ω², with a line through what was scanned."""
    left, down = _frame(card, place, title)
    least, most = _floor([*scan, *learned]), max(one["log_evidence"] for one in [*scan, *learned])
    room = 0.06 * (most - least or 1.0)
    squares = [one["square"] for one in found["twin"]["scan"]]
    across = _logarithmic((min(squares), max(squares)), (left, left + _PLOT_WIDTH))
    up = _linear((least - room, most + room), (_PLOT_TOP + _PLOT_HEIGHT, _PLOT_TOP))
    step = next(step for step in (5, 10, 20, 50) if (most - least) / step <= 6 or step == 50)
    for tick in range(ceil((least - room) / step), floor((most + room) / step) + 1):
        _tick(card, left, up(step * tick), number(step * tick))
    for square in _SQUARES:
        if min(squares) <= square <= max(squares):
            card.text(across(square), down, significant(square), size=11, anchor="middle", colour=FAINT)
    truth = across(found["settings"]["square"])
    card.line(truth, _PLOT_TOP, truth, _PLOT_TOP + _PLOT_HEIGHT, FAINT, "5 4", 1.2)
    for part in _inside([one["square"] for one in scan], [one["log_evidence"] for one in scan], least, most):
        card.curve([(across(square), up(value)) for square, value in part], "#999999", 1.5)
    return across, up


def _floor(runs: Sequence[Numbers]) -> float:
    """The lowest log evidence that is drawn."""
    values = [float(one["log_evidence"]) for one in runs]
    return max(min(values), max(values) - _DEPTH)


def _frame(card: Card, place: int, title: str) -> tuple[float | int, float | int]:
    """The left edge of a plot, and the base line of what stands below it."""
    left = _LEFT + _STEP * place + _PLOT_LEFT
    card.text(left - 34, _PLOT_TOP - 14, title, bold=True)
    card.rect(left, _PLOT_TOP, _PLOT_WIDTH, _PLOT_HEIGHT, "none", LINE)
    return left, _PLOT_TOP + _PLOT_HEIGHT + 16


def _tick(card: Card, left: float | int, y: float, words: str) -> None:
    card.line(left, y, left + _PLOT_WIDTH, y, "#eeeeee")
    card.text(left - 6, y + 4, words, size=11, anchor="end", colour=FAINT)


def _inside(xs: Sequence[float], ys: Sequence[float], low: float, high: float) -> list[list[tuple[float, float]]]:
    """The parts of a line that lie within a range."""
    parts: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(xs, ys, strict=True):
        if low <= y <= high:
            parts[-1].append((x, y))
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if len(part) > 1]


def _linear(values: tuple[float | int, float | int], pixels: tuple[float | int, float | int]) -> _Scale:
    slope = (pixels[1] - pixels[0]) / (values[1] - values[0])
    return lambda value: pixels[0] + slope * (value - values[0])


def _logarithmic(values: tuple[float | int, float | int], pixels: tuple[float | int, float | int]) -> _Scale:
    scale = _linear((log(values[0]), log(values[1])), pixels)
    return lambda value: scale(log(value))


def _learned(found: Numbers) -> list[tuple[str, Numbers]]:
    """What the rows of the table are, in words."""
    ways = [(by, one) for by in (EVIDENCE, LIKELIHOOD) for one in found["runs"] if one["by"] == by]
    ways += [("twin", one) for one in found["twin"]["starts"]]
    return [(f"{by}, from {significant(one['start'])}", one) for by, one in ways]


def _errors(one: Numbers) -> tuple[float, float]:
    """On the training data and on the test data."""
    held = one.get("bayes", one)
    return held["training"], held["test"]


def _span(found: Numbers, by: str) -> tuple[float, float]:
    squares = [float(one["square"]) for one in found["runs"] if one["by"] == by]
    return min(squares), max(squares)
