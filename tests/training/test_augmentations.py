"""Which augmentations: modes and evidences against closed forms, odds against sums over groups, and answers that are known."""

from math import log, nan, pi, sqrt

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Preconditioned
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import evidence_at
from symbayes.groups.discrete import mirror, permuted_channels, quarter_turns, time_reversal
from symbayes.groups.lie import affine2d, colours
from symbayes.invariance.augmentation import LearnedAugmentation, learned_augmentation
from symbayes.invariance.discrete_average import DiscreteAverage, Probabilities
from symbayes.invariance.extents import Extents, ExtentSummary
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.positions import PerPosition
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.training import augmentations as module
from symbayes.training.augmentations import (
    Augmentations,
    Candidate,
    _verdict,
    augmentations,
    candidate_names,
    groups_of,
    inclusion,
)
from symbayes.training.modes import Judged, LogOdds, judge, log_joint, log_odds, newton_gain
from symbayes.training.trainer import Problem
from tests.oracles import dense_ggn, finite_difference, joined, linear_regression_evidence, softmax_hessian

CPU = torch.device("cpu")


def classes(generator, start=0.6):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 3))
    model = DiscreteAverage(net, [mirror("x")], start).double()
    model.discrete.requires_grad_(False)
    inputs = torch.randn(20, 1, 3, 3, generator=generator, dtype=torch.float64)
    return Problem(model, TensorSource(inputs, torch.arange(20) % 3, CPU), Categorical(), TensorwisePrior(model, 0.7))


def hessian(problem):
    names = list(weights(problem.model))
    H = joined(dense_ggn(problem.model.eval(), problem.data.inputs, softmax_hessian), names)
    return H + 0.7 * torch.eye(len(H), dtype=torch.float64)


@pytest.mark.parametrize("rule", [Ggn(), Preconditioned(Kfac(), 60)], ids=str)
def test_what_a_newton_step_gains_is_that_of_jacobians(rule, generator):
    problem = classes(generator)
    value, gradient = log_joint(problem)
    named = weights(problem.model)

    def at(point):
        with torch.no_grad():
            for weight, part in zip(named.values(), point.split([w.numel() for w in named.values()]), strict=True):
                weight.copy_(part.view_as(weight))
        return log_joint(problem)[0]

    start = torch.cat([weight.detach().flatten() for weight in named.values()])
    assert_close(gradient, finite_difference(at, start, 1e-6), rtol=1e-5, atol=1e-6)
    assert at(start) == pytest.approx(value)
    outputs = problem.model(problem.data.inputs)
    fit = Categorical().log_prob(outputs, problem.data.targets).sum() - 0.35 * start.square().sum()
    assert value == pytest.approx(float(fit.detach()))
    with torch.no_grad():
        curvature = rule.curvature(problem.model, problem.data, problem.likelihood, generator=torch.Generator().manual_seed(0))
    wanted = gradient @ torch.linalg.solve(hessian(problem), gradient) / 2
    assert newton_gain(problem, curvature) == pytest.approx(float(wanted), rel=1e-6)


@pytest.mark.parametrize("rule", [Ggn(), Preconditioned(Ggn(joint=False), 60)], ids=str)
def test_preconditioned_coordinates_are_those_in_which_curvature_is_the_identity(rule, generator):
    """Exactly by the full matrix; by blocks, block by block."""
    problem = classes(generator)
    H = hessian(problem)
    identity = torch.eye(len(H), dtype=torch.float64)
    with torch.no_grad():
        curvature = rule.curvature(problem.model, problem.data, problem.likelihood)
        precisions = problem.prior.precisions()
        back = torch.stack([curvature.precondition(row, precisions, back=True) for row in identity], 1)
        there = torch.stack([curvature.precondition(row, precisions) for row in identity], 1)
    assert_close(there, back.T)
    found = there @ H @ back
    if isinstance(rule, Ggn):
        assert_close(found, identity, rtol=0, atol=1e-9)
    first = 0
    for weight in weights(problem.model).values():
        own = slice(first, first + weight.numel())
        assert_close(found[own, own], identity[own, own], rtol=0, atol=1e-9)
        first += weight.numel()


