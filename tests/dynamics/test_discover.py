"""The whole chain, small: from trajectories to conserved quantities, checked, saved and shown."""

import json
import signal
from copy import deepcopy
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.storage import from_json, to_json
from symbayes.dynamics import Search, System, Trajectories, energy, simulate, system
from symbayes.dynamics.network import amount_std
from symbayes.dynamics.observables import unitary
from symbayes.dynamics.summary import DiscoverySummary, read_discovery
from symbayes.dynamics.trajectories import Scaling
from symbayes.layout import hyperparameters
from symbayes.report.runs import make_page
from symbayes.training.elbo import ElboTrainer

NOISE = 1e-3**0.5
#: The module, whose name is that of its function, too.
discover_module = import_module("symbayes.dynamics.discover")
QUICK = Search(width=8, hidden=1, samples=4, final_samples=4, updates=6, against_plain=False)


def data(name="oscillator", trajectories=10, **more):
    return simulate(name, trajectories=trajectories, steps=4, **more)


@pytest.fixture(scope="module")
def oscillator():
    """One that was learned in earnest, though not for long."""
    made = simulate("oscillator", trajectories=18, steps=10, noise=NOISE)
    search = Search(quantities=2, width=24, updates=700, learning_rate=0.01)
    return sb.discover(made, noise=NOISE, search=search, system=system("oscillator"), progress=False)


@pytest.fixture
def brief(monkeypatch):
    """Short motions in what is shown, which take most of the time."""
    monkeypatch.setattr(energy, "_FARTHEST", 5)


def test_one_quantity_of_two_is_left_and_it_is_the_energy(oscillator):
    assert oscillator.span.count == 1
    (only,) = oscillator.quantities
    assert [term.monomial for term in only.terms] == ["q²", "p²"]
    assert only.variation < 0.05
    truth = oscillator.compared()
    assert truth.count == 1
    assert truth.parallelness[0] > 0.99
    assert oscillator.bracket(only) < 0.03


def test_errors_are_far_below_the_noise_and_the_bound_is_the_sum_of_its_terms(oscillator):
    errors = oscillator.evaluate(oscillator.held_out)
    assert errors["sampled"] < NOISE**2 / 10
    assert errors["plug-in"] < NOISE**2 / 2  # the mean of weights is not the mean of functions
    evidence = oscillator.evidence
    assert evidence["negative_elbo"] == pytest.approx(evidence["nll"] + evidence["kl"])
    pairs = oscillator.result.num_data
    inside = -oscillator.result.log_evidence / pairs
    assert evidence["negative_elbo"] == pytest.approx(inside + float(oscillator.units.scale.log().sum()))


def test_rollouts_keep_the_learned_energy(oscillator):
    start = oscillator.held_out.states[:2, 0]
    moved = oscillator.rollout(start, 30)
    assert_close(moved[:, 0], start)
    energies = torch.stack([oscillator.energy(states) for states in moved.unbind(1)], 1)
    assert float((energies - energies[:, :1]).abs().max()) < 0.01 * float(
        oscillator.energy(oscillator.held_out.states[:, 0]).std()
    )


def test_energies_lead_to_the_motion_that_is_predicted(oscillator):
    states, h = oscillator.held_out.states[0], 1e-2
    moves = h * torch.eye(2, dtype=torch.float64)
    q, p = ((oscillator.energy(states + move) - oscillator.energy(states - move)) / (2 * h) for move in moves)
    assert_close(oscillator.velocities(states).mean(0), torch.stack([p, -q], -1), atol=1e-3, rtol=1e-3)


@pytest.mark.usefixtures("brief")
def test_what_was_found_is_saved_and_shown(oscillator, tmp_path):
    summary = oscillator.save(tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "discovery.json").read_text())
    assert read_discovery(tmp_path / "run") == summary
    assert stored["search"]["updates"] == 700
    page = make_page(tmp_path / "run")
    assert "1 conserved quantity in oscillator, on 4 held-out trajectories of 2 time units" in page
    assert (tmp_path / "run" / "run" / "result.json").is_file()
    assert str(oscillator).startswith("1 conserved quantity in oscillator, on 4 held-out trajectories of 2 time units\n")


