"""Ctrl-C while a figure is made: what was learned until then is not drawn."""

from types import SimpleNamespace

import pytest

from papers.figures import evidence, gallery, pruning, structure, toy
from symbayes.data.load import load
from symbayes.models import allconv

TASK = load("upright-digits")


def said(words):
    """Nowhere."""


FITS = {
    "evidence": (evidence, lambda: evidence.train(TASK, ("conv",), 1, evidence.STARTS[0], "evidence", 2, 0)),
    "gallery": (gallery, lambda: gallery._fit(None, TASK.train, 2, gallery.Settings())),
    "trained": (pruning, lambda: list(pruning.trained(TASK, next(iter(pruning.NETWORKS)), 2, (0,), "cpu", said))),
    "tuned": (pruning, lambda: pruning.tuned(allconv(TASK, ("conv",), 1), TASK, 2, 0)),
    "structure": (structure, lambda: list(structure.structures(TASK, 1, (), 2, 0, (0,), "cpu", said))),
    "toy": (toy, lambda: toy.learn(toy.Settings(data=12, test=20, width=3, samples=4, epochs=4), "evidence", 20.0)),
}


@pytest.mark.parametrize("name", FITS)
def test_a_partial_result_ends_the_command(name, monkeypatch):
    module, work = FITS[name]
    monkeypatch.setattr(module, "fit", lambda *parts, **settings: SimpleNamespace(is_partial=True))
    with pytest.raises(KeyboardInterrupt):
        work()