def test_random_vectors_that_are_compared_are_signs_of_the_weights(generator):
    problem = classes(generator)
    rule = Preconditioned(Kfac(), 10, 3, comparable=True)
    found = []
    for share in (0.6, 0.0):
        problem.model.discrete.fix({"mirror_x": share})
        with torch.no_grad():
            curvature = rule.curvature(
                problem.model, problem.data, problem.likelihood, generator=torch.Generator().manual_seed(1)
            )
        near = curvature._near(problem.prior.precisions())
        found.append(
            torch.stack([curvature._rotate(probe, near, back=True) for probe in curvature._starts(near, curvature.probes)])
        )
    assert_close(found[0].abs(), torch.ones_like(found[0]))
    assert_close(found[0], found[1])


def test_log_odds_by_random_vectors_are_those_of_the_exact_matrix(generator):
    problem, found = classes(generator), {}
    for name, rule in {"exact": Ggn(), "vectors": Preconditioned(Kfac(), 60, 16, comparable=True)}.items():
        for share in (0.6, 0.0):
            problem.model.discrete.fix({"mirror_x": share})
            with torch.no_grad():
                seed = torch.Generator().manual_seed(1)
                curvature = rule.curvature(problem.model, problem.data, problem.likelihood, generator=seed)
                total = evidence_at(curvature, problem.model, problem.prior, 20).total
                log_dets = curvature.log_dets(problem.prior.precisions()) if name == "vectors" else torch.zeros(0)
            found[name, share] = Judged(float(total), log_dets, 0.0, str(rule))
    exact = log_odds([found["exact", 0.6]], [found["exact", 0.0]])
    odds = log_odds([found["vectors", 0.6]], [found["vectors", 0.0]])
    assert abs(odds.value - exact.value) < 4 * odds.standard_error
    alone = sqrt(sum(float(found["vectors", share].log_dets.var()) for share in (0.6, 0.0)) / 16) / 2
    assert 0 < odds.standard_error < alone  # errors cancel


def test_larger_networks_are_compared_by_random_vectors():
    inputs, targets = sequences(60, 2)

    def wide():
        return nn.Sequential(nn.Flatten(), nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 2))

    found = augmentations(wide, (inputs, targets["sides"]), candidates=["time_reversal"], epochs=4, repeats=1, progress=False)
    assert "Lanczos (4 probes, 25 steps)" in found.estimator
    odds = found["time_reversal"].log_odds
    assert odds.standard_error > 0
    assert odds.value < 0


def test_a_network_is_judged_at_its_mode_by_its_exact_evidence(generator):
    """A linear map and Gaussian noise have both in closed form."""
    inputs = torch.randn(30, 1, 1, 4, generator=generator, dtype=torch.float64)
    targets = inputs.flatten(1) @ torch.tensor([[1.0], [0.5], [0.5], [1.0]], dtype=torch.float64)
    targets = targets + 0.3 * torch.randn(30, 1, generator=generator, dtype=torch.float64)
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 1, bias=False)).double()
    model = DiscreteAverage(net, [mirror("x")])
    model.discrete.fix({"mirror_x": 0.8})
    likelihood = Gaussian(0.3).double().requires_grad_(False)
    problem = Problem(model, TensorSource(inputs, targets, CPU), likelihood, TensorwisePrior(model, 1.0).double())
    judged = judge(problem, Ggn(), 0, 50)
    assert judged.gap < 1e-6
    delta = problem.prior.precisions()["net.1.weight"].detach()
    features = (0.6 * inputs + 0.4 * inputs.flip(3)).flatten(1)
    exact = [
        float(linear_regression_evidence(features, targets, at.expand(4), torch.tensor([0.3], dtype=torch.float64)))
        for at in (delta, 1.3 * delta, delta / 1.3, torch.ones_like(delta))
    ]
    assert judged.evidence == pytest.approx(exact[0], abs=0.05)
    assert exact[0] > max(exact[1:])


def one(evidence, gap=0.0, log_dets=()):
    return Judged(evidence, torch.tensor(log_dets, dtype=torch.float64), gap, "by hand")


