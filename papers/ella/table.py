"""What is made of the rows of `ella`: tables in the paper's form with its figures beside ours, and what every block chose."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from papers.ella.pictures import PATH_NAMES, choices_picture
from papers.ella.published import CHOICES, PRECISIONS, SHARES
from papers.ella.recipes import METHODS
from papers.ella.rows import NETWORKS, TABLES, TASKS, Table
from papers.rows import Figures, Paper, TextTable, spread
from symbayes.data.storage import from_json
from symbayes.training.symmetries import USED, PathRow, breaking, shares_over_layers, with_tensors

_METHODS = {"map": "MAP", "evidence": "evidence"}
_NOTHING = "–"
_EPOCHS = "epochs, MAP / evidence"
_MADE_BY = ("evidence by", "commit")
#: Method and figure of the columns of Tables 2 and 3.
_COLUMNS = {
    "NLL, MAP": ("map", "nll"),
    "accuracy, MAP": ("map", "accuracy"),
    "−log evidence / N, MAP": ("map", "evidence"),
    "NLL, evidence": ("evidence", "nll"),
    "accuracy, evidence": ("evidence", "accuracy"),
    "−log evidence / N, evidence": ("evidence", "evidence"),
}
#: Figures of Table 1, in lines of their own.
_LINES = {"test accuracy, %": "accuracy", "test NLL": "nll", "−log evidence / N": "evidence"}


@dataclass(frozen=True)
class Cells:
    """Runs of a table by task, network and method, seeds together."""

    table: Table
    runs: Mapping[tuple[str, str, str], Sequence[Figures]]

    def cell(self, task: str, network: str, method: str, what: str) -> str:
        """One figure: ours as the mean over seeds, and in brackets the paper's, if it prints one."""
        digits, factor = (2, 100.0) if what == "accuracy" else (3, 1.0)
        found = [{**run, "evidence": -run["log_evidence"]} for run in self.runs.get((task, network, method), ())]
        ours = spread([factor * run[what] for run in found], digits) if found else _NOTHING
        printed = getattr(self.table.printed.get((task, network, method)), what, None)
        return ours if printed is None else f"{ours} ({printed:.{digits}f})"

    def epochs(self, task: str, network: str) -> str:
        """How long it was trained, by each method."""
        found = [self.runs.get((task, network, method)) for method in METHODS]
        return " / ".join(str(runs[0]["epochs"]) if runs else _NOTHING for runs in found)

    def made_by(self, task: str, network: str) -> list[str]:
        """By which estimators and at which commits."""
        runs = [run for method in METHODS for run in self.runs.get((task, network, method), ())]
        rules = sorted({_rule(run) for run in runs})
        return [", ".join(rules) or _NOTHING, ", ".join(sorted({run.get("commit") or _NOTHING for run in runs})) or _NOTHING]

    @property
    def missing(self) -> list[str]:
        """Rows without a run, in words."""
        places = [(task, network, method) for task in self.table.tasks for network in self.table.networks for method in METHODS]
        return [_place(self.table, *place) for place in places if place not in self.runs]


def cells(table: Table, found: Sequence[Figures]) -> Cells:
    """Of every task, the runs on the most training images there are, and of these the widest and longest: others are trials."""
    largest: dict[str, int] = {}
    for row in found:
        largest[row["task"]] = max(largest.get(row["task"], 0), row["images"])
    runs: dict[tuple[str, str, str], list[Figures]] = {}
    for row in found:
        if row["images"] == largest[row["task"]]:
            runs.setdefault((row["task"], row["network"], row["method"]), []).append(row)
    longest = {place: max(map(_length, of_place)) for place, of_place in runs.items()}
    return Cells(table, {place: [row for row in rows if _length(row) == longest[place]] for place, rows in runs.items()})


def path_rows(run: Figures) -> tuple[PathRow, ...]:
    """What its paths became.

    Raises:
        ValueError: If they are damaged.
    """
    rows: tuple[PathRow, ...] = from_json(run["symmetries"], tuple[PathRow, ...], "symmetries")
    return rows


def _rule(run: Figures) -> str:
    """By which its evidence is, in short."""
    name: str = run["estimator"]
    return name.split(" by ")[0].split(" (")[0]


def _length(run: Figures) -> tuple[int, int]:
    return run["settings"]["width"], run["epochs"]


def network_name(network: str) -> str:
    """With what the prior is on, where that tells it from others."""
    found = NETWORKS[network]
    return found.name if found.prior == "θ" else f"{found.name} ({found.prior})"


def _place(table: Table, task: str, network: str, method: str) -> str:
    name = [network_name(network)] if len(table.networks) > 1 else []
    data = [TASKS[task]] if len(table.tasks) > 1 else []
    return f"{' on '.join([*name, *data])} by {_METHODS[method]}"