def test_what_is_learned_begins_with_a_plain_energy_and_so_does_what_it_is_compared_with(monkeypatch):
    begun, ended = [], []

    def watched(trainer, real=discover_module.learn_with_bar, **more):
        begun.append(deepcopy(trainer.problem.model.net.state_dict()))
        result = real(trainer, **more)
        ended.append(deepcopy(result.model.net.state_dict()))
        return result

    monkeypatch.setattr(discover_module, "learn_with_bar", watched)
    found = sb.discover(data("kepler"), search=replace(QUICK, first=0.5, against_plain=True), progress=False)
    assert len(begun) == 3
    for name, value in ended[0].items():
        assert_close(begun[1][name], value, rtol=0, atol=0)
        assert_close(begun[2][name], value, rtol=0, atol=0)
        assert not torch.equal(begun[0][name], value)
    assert [record.epoch for record in found.history] == [1, 2, 3, 4, 5, 6]
    assert found.summary().model.updates == 6


@pytest.mark.parametrize(
    ("given", "symmetry", "pairs", "updates"),
    [
        ({}, "quadratic", 400, [30, 70]),
        ({}, "quadratic", 399, [100]),
        ({}, "neural", 1000, [100]),
        ({}, "none", 1000, [100]),
        ({"first": 0.5}, "none", 1000, [50, 50]),
        ({"first": 0.0}, "quadratic", 1000, [100]),
    ],
)
def test_how_long_a_plain_energy_comes_first(given, symmetry, pairs, updates):
    search = Search(updates=100, batch_size=100, learning_rate=0.5, annealing=0.3, **given)
    parts = [part for part in search.parts(symmetry, pairs) if part is not None]
    assert [part.updates for part in parts] == updates
    assert [part.learning_rate for part in parts] == [Search().learning_rate, 0.5][-len(parts) :]
    assert [part.annealing for part in parts] == [None, 0.3][-len(parts) :]


def test_a_stop_while_a_plain_energy_comes_first_is_gone_on_from(tmp_path):
    search = replace(QUICK, first=0.5)
    straight = sb.discover(data(), search=search, progress=False)

    def stopped(self, state, real=ElboTrainer.epoch):
        if state.epoch == 1:
            signal.raise_signal(signal.SIGINT)
        return real(self, state)

    more = {"search": search, "progress": False, "checkpoint": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ElboTrainer, "epoch", stopped)
        with pytest.warns(UserWarning, match="the result is partial"):
            found = sb.discover(data(), **more)
    assert found.is_partial
    assert found.summary().model.kind == "none"
    with pytest.raises(ValueError, match="holds the checkpoint of a training, that of a plain energy"):
        sb.discover(data(), **more)
    again = sb.discover(data(), **more, resume=True)
    assert (again.evidence, again.history) == (straight.evidence, straight.history)


def test_what_was_hardly_trained_is_not_confirmed():
    found = sb.discover(data("2-oscillators"), search=QUICK, system="2-oscillators", progress=False)
    assert found.span.count > 4
    assert not all(quantity.confirmed for quantity in found.quantities)
    assert "not confirmed" in str(found)


def test_a_single_trajectory_is_followed_from_its_start():
    made = simulate("oscillator", trajectories=1, steps=20, step=0.3)
    found = sb.discover(made, symmetry=unitary(1), search=QUICK, progress=False)
    assert found.held_out.duration == pytest.approx(0.9)
    assert [one.time for one in found.quantities] == [pytest.approx(6.0)]
    assert str(found).startswith("1 conserved quantity in trajectories, along the whole trajectory of 6 time units\n")
    apart = sb.discover(made, held_out=made, symmetry=unitary(1), search=QUICK, progress=False)
    assert apart.followed is apart.held_out
    assert "on 1 held-out trajectory of 6 time units" in str(apart)