def test_there_is_a_network_for_each_group():
    found = groups_of([mirror("x"), mirror("y"), quarter_turns()])
    names = {tuple(g.name for g in some) for some in found.values()}
    assert names == {
        (), ("mirror_x",), ("mirror_y",), ("quarter_turns",), ("mirror_x", "mirror_y"), ("mirror_x", "quarter_turns"),
    }  # fmt: skip
    assert sorted(map(len, found)) == [0, 1, 1, 3, 3, 7]
    own = [sb.groups.DiscreteGenerator(f"channels_{i}", sb.groups.permuted_channels(order).step)
           for i, order in enumerate([(1, 0, 2, 3, 4, 5), (0, 1, 3, 2, 4, 5), (0, 1, 2, 3, 5, 4)])]  # fmt: skip
    with pytest.raises(ValueError, match=r"at most 16 groups, since a network is trained for each; .* generate 32\. Ask"):
        groups_of([mirror("x"), mirror("y"), *own])


def test_the_odds_of_a_candidate_are_those_of_groups_that_contain_it():
    generators = [mirror("x"), mirror("y"), quarter_turns()]
    values = dict(
        zip(groups_of(generators), ([0.0, 1.0], [2.0, 1.5], [-1.0, 0.5], [4.0, 2.5], [0.0, 3.0], [5.0, 1.0]), strict=True)
    )
    judged = {key: [one(value) for value in of] for key, of in values.items()}
    for generator in generators:
        wanted = []
        for start in range(2):
            inside = [np.exp(of[start]) for key, of in values.items() if generator.step in key]
            outside = [np.exp(of[start]) for key, of in values.items() if generator.step not in key]
            assert len(inside) + len(outside) == 6
            wanted.append(log(np.mean(inside) / np.mean(outside)))
        odds, _ = inclusion(generator, generators, judged)
        assert odds.value == pytest.approx(np.mean(wanted))
        assert odds.standard_error == pytest.approx(np.std(wanted, ddof=1) / sqrt(2))
    assert inclusion(mirror("x"), generators, judged)[1] == "mirror x + quarter turns, or quarter turns"


def test_the_standard_error_is_that_of_differences():
    with_it, without = one(10.0, 0.5, [1.0, 5.0, 9.0]), one(4.0, 0.25, [0.0, 5.0, 7.0])
    odds = log_odds([with_it], [without])
    assert (odds.value, odds.gap_with, odds.gap_without, odds.starts) == (6.0, 0.5, 0.25, 1)
    assert odds.standard_error == pytest.approx(torch.tensor([1.0, 0.0, 2.0]).std().item() / 2 / sqrt(3))
    assert log_odds([one(3.0)], [one(1.0)]).standard_error == 0
    assert np.isnan(log_odds([one(3.0, 0.0, [1.0])], [one(1.0, 0.0, [2.0])]).standard_error)
    assert log_odds([one(3.0), one(6.0)], [one(1.0), one(1.0)]).standard_error == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("odds", "wanted"),
    [
        (LogOdds(4.0, 0.0, 9.0, 0.5), "yes"),
        (LogOdds(4.0, 0.0, 0.0, 1.5), "not decided"),  # the other network may still gain
        (LogOdds(4.0, 1.0, 0.0, 0.0), "not decided"),
        (LogOdds(-4.0, 0.0, 0.5, 9.0), "no"),
        (LogOdds(-4.0, 0.0, 1.5, 0.0), "not decided"),
        (LogOdds(0.0, 0.0, 0.0, 0.0), "not decided"),
        (LogOdds(100.0, nan, 0.0, 0.0), "not decided"),
    ],
)
def test_a_verdict_holds_when_errors_are_counted(odds, wanted):
    assert _verdict(odds) == wanted


