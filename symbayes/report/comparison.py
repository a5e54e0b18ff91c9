"""The page of a comparison: tasks by models as a table, what the learned models chose, and how all of them trained."""

from collections.abc import Sequence
from typing import Any

from symbayes.report.calibration import task_calibration
from symbayes.report.invariance import task_invariance
from symbayes.report.page import embed, render
from symbayes.report.plots import Curve, curves, path_colours, share_bars, training_curves
from symbayes.training.verdicts import symmetry_words


def comparison_page(title: str, about: str, table: dict[str, Any], runs: Sequence[dict[str, Any]]) -> str:
    """A page that opens offline.

    Args:
        title: Of the page.
        about: What is compared, in a few sentences.
        table: `columns`, a list of words; `rows`, each a `task` and its `cells` with a `value`, what stands `beneath` it, and
            whether it is the `best` of the row; maybe the `outcome` in a sentence; a `legend`, and a `note` on the estimator.
        runs: Each with `task`, `model`, `objective` (such as "MAP" or "evidence"), whether its symmetries are `learned`, and
            the `summary` and `history` that `run_page` takes; and maybe the `truth` of its extents.
    """
    chosen = [run for run in runs if run["learned"] and run["objective"] == "evidence"]
    colours = path_colours(row for run in chosen for row in run["summary"]["symmetries"])
    learned = []
    for index, run in enumerate(chosen):
        rows, effective = run["summary"]["symmetries"], run["summary"]["evidence"]["effective"]
        learned.append((run, symmetry_words(rows, effective), embed(share_bars(rows, colours), f"shares{index}")))
    by_task: dict[str, list[tuple[dict[str, Any], Curve]]] = {}
    for run, curve in zip(runs, curves(runs), strict=True):
        by_task.setdefault(run["task"], []).append((run, curve))
    drawn = {task: [curve for _, curve in found] for task, found in by_task.items()}
    invariances = {
        task: task_invariance([run for run, _ in found], drawn[task], f"extents{index}")
        for index, (task, found) in enumerate(by_task.items())
    }
    calibrations = {
        task: task_calibration([run for run, _ in found], drawn[task], f"reliability{index}")
        for index, (task, found) in enumerate(by_task.items())
    }
    return render(
        "comparison.html",
        title=title,
        about=about,
        table=table,
        learned=learned,
        plots={task: embed(training_curves(found), f"curves{index}") for index, (task, found) in enumerate(drawn.items())},
        invariances={task: found for task, found in invariances.items() if found},
        calibrations={task: found for task, found in calibrations.items() if found},
        estimators=list(dict.fromkeys(run["summary"]["evidence"]["estimator"] for run in runs)),
    )