def test_the_same_seed_finds_the_same():
    again = [sb.discover(data(), search=QUICK, progress=False, seed=3) for _ in range(2)]
    assert again[0].evidence == again[1].evidence
    assert_close(again[0].span.strengths, again[1].span.strengths, rtol=0, atol=0)


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("symmetry", ["none", "neural", "oracle"])
def test_other_symmetries(symmetry):
    given = unitary(1) if symmetry == "oracle" else symmetry
    found = sb.discover(data(), symmetry=given, noise=0.03, search=QUICK, system=system("oscillator"), progress=False)
    summary = found.summary()
    assert summary.model.kind == {"none": "none", "neural": "neural", "oracle": "fixed"}[symmetry]
    assert bool(hyperparameters(found.model)) == (symmetry == "neural")
    if symmetry == "oracle":
        assert [one.formula for one in found.quantities] == ["q² + p²"]
        assert found.quantities[0].variation < 1e-6
    assert from_json(json.loads(json.dumps(to_json(summary))), DiscoverySummary, "summary") == summary


@pytest.mark.usefixtures("brief")
def test_noise_is_learned_for_each_coordinate_when_it_is_not_given():
    found = sb.discover(data(noise=0.05), search=QUICK, progress=False).summary()
    assert len(found.noise) == 2
    assert found.learned_noise
    given = sb.discover(data(noise=0.05), noise=0.05, search=QUICK, progress=False)
    assert given.summary().noise == pytest.approx((0.05, 0.05))


def test_arrays_will_do_with_a_step_and_units_are_measured():
    made = data(trajectories=10)
    found = sb.discover(made.states.numpy() * np.array([1e6, 1e-3]), step=3600.0, search=QUICK, progress=False)
    assert found.units.scale[0] > 1e5
    predicted = found.predict(made.states[0] * torch.tensor([1e6, 1e-3]), by="plug-in")
    assert float(predicted[:, 0].abs().max()) > 1e5
    assert found.learned_from.step == 3600.0


@pytest.mark.usefixtures("brief")
def test_brackets_and_the_truth_do_not_depend_on_units():
    made, scale = data(), torch.tensor([1e3, 1e-3], dtype=torch.float64)
    large = System(lambda q, p: ((q / 1e3).square() + (p * 1e3).square()).sum(-1) / 2, 1)
    known = sb.discover(made, search=QUICK, system=system("oscillator"), progress=False).summary()
    again = sb.discover(Trajectories(made.states * scale, made.step), search=QUICK, system=large, progress=False).summary()
    assert again.truth.count == known.truth.count == 1
    assert len(again.quantities) == len(known.quantities) > 0
    for one, other in zip(known.quantities, again.quantities, strict=True):
        assert one.bracket > 0.01  # it was not learned
        assert other.bracket == pytest.approx(one.bracket, rel=1e-3)
        assert other.rate == pytest.approx(one.rate, rel=1e-3)


@pytest.mark.parametrize(("name", "trajectories", "steps", "truth"), [("2-oscillators", 1, 30, 4), ("3-body-2d", 3, 4, 7)])
def test_what_a_known_energy_conserves_does_not_depend_on_how_few_the_data_are(name, trajectories, steps, truth):
    made = simulate(name, trajectories=trajectories, steps=steps)
    found = sb.discover(made, search=QUICK, system=system(name), progress=False)
    assert found.compared().count == truth


def test_units_change_the_terms_of_the_bound_by_their_jacobian_only():
    # The same data in other units is the same problem inside.
    made = data(trajectories=10)
    scaled = Trajectories(made.states * 4, made.step)
    first, second = (sb.discover(each, search=QUICK, progress=False) for each in (made, scaled))
    assert second.evidence["kl"] == pytest.approx(first.evidence["kl"], rel=1e-4)
    assert second.evidence["nll"] == pytest.approx(first.evidence["nll"] + 2 * np.log(4), rel=1e-3)
    assert second.history[-1].negative_elbo == pytest.approx(second.evidence["negative_elbo"])