def sequences(count, seed):
    """Two tasks: is there more at one end than at the other, and is the middle the larger part?"""
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 1, 6, generator=draw)
    sides = (inputs[:, 0, :3].sum(1) > inputs[:, 0, 3:].sum(1)).long()
    middle = (inputs[:, 0, 2:4].square().sum(1) > inputs[:, 0, [0, 1, 4, 5]].square().sum(1) / 2).long()
    return inputs, {"sides": sides, "middle": middle}


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def test_time_may_be_reversed_where_sides_do_not_matter():
    inputs, targets = sequences(240, 0)
    found = {
        task: augmentations(make, (inputs, of), candidates=["time_reversal"], epochs=16, progress=False)
        for task, of in targets.items()
    }
    assert {task: of["time_reversal"].verdict for task, of in found.items()} == {"sides": "no", "middle": "yes"}
    assert found["sides"]["time_reversal"].log_odds.value < -20
    text = str(found["middle"])
    assert "The evidence asks for time reversal." in text
    assert "by exact GGN (full)" in text
    assert "over 2 starts" in text
    assert "It does not ask for time reversal." in str(found["sides"])
    assert repr(found["sides"].augmentation()) == "LearnedAugmentation(nothing)"
    assert torch.equal(found["sides"].augmentation()(inputs), inputs)
    moved = found["middle"].augmentation(seed=0)(inputs)
    share = (moved == inputs.flip(2)).flatten(1).all(1).double().mean()
    assert share == pytest.approx(0.5, abs=0.12)
    with pytest.raises(KeyError, match="There is no candidate 'mirror_x'; there are time_reversal"):
        found["middle"]["mirror_x"]


def test_averages_that_are_compared_are_held_as_they_were_given(monkeypatch):
    found = []
    monkeypatch.setattr(module, "judge", lambda problem, *rest: found.append(problem.model.discrete) or judge(problem, *rest))
    inputs, targets = sequences(60, 0)
    augmentations(make, (inputs, targets["middle"]), candidates=["time_reversal"], epochs=4, repeats=1, progress=False)
    assert [held.value.tolist() for held in found] == [[], [0.5]]


def test_extents_are_learned_and_judged_by_what_is_lost_without_them():
    inputs, targets = sequences(120, 1)
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = augmentations(
        model, (inputs, targets["sides"]), candidates=["shift", "contrast"], epochs=6, samples=4, repeats=1, progress=False
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [candidate.name for candidate in found.candidates] == ["shift", "contrast"]
    for candidate in found.candidates:
        assert (candidate.log_odds is None) == (candidate.compared == "nothing: next to none was learned")
        kept = found.extents.natural()[candidate.name]
        assert kept == (pytest.approx(candidate.amount.value, rel=1e-4) if candidate.verdict == "yes" else 0)
    assert "of one start, so that it does not show how much starts matter" in str(found) or "nats" not in str(found)


def test_candidates_are_those_that_data_of_a_shape_have():
    affine = ("translation", "rotation", "scale", "shear")
    values = ("brightness", "contrast")
    assert candidate_names((1, 8, 8)) == ("mirror_x", "mirror_y", "quarter_turns", *affine, *values)
    assert candidate_names((3, 8, 6)) == ("mirror_x", "mirror_y", *affine, *values, "saturation", "hue")
    assert candidate_names((1, 4, 5, 6)) == ("mirror_x", "mirror_y", "mirror_z", *values)
    assert candidate_names((2, 9)) == ("time_reversal", "shift", "speed", *values)
    with pytest.raises(ValueError, match=r"sequences \[n, c, t\], images .* one of these has shape \(7,\)\. Reshape them"):
        candidate_names((7,))


def test_what_cannot_be_asked_is_refused():
    inputs, targets = sequences(20, 0)
    data = inputs, targets["sides"]
    with pytest.raises(ValueError, match=r"must be some of time_reversal, shift, .*, or discrete generators .*; got mirror_x"):
        augmentations(make, data, candidates=["mirror_x"], progress=False)
    with pytest.raises(ValueError, match=r"Categorical targets must lie in 0 … 1, .*; got 7"):
        augmentations(make, (inputs, torch.full((20,), 7)), candidates=["time_reversal"], progress=False)
    with pytest.raises(ValueError, match=r"epochs and samples must be at least 2 and repeats at least 1; got 1, 8 and 2"):
        augmentations(make, data, epochs=1, progress=False)
    with pytest.raises(ValueError, match=r"compared by the full GGN, Ggn\(\) or Preconditioned\(\.\.\.\); got KFAC"):
        augmentations(make, data, rule=Kfac(), progress=False)
    with pytest.raises(ValueError, match=r"targets at positions \(PerPosition\) would have to move with them"):
        augmentations(make, data, likelihood=PerPosition(Categorical(), 2), progress=False)


@pytest.mark.parametrize(
    ("candidates", "error", "words"),
    [
        ("time_reversal", TypeError, r"list of names, or .*; got str\. Names are time_reversal, shift"),
        ([mirror("x")], ValueError, r"Inputs must be images \[n, c, h, w\]"),
        ([permuted_channels((2, 1, 0), dims=1)], ValueError, "permutation of 3 channels needs inputs with as many, got 1"),
        (["time_reversal", time_reversal()], ValueError, "must have different names"),
    ],
)
def test_candidates_that_cannot_be_asked_for_are_refused_before_training(candidates, error, words, monkeypatch):
    def never(*_, **__):
        raise AssertionError("Training has begun.")

    monkeypatch.setattr("symbayes.training.augmentations.learn", never)
    inputs, targets = sequences(20, 0)
    with pytest.raises(error, match=words):
        augmentations(make, (inputs, targets["sides"]), candidates=candidates, progress=False)


def test_a_seed_settles_dropout_and_loaders_and_the_global_generator_stays():
    inputs, targets = sequences(20, 0)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(inputs[0].numel(), 2))
    found = []
    for state in (1, 2):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        loader = DataLoader(TensorDataset(inputs, targets["sides"]), batch_size=8, shuffle=True)
        asked = augmentations(net, loader, candidates=["time_reversal"], epochs=2, repeats=1, progress=False)
        found.append(asked["time_reversal"].log_odds.value)
        assert torch.equal(torch.get_rng_state(), before)
    assert found[0] == found[1]


