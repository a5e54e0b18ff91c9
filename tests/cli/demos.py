"""What is asked of every demo: of its words before training, and of its command when it is done."""

import pytest
from typer.testing import CliRunner

from symbayes.cli import demo


def work_through(module, load):
    """The study of a module, made short, with data from `load`; and its outcomes."""
    with pytest.MonkeyPatch.context() as patch:
        if load is not None:
            patch.setattr(module, "load", load)
        study = module.study(module.Settings(epochs=1, width=1))
        return study, [study.work(cell, lambda record: None) for cell in study.cells]


def check_introduction(study):
    said = f"{study.title}. {study.about}"
    assert "should" in said or "ought to" in said
    for claim in (" finds ", " found ", " finds nothing", " becomes ", ", one symmetry"):
        assert claim not in said


def check_demo(
    app,
    command,
    study,
    outcomes,
    out,
    monkeypatch,
    words=("F-FC+CONV", "digit and", "log evidence", "What F-FC+CONV learned on: digit"),
):
    """That a command prints the table, and writes the page, of outcomes that are known."""

    def run(asked, progress):
        assert asked.cells == study.cells
        progress(1.0, "done")
        return outcomes

    monkeypatch.setattr(demo, "run_study", run)
    result = CliRunner().invoke(app, [*command, "--epochs", "1", "--width", "1", "--out", str(out)])
    assert result.exit_code == 0, result.output
    for word in (*words, "left;"):
        assert word in result.output
    said = "Layers in which a tensor of γ above 0.5 breaks a symmetry: "
    assert said in " ".join(result.output.split())
    page = out.read_text(encoding="utf-8")
    assert "<svg" in page
    assert "<script" not in page
    assert "keeps" in page or "block1" in page
    assert said in page