def test_the_random_state_of_the_process_is_left_alone():
    before = torch.get_rng_state()
    sb.discover(data(), search=QUICK, progress=False)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_saved_network_and_its_units_predict_the_same(tmp_path):
    found = sb.discover(data(), search=QUICK, progress=False)
    found.save(tmp_path)
    stored = json.loads((tmp_path / "discovery.json").read_text())
    assert len(stored["rollout"]["times"]) == 10 * 4 + 1  # ten times as long as what was held out
    scale, time = torch.tensor(stored["units"]["scale"], dtype=torch.float64), stored["units"]["time"]
    units = Scaling(scale, time)
    again = QUICK.model(units.entered(data()).float(), units, "quadratic", 5)
    model = sb.load_result(tmp_path / "run", model=again).model.eval()
    states = found.held_out.states[0]
    expected = found.predict(states, by="plug-in")
    assert_close((model((states / scale).float()) * scale).detach(), expected, check_dtype=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"symmetry": "cubic"}, r"symmetry must be 'quadratic', 'neural', 'none' or fixed Quadratics; got 'cubic'"),
        ({"symmetry": unitary(2)}, r"Quadratics must be of states of 2 numbers, as the data are; got 4"),
        ({"system": "3-oscillators"}, r"The system must have 1 degrees of freedom, as the trajectories; 3-oscillators has 3"),
        ({"step": 0.3}, r"Trajectories know their step, 0.2; leave step out, got 0.3"),
        ({"search": replace(QUICK, measure="square")}, r"The measure must be one of uniform, ball, gaussian; got 'square'"),
        (
            {"held_out": simulate("2-oscillators", trajectories=2)},
            r"held out must have the coordinates q, p; got q1",
        ),
        ({"held_out": data(step=0.3)}, r"held out must have the step of the others, 0.2; got 0.3"),
        ({"held_out": 1.0}, r"Both parts must have 1 or more of the 10 trajectories; with share=1 one has not"),
        ({"device": "gpu"}, r"device must be one that torch can compute on here, such as cpu; got 'gpu'"),
        ({"noise": 0.0}, r"noise must be above 0 and finite, got 0"),
        ({"noise": -0.1}, r"noise must be above 0 and finite, got -0.1"),
        ({"noise": float("nan")}, r"noise must be above 0 and finite, got nan"),
    ],
)
def test_what_is_wrong_is_said(given, message):
    with pytest.raises(ValueError, match=message):
        sb.discover(data(), progress=False, **({"search": QUICK} | given))