def _table1(of: Cells) -> TextTable:
    columns = [(network, method) for method in METHODS for network in of.table.networks]
    headings = ["", *(f"{NETWORKS[network].name}, {_METHODS[method]}" for network, method in columns)]
    lines = [
        [f"{TASKS[task]}: {words}", *(of.cell(task, *column, what) for column in columns)]
        for task in of.table.tasks
        for words, what in _LINES.items()
    ]
    return TextTable(headings, lines)


def _table2(of: Cells) -> TextTable:
    lines = []
    for task in of.table.tasks:
        for name in of.table.networks:
            sizes = sorted({run["parameters"] for method in METHODS for run in of.runs.get((task, name, method), ())})
            size = " / ".join(f"{value / 1e6:.1f} M" for value in sizes) or _NOTHING
            figures = [of.cell(task, name, *column) for column in _COLUMNS.values()]
            lines.append(
                [NETWORKS[name].name, NETWORKS[name].prior, size, of.epochs(task, name), *figures, *of.made_by(task, name)]
            )
    return TextTable(["layer", "prior on", "parameters", _EPOCHS, *_COLUMNS, *_MADE_BY], lines)


def _table3(of: Cells) -> TextTable:
    (network,) = of.table.networks
    paths, lines = NETWORKS[network].paths, []
    for task in of.table.tasks:
        learned = [row for run in of.runs.get((task, network, "evidence"), ()) for row in path_rows(run)]
        over = shares_over_layers(learned)
        shares = [f"{over.get(path, _NOTHING)} [{printed}]" for path, printed in zip(paths, SHARES[task], strict=True)]
        figures = [of.cell(task, network, *column) for column in _COLUMNS.values()]
        lines.append([TASKS[task], of.epochs(task, network), *figures, *shares, *of.made_by(task, network)])
    shares = [f"{PATH_NAMES[path]}, % [paper]" for path in paths]
    return TextTable(["data", _EPOCHS, *_COLUMNS, *shares, *_MADE_BY], lines)


def _every_run(table: Table, found: Sequence[Figures]) -> str:
    headings = ["run", "images", "seed", "epochs", "accuracy, %", "NLL", "−log evidence / N", "train NLL", "minutes", *_MADE_BY]
    lines = [
        [
            _place(table, row["task"], row["network"], row["method"]),
            f"{row['images']:,}",
            str(row["seed"]),
            str(row["epochs"]),
            f"{100 * row['accuracy']:.2f}",
            f"{row['nll']:.3f}",
            f"{-row['log_evidence']:.3f}",
            f"{row['train_nll']:.3f}",
            f"{row['seconds'] / 60:.1f}",
            _rule(row),
            row.get("commit") or _NOTHING,
        ]
        for row in found
    ]
    return TextTable(headings, lines).markdown()


def chosen(table: Table, found: Sequence[Figures]) -> list[Figures]:
    """Runs in the table by evidence whose blocks had a choice, of each task and network that of most evidence."""
    runs = cells(table, found).runs
    places = [(task, network, "evidence") for task in table.tasks for network in table.networks]
    had_choice = [place for place in places if place in runs and len(NETWORKS[place[1]].paths) > 1]
    return [max(runs[place], key=lambda run: run["log_evidence"]) for place in had_choice]


def _choices(table: Table, found: Sequence[Figures]) -> str:
    """For each network a line for every block: precision, share and γ of its paths, and which tensors break a symmetry."""
    parts = []
    for run in chosen(table, found):
        paths = NETWORKS[run["network"]].paths
        known = table.name == "table2" and run["network"] in CHOICES
        printed, theirs = (PRECISIONS[run["network"]], CHOICES[run["network"]]) if known else ((), ())
        blocks: dict[str, dict[str, PathRow]] = {}
        for row in with_tensors(path_rows(run), run["effective"]):
            if row.path in paths:
                blocks.setdefault(row.layer, {})[row.path] = row
        lines = []
        measured = {row.path: row.symmetry for by_path in blocks.values() for row in by_path.values() if row.error is not None}
        for index, (layer, by_path) in enumerate(blocks.items()):
            best = max(by_path, key=lambda path: by_path[path].share)
            line = [layer.removeprefix("block"), *(f"{by_path[path].precision:.3g}" for path in paths)]
            line += [f"{100 * by_path[path].share:.1f}, γ {by_path[path].effective:,.1f}" for path in paths]
            line.append(PATH_NAMES[best] + (f" ({PATH_NAMES[theirs[index]]})" if theirs else ""))
            line += [_percent(by_path[path].error) for path in measured]
            used = [tensor for path in paths for tensor in breaking(by_path[path])]
            if index == len(blocks) - 1:  # whose map has one cell, where a bias breaks nothing; earlier runs did not know
                used = [tensor for tensor in used if tensor.is_sure or not tensor.name.endswith("bias")]
            line.append(", ".join(f"{tensor.name} {tensor.effective:,.1f}" for tensor in used) or "none")
            line += [f"{printed[index][path]:.3g}" for path in paths] if printed else []
            lines.append(line)
        names = [PATH_NAMES[path] for path in paths]
        headings = ["block", *(f"δ {name}" for name in names), *(f"{name}, %" for name in names)]
        headings += ["largest share (paper's)" if theirs else "largest share"]
        headings += [f"error under {symmetry}, %" for symmetry in measured.values()] + ["tensors that break a symmetry, γ"]
        headings += [f"paper's δ {name}" for name in names if printed]
        title = _place(table, run["task"], run["network"], run["method"])
        parts.append(f"What {title} learned (seed {run['seed']}):\n\n{TextTable(headings, lines).markdown()}")
    if not parts:
        return ""
    about = (
        "Of several seeds, that of most evidence. Shares are of γ per weight, and see no bias; γ is that of all tensors of a "
        "path. Errors of equivariance are of the whole block on data: biases, strides and "
        f"padding included. A tensor that breaks a symmetry of another path is named where its γ is above {USED}."
    )
    return "\n".join([f"{about}\n", *parts])