def summary(name):
    return ExtentSummary(name, 30.0, "%", 50.0, True, True)


def test_the_table_follows_what_came_out():
    found = Augmentations(
        (
            Candidate(summary("mirror_x"), "partly", LogOdds(7.0, 0.5, 0.1, 0.2, 2), "mirror x, or nothing"),
            Candidate(summary("mirror_y"), "not decided", LogOdds(-1.0, 0.5, 0.1, 0.2, 2), "mirror y, or nothing"),
        ),
        "exact GGN (full)", 50, Probabilities(()), None, LogOdds(5.0, 0.5, 0.1, 0.2, 2),
    )  # fmt: skip
    text = str(found)
    assert "In part, it asks for mirror x. It does not decide on mirror y." in text
    assert "against the best group: log-odds 5.0 ± 0.5" in text
    assert "−1.0" in text
    assert repr(found) == text


def images():
    return torch.randint(0, 255, (40, 3, 6, 6), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_an_augmentation_is_called_as_both_kinds_of_pipelines_do():
    extents = Extents(affine2d("rotation"))
    extents.shape = (3, 6, 6)
    with torch.no_grad():
        extents.value.fill_(pi)
    discrete = Probabilities([mirror("x")], 1.0)
    by = {
        kind: LearnedAugmentation(extents, torch.Generator().manual_seed(2), discrete) for kind in ("batch", "again", "array")
    }
    batch = images()
    moved = by["batch"](batch)
    assert moved.dtype == torch.uint8
    assert moved.shape == batch.shape
    assert not torch.equal(moved, batch)
    assert torch.equal(moved, by["again"](batch))
    array = batch[0].permute(1, 2, 0).numpy()
    (found,) = by["array"](image=array).values()
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert by["array"](image=array[:, :, 0])["image"].shape == (6, 6)
    assert by["array"](batch[0]).shape == (3, 6, 6)
    assert repr(by["array"]) == "LearnedAugmentation(mirror_x 50 %, rotation ±180 °)"
    alone = LearnedAugmentation(None, torch.Generator().manual_seed(2), discrete)
    flipped = alone(batch)
    mirrored = (flipped == batch.flip(3)).flatten(1).all(1)
    assert torch.equal(flipped[~mirrored], batch[~mirrored])
    assert 8 < int(mirrored.sum()) < 32


def test_whole_numbers_may_be_moved_where_no_change_of_colours_was_learned():
    both, alone = Extents(affine2d("rotation") * colours("brightness")), Extents(affine2d("rotation"))
    for extents in (both, alone):
        extents.shape = (3, 6, 6)
        with torch.no_grad():
            extents.value.copy_(torch.tensor([pi, 0.0])[: len(extents.names)])
    still = images()[:1]
    moved = LearnedAugmentation(both, torch.Generator().manual_seed(0))(still)
    assert moved.dtype == torch.uint8
    # The first of the draws is that of rotation in either.
    assert torch.equal(moved, LearnedAugmentation(alone, torch.Generator().manual_seed(0))(still))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float16, np.bool_])
