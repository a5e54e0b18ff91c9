"""The page of a training run that is under way: what is known so far, and what is not known yet."""

from base64 import b64encode
from hashlib import sha256
from typing import Any

from symbayes.report.invariance import run_invariance
from symbayes.report.network import drawn_layers
from symbayes.report.page import embed, render
from symbayes.report.plots import Curve, estimates, path_colours, precision_curves, share_bars, training_curves
from symbayes.training.live import Live

#: Seconds after which a browser asks again, by itself or, where scripts run, by this one: readers stay where they are.
_AGAIN = 2
_SCRIPT = """
setInterval(async () => {
  const now = document.querySelector("main"), answer = await fetch("/").catch(() => null);
  if (!answer || !answer.ok) {
    now.querySelector("[role=status]").textContent = "Nothing new: symbayes watch has ended, or cannot read the run.";
    return;
  }
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (!next.querySelector("script")) location.reload();  // the page of the result, with a style of its own
  document.title = next.title;
  now.replaceWith(next.querySelector("main"));
}, SECONDS * 1000);
""".replace("SECONDS", str(_AGAIN))
_DIGEST = f"sha256-{b64encode(sha256(_SCRIPT.encode()).digest()).decode()}"


def live_page(live: Live | None, words: str) -> str:
    """The page of what there is so far, which a browser asks for again and again.

    Args:
        live: What training wrote; None before its first epoch.
        words: How it stands with the run.
    """
    always: dict[str, Any] = {"words": words, "again": _AGAIN, "script": _SCRIPT, "digest": _DIGEST}
    if live is None:
        return render("live.html", live=None, **always)
    rows, history = live.symmetries, live.history
    steps, _ = estimates(history)
    colours = path_colours((row.layer, row.path) for row in rows)
    return render(
        "live.html",
        live=live,
        **always,
        last=history[-1],
        left=history[-1].seconds / history[-1].epoch * (history[-1].epochs - history[-1].epoch),
        evidence=steps[-1] if steps else None,
        network_layers=drawn_layers(rows, colours),
        colours=colours,
        shares=embed(share_bars(rows, colours), "shares", label="shares of the paths of every layer, so far"),
        curves=embed(training_curves([Curve("run", history, live.num_data)]), "curves", label="loss and log evidence so far"),
        invariance=run_invariance(live, history),
        precisions=embed(precision_curves(history, rows), "precisions", label="prior precisions so far"),
        unknown=_unknown(live, bool(steps)),
    )


def _unknown(live: Live, has_evidence: bool) -> list[str]:
    """What the page of the result will say, and this one cannot."""
    choice = any(row.relaxes for row in live.symmetries)
    return [
        *([] if has_evidence else ["the log evidence, and with it γ and what paths are used: it was not estimated yet"]),
        *(["how far layers break symmetries, which is measured when training ends: here, γ alone speaks"] if choice else []),
        *([] if live.history[-1].validation else ["what it is worth on data that it does not learn from"]),
        "whether it converges",
    ]