def _percent(share: float | None) -> str:
    return _NOTHING if share is None else f"{100 * share:.1f}"


def in_form(table: Table, form: Callable[[Cells], TextTable], found: Sequence[Figures]) -> TextTable:
    """The table, and what is missing from it."""
    of = cells(table, found)
    about = "Ours, as mean ± standard deviation where there are several seeds; in brackets the paper's."
    shown = [row for runs in of.runs.values() for row in runs]
    if shown:
        images, epochs = (_values(row[what] for row in shown) for what in ("images", "epochs"))
        about += f" Trained on {images} images for {epochs} epochs, width {_values(row['settings']['width'] for row in shown)}."
        about += f" Log evidence by {' or '.join(sorted({row['estimator'] for row in shown}))}."
    missing = [f"Not run yet: {'; '.join(of.missing)}."] if of.missing else []
    return replace(form(of), notes=[about, *missing])


def _values(values: Iterable[int]) -> str:
    found = sorted(set(values))
    return f"{found[0]:,} to {found[-1]:,}" if len(found) > 2 else " or ".join(f"{value:,}" for value in found)


def more(table: Table, found: Sequence[Figures]) -> str:
    """What every block chose, and every run."""
    return "\n".join(filter(None, [_choices(table, found), f"Every run:\n\n{_every_run(table, found)}" if found else ""]))


def pictures(table: Table, found: Sequence[Figures]) -> dict[str, str]:
    """Shares of paths by block, as the paper's Figure 3 shows what was chosen; none where no run had a choice."""
    runs = [
        {**run, "title": _place(table, run["task"], run["network"], "evidence").removesuffix(" by evidence")}
        for run in chosen(table, found)
    ]
    return {f"{table.name}_choices": choices_picture(runs)} if runs else {}


def words(found: Figures) -> str:
    """Of a run in a line."""
    figures = f"{100 * found['accuracy']:.2f} %, NLL {found['nll']:.3f}, −log evidence {-found['log_evidence']:.3f} per image"
    return f"{figures}, {found['seconds']:.0f} s"


def _paper(name: str, title: str, about: str, form: Callable[[Cells], TextTable]) -> Paper:
    table = TABLES[name]
    return Paper(
        title,
        about,
        table.lists,
        table.rows,
        table.run,
        table.key,
        lambda found: in_form(table, form, found),
        words,
        lambda found: more(table, found),
        lambda found: pictures(table, found),
        settings=table.settings,
    )


PAPERS = {
    "table1": _paper(
        "table1",
        "Layer-wise equivariance, Table 1: digits in quadrants",
        "Digits of MNIST stand in one quadrant of the image. Which digit is it? And which digit in which quadrant? The second "
        "cannot be told by a convolutional network.",
        _table1,
    ),
    "table2": _paper(
        "table2",
        "Layer-wise equivariance, Table 2: CIFAR-10",
        "Eleven kinds of layers and two more, by MAP under a fixed prior and by evidence.",
        _table2,
    ),
    "table3": _paper(
        "table3",
        "Layer-wise equivariance, Table 3: which symmetry?",
        "Every layer is a sum of a factored fully connected path, a convolution and a group convolution under quarter turns. "
        "Shares are of effective parameters γ per weight, mean (smallest–largest) over blocks, and see no bias; beside them "
        "is γ in all blocks, biases too, as the mean over seeds.",
        _table3,
    ),
}
