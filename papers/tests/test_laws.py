"""Systems with a law and without, and the calibration of verdicts, made short."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from papers import laws, verdicts
from papers.__main__ import app


def test_every_system_conserves_its_laws_along_its_motion():
    rng = np.random.default_rng(0)
    drawn = [draw(rng) for draw in verdicts.LAWFUL.values()]
    for case in [*(make() for make in laws.CASES.values()), *drawn]:
        motion = case.motion(5, 40, 0)
        assert motion.states.shape == (5, 41, len(case.names))
        for law in case.laws:
            values = law(motion.states.flatten(0, 1)).unflatten(0, (5, 41))
            assert values.var(1).mean() < 1e-12 * values.var()


def test_what_is_lawless_has_no_law_to_be_found():
    rng = np.random.default_rng(0)
    assert all(not draw(rng).laws for draw in verdicts.LAWLESS.values())
    assert sum(bool(make().laws) for make in laws.CASES.values()) == 5


def test_the_command_of_systems_makes_a_table(tmp_path):
    words = ["laws", "--task", "pendulum,damped-pendulum", "--noises", "0,0.1", "--seeds", "0", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    table = (tmp_path / "laws.md").read_text()
    assert "| pendulum | yes | 0 | 1 of 1 | 0 of 1 |" in table
    assert "| pendulum | yes | 0.1 | 1 of 1 | 0 of 1 |" in table
    assert "| damped-pendulum | no | 0.1 | 0 of 1 | 0 of 1 |" in table


def test_verdicts_hold_as_often_as_they_say_in_a_few_simulations(tmp_path):
    result = CliRunner().invoke(app, ["verdicts", "--sizes", "10", "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "verdicts.json").read_text())
    assert len(found) == 10
    sure = [so for probability, so in verdicts.stated(found) if probability >= 0.95]
    assert len(sure) >= 5
    assert sum(sure) >= len(sure) - 1
    assert not any(one["confirmed"] for row in found if not row["lawful"] for one in row["quantities"])
    assert (tmp_path / "verdicts.svg").read_text().startswith("<svg")


def test_a_quantity_beside_the_laws_is_none():
    case = laws.pendulum()
    motion = case.motion(10, 50, 0)
    assert laws.is_law(case.laws[0], case, motion)
    assert laws.is_law(lambda x: case.laws[0](x) ** 3, case, motion)
    assert not laws.is_law(lambda x: x[:, 1] ** 2, case, motion)
    assert laws.true_variation(case.laws[0], motion) < 1e-6
    assert laws.true_variation(lambda x: x[:, 1] ** 2, motion) > 0.3


def test_limits_of_shares():
    assert verdicts.limits(0, 10) == pytest.approx((0, 0.3085), abs=1e-3)
    assert verdicts.limits(10, 10) == pytest.approx((0.6915, 1), abs=1e-3)
    low, high = verdicts.limits(95, 100)
    assert 0.88 < low < 0.95 < high < 0.99


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("laws", "--task", "brick"), "task must be among oscillator"),
        (("laws", "--noises", "loud"), "noises must be numbers of zero or more"),
        (("verdicts", "--sizes", "0"), "sizes must be one number"),
    ],
)
def test_what_there_is_not_is_refused(words, message, tmp_path):
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output