@pytest.mark.parametrize(
    "given", [{"quantities": 0}, {"final_samples": 0}, {"batch_size": 0}, {"draws": 0}, {"start": 0.0}, {"threshold": -0.1}]
)
def test_settings_are_above_zero(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be"):
        Search(**given)


@pytest.mark.parametrize("given", [{"first": 1.0}, {"first": -0.1}, {"activation": "relu"}])
def test_settings_that_cannot_be_are_refused(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} must be"):
        Search(**given)


def test_every_epoch_is_told():
    told = []
    found = sb.discover(data(), search=QUICK, each_epoch=told.append, progress=False)
    assert [record.epoch for record in told] == [one.epoch for one in found.history] == [1, 2, 3, 4, 5, 6]


def test_pictures_of_long_trajectories_end_within_reason(monkeypatch):
    assert energy._FARTHEST == 200
    monkeypatch.setattr(energy, "_FARTHEST", 5)
    made = simulate("oscillator", trajectories=2, steps=8)
    found = sb.discover(made, search=replace(QUICK, updates=2), held_out=0.5, progress=False)
    (only,) = found.summary().portraits
    assert [len(line) for line in only.data + only.model] == [6, 6]


def test_an_array_needs_a_step():
    with pytest.raises(ValueError, match="does not say the time between its states; give step"):
        sb.discover(np.zeros((2, 3, 2)))


def test_predictions_are_by_one_of_two_ways():
    found = sb.discover(data(), search=replace(QUICK, updates=2), progress=False)
    with pytest.raises(ValueError, match=r"by must be 'sampled' or 'plug-in', got 'mode'"):
        found.predict(found.held_out.states[0], by="mode")


def test_maximum_likelihood_has_no_use_for_symmetry():
    """Without the evidence, observables are not rewarded, even where they are conserved: small ones shrink."""
    made = simulate("oscillator", trajectories=7, steps=4, noise=NOISE, seed=1)
    units = Scaling.of(made)
    inside = units.entered(made).float()
    search = Search(quantities=1, width=24, samples=8)
    model = search.model(inside, units, "quadratic", 1)
    for value in (model.observables.halves, model.observables.linear):  # in full, an average is near exact whatever it is
        value.data *= 2**0.5 * search.start * amount_std(search.measure, 1)
    before = float(model.observables.generators().detach().norm())
    adam = torch.optim.Adam(model.parameters(), 0.01)
    model.train()
    states, targets = inside.pairs()
    for _ in range(500):
        adam.zero_grad()
        (model(states) - targets).square().mean().backward()
        adam.step()
    assert float(model.observables.generators().detach().norm()) < 0.2 * before


def test_a_plain_energy_is_taken_where_its_bound_is_higher(tmp_path):
    """After so few updates, symmetries help one system and are in the way of another, by about a nat each."""
    search = replace(QUICK, updates=200, against_plain=True)
    for name, kind in (("2-oscillators", "none"), ("pendulum", "quadratic")):
        found = sb.discover(data(name), symmetry="quadratic", search=search, progress=False)
        learned, plain = (
            sb.discover(data(name), symmetry=symmetry, search=replace(search, against_plain=False), progress=False)
            for symmetry in ("quadratic", "none")
        )
        bounds = [each.evidence["negative_elbo"] for each in (plain, learned)]
        assert found.gain == bounds[0] - bounds[1]
        assert found.evidence["negative_elbo"] == min(bounds)
        assert found.summary().model.kind == kind
        assert learned.gain is None
        assert ("a plain energy is taken" in str(found)) == (kind == "none")
    found.save(tmp_path / "run")
    assert read_discovery(tmp_path / "run").gain == found.gain
    assert found.summary().gain_words() in make_page(tmp_path / "run")


def test_a_stop_while_a_plain_energy_is_learned_is_said_and_gone_on_from(tmp_path):
    search = replace(QUICK, updates=6, against_plain=True)
    straight = sb.discover(data("kepler"), symmetry="quadratic", search=search, progress=False)
    firsts = []

    def stopped(self, state, real=ElboTrainer.epoch):
        firsts.append(state.epoch == 0)
        if state.epoch == 0 and sum(firsts) == 2:
            signal.raise_signal(signal.SIGINT)
        return real(self, state)

    more = {"symmetry": "quadratic", "search": search, "progress": False, "checkpoint": tmp_path}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ElboTrainer, "epoch", stopped)
        with pytest.warns(UserWarning, match="the result is partial"):
            found = sb.discover(data("kepler"), **more)
    assert found.is_partial
    assert not found.result.is_partial
    assert found.gain is None
    assert "partial: training was stopped" in str(found)
    with pytest.raises(ValueError, match="holds the checkpoint of a training, that of a plain energy"):
        sb.discover(data("kepler"), **more)
    with pytest.raises(ValueError, match="must go on with the settings it began with"):
        sb.discover(data("kepler"), **more | {"search": replace(search, measure="uniform")}, resume=True)
    again = sb.discover(data("kepler"), **more, resume=True)
    assert (again.gain, again.is_partial) == (straight.gain, False)


def test_only_what_is_learned_is_compared_with_a_plain_energy():
    search = replace(QUICK, against_plain=True)
    for symmetry in ("none", unitary(1)):
        assert sb.discover(data(), symmetry=symmetry, search=search, progress=False).gain is None