def test_arrays_of_any_kind_of_numbers_are_mirrored(kind):
    augment = LearnedAugmentation(None, torch.Generator().manual_seed(0), Probabilities([mirror("x")], 1.0))
    array = (np.arange(24).reshape(4, 6) * 2500).astype(kind)
    array[0, 0] = 0
    found = [augment(image=array)["image"] for _ in range(10)]
    assert {one.dtype for one in found} == {array.dtype}
    assert {(one == array).all() for one in found} == {True, False}
    assert all((one == array).all() or (one == array[:, ::-1]).all() for one in found)


def test_an_augmentation_refuses_what_it_cannot_change_rightly():
    of_colours = Extents(affine2d("rotation") * colours("brightness"))
    of_colours.shape = (3, 6, 6)
    augment = LearnedAugmentation(of_colours)
    with pytest.raises(
        ValueError, match=r"Colours were learned in the scale of the data .* got torch.uint8\. Convert and stand"
    ):
        augment(images())
    assert augment(images().float()).shape == (40, 3, 6, 6)
    with pytest.raises(TypeError, match=r"Give one of two: a tensor, as augment\(images\), or an array by name"):
        augment()
    with pytest.raises(ValueError, match=r"image must be an array \[h, w\] or \[h, w, c\], got shape \(6,\)"):
        augment(image=np.zeros(6))
    with pytest.raises(ValueError, match=r"as many axes as those learned from, of 3 axes, or one of them; got \(6, 6\)"):
        LearnedAugmentation(None, None, Probabilities([mirror("x")]))(torch.zeros(6, 6))
    with pytest.raises(ValueError, match=r"image= is for what was learned of images \[c, h, w\]; .* with 2 axes\. Give a"):
        LearnedAugmentation(None, None, Probabilities([time_reversal()]))(image=np.zeros((6, 6)))


@pytest.mark.parametrize("discrete_inside", [False, True])
def test_an_augmentation_moves_in_the_order_of_the_averages(discrete_inside):
    """A dot in the middle that is shifted along x, and turned before it or after: only then it leaves its row."""
    group, turns = affine2d("translation_x"), [quarter_turns()]
    if discrete_inside:
        model = OrbitAverage(DiscreteAverage(nn.Flatten(), turns, start=1.0), group, 2)
    else:
        model = DiscreteAverage(OrbitAverage(nn.Flatten(), group, 2), turns, start=1.0)
    dots = torch.zeros(50, 1, 9, 9)
    dots[:, :, 4, 4] = 1
    model(dots)
    with torch.no_grad():
        next(module for module in model.modules() if isinstance(module, Extents)).value.fill_(0.5)
    torch.manual_seed(0)
    moved = learned_augmentation(model)(dots)
    assert bool((moved.sum((0, 1, 3))[[2, 6]] > 0.1).all()) == discrete_inside


def test_a_model_with_both_kinds_of_average_gives_one_augmentation():
    model = DiscreteAverage(OrbitAverage(nn.Flatten(), affine2d("rotation"), 2), [mirror("x")])
    model(torch.zeros(2, 1, 4, 4))
    assert repr(learned_augmentation(model)) == "LearnedAugmentation(mirror_x 25 %, rotation ±5.73 °)"
    assert (
        repr(learned_augmentation(DiscreteAverage(nn.Flatten(), [time_reversal()])))
        == "LearnedAugmentation(time_reversal 25 %)"
    )
    with pytest.raises(ValueError, match="this one has them 0 times, and 0 times"):
        learned_augmentation(nn.Linear(2, 2))
