"""The common scale of precisions, by the full GGN."""

from math import log

import pytest
import torch
from scipy.linalg import hadamard
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import Ggn, Lanczos, Preconditioned, TangentKernel
from symbayes.curvature.ggn import Products
from symbayes.data.source import as_source
from symbayes.priors import LOG_PRECISION_RANGE, Prior
from symbayes.training.record import Decision
from symbayes.training.scale import ScaleSearch, Search, breaking_gamma, breaking_tensors, scaled_groups
from symbayes.training.trainer import Problem


def few(size: int = 60) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 4, generator=generator, dtype=torch.float64)
    return inputs, (inputs @ torch.randn(4, 3, generator=generator, dtype=torch.float64)).argmax(1)


def a_problem(size: int = 60) -> Problem:
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return Problem(model, as_source(few(size), torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))


def by_search(search: ScaleSearch, problem: Problem, probes: int = 16) -> tuple[float, float]:
    """The evidence on average over random vectors, and its standard error."""
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    found = torch.tensor([search.evidence(problem, blocks, seed) for seed in range(probes)], dtype=torch.float64)
    return float(found.mean()), float(found.std()) / probes**0.5


@torch.no_grad()
@pytest.mark.parametrize("precision", [1.0, 0.1])
def test_the_evidence_of_a_try_is_that_of_the_exact_ggn(precision, monkeypatch):
    rows = iter(torch.tensor(hadamard(64)[:, :43]).double())  # over all of them z zᵀ is the identity on average
    monkeypatch.setattr(Products, "signs", lambda self, count, generator: next(rows)[None])
    problem = a_problem()
    problem.prior.log_precision.fill_(log(precision))
    found, _ = by_search(ScaleSearch(steps=43), problem, 64)
    exact = sb.laplace_evidence(problem.model, few(), problem.likelihood, problem.prior, rule=Ggn())
    assert found == pytest.approx(float(exact.total), abs=1e-4)


def test_some_of_the_data_stand_for_all():
    problem, search = a_problem(400), ScaleSearch(steps=43, data=200)
    whole, _ = by_search(ScaleSearch(steps=43), problem, 2)
    part, error = by_search(search, problem, 8)
    assert part == pytest.approx(whole, rel=0.05)
    assert error > 0  # other data for every seed
    assert by_search(search, problem, 2) == by_search(search, problem, 2)


def test_outputs_that_are_not_finite_have_no_evidence():
    problem = a_problem()
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    with torch.no_grad():
        problem.model[0].weight.fill_(torch.nan)
    assert ScaleSearch().evidence(problem, blocks, 0) == -torch.inf


def walk(evidences: list[float], **settings) -> tuple[Search, list[float]]:
    """A search that is told these evidences: what it had come to, and the scales at which it was told."""
    problem = a_problem()
    search, scales = Search(ScaleSearch(**settings), problem), []
    search.begin(evidences[0], 0)
    for evidence in evidences[1:]:
        assert not search.is_done
        search.change({})
        scales.append(float(problem.prior.log_precision[0].detach().exp()))
        with torch.no_grad():
            problem.model[0].bias.fill_(evidence)
        search.judge(evidence, 7)
    assert search.is_done
    assert search.ended == 7
    assert float(problem.model[0].bias[0].detach()) == search.evidence or search.gained == 0
    assert float(problem.prior.log_precision[0].detach().exp()) == pytest.approx(search.scale)
    return search, scales


def test_it_goes_down_while_there_is_a_gain_and_comes_back():
    search, scales = walk([-3.0, -2.0, -1.0, -1.5], factor=2.0)
    assert scales == pytest.approx([0.5, 0.25, 0.125])
    assert (search.evidence, search.scale, search.gained) == (-1.0, 0.25, 2)


def test_it_goes_up_where_down_is_no_gain():
    search, scales = walk([-3.0, -4.0, -2.0, -1.0], factor=2.0, way=0.0)
    assert scales == pytest.approx([0.5, 2.0, 4.0])
    assert (search.evidence, search.scale) == (-1.0, 4.0)


def test_a_scale_is_tried_once_more_from_the_weights_as_they_were():
    search, scales = walk([-3.0, -4.0, -2.0, -1.0], factor=2.0)
    assert scales == pytest.approx([0.5, 0.5, 0.25])
    assert (search.evidence, search.scale, search.follows) == (-1.0, 0.25, False)
    search, scales = walk([-3.0, -4.0, -5.0, -2.0], factor=2.0)
    assert scales == pytest.approx([0.5, 0.5, 2.0])
    assert (search.evidence, search.scale, search.follows) == (-2.0, 2.0, True)
    search, scales = walk([-3.0, -2.0, -4.0, -5.0], factor=2.0)
    assert scales == pytest.approx([0.5, 0.25, 0.25])
    assert (search.evidence, search.scale, search.upwards) == (-2.0, 0.5, True)


def test_where_nothing_is_better_all_stays_as_it_was():
    search, _ = walk([-3.0, -4.0, -5.0], way=0.0)
    assert (search.evidence, search.scale, search.tried) == (-3.0, 1.0, 2)
    search, _ = walk([-3.0, -4.0, -5.0, -6.0])
    assert (search.evidence, search.scale, search.tried) == (-3.0, 1.0, 3)
    walk([-3.0, -4.0], tries=1)


def test_weights_follow_precisions_to_their_mode():
    """Exactly, where the log-likelihood is quadratic and curvature is that of the data."""
    inputs = torch.randn(30, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    targets = torch.randn(30, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = nn.Linear(4, 3, bias=False).double()
    problem = Problem(model, as_source((inputs, targets), torch.device("cpu")), sb.Gaussian(), sb.TensorwisePrior(model))

    def mode() -> torch.Tensor:
        precision = problem.prior.precisions()["weight"].detach()
        return torch.linalg.solve(inputs.T @ inputs + precision * torch.eye(4, dtype=torch.float64), inputs.T @ targets).T

    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    search = Search(ScaleSearch(factor=7.0, way=1.0), problem)
    with torch.no_grad():
        model.weight.copy_(mode())
    search.begin(-1.0, 0)
    search.change(blocks)
    assert_close(model.weight.detach(), mode(), rtol=1e-10, atol=0)
    search.judge(-2.0, 1)
    kept = model.weight.detach().clone()
    search.change(blocks)
    assert float(problem.prior.precisions()["weight"].detach()) == pytest.approx(1 / 7)
    assert torch.equal(model.weight, kept)  # once more, from the weights as they were
    search.judge(-2.0, 1)
    search.change(blocks)
    assert float(problem.prior.precisions()["weight"].detach()) == pytest.approx(7)
    assert_close(model.weight.detach(), mode(), rtol=1e-10, atol=0)
    search.settings, begun = ScaleSearch(factor=7.0), model.weight.detach().clone()
    search.change(blocks)
    assert_close(model.weight.detach(), (begun + mode()) / 2, rtol=1e-10, atol=0)


@torch.no_grad()
def test_only_weights_whose_precision_is_scaled_follow():
    problem = with_a_choice()
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    named = dict(problem.model.named_parameters())
    before = {name: value.clone() for name, value in named.items()}
    search = Search(ScaleSearch(factor=2.0, way=1.0), problem)
    search.begin(-1.0, 0)
    search.change(blocks)
    assert all(torch.equal(named[name], before[name]) for name in BREAKING)
    assert not torch.equal(named[KEEPING], before[KEEPING])
    exact = blocks[KEEPING].dense()
    identity, scaled = torch.eye(len(exact), dtype=exact.dtype), problem.prior.precisions()[KEEPING]
    moved = torch.linalg.solve(exact + scaled * identity, (exact + identity) @ before[KEEPING].flatten())
    assert_close(named[KEEPING].flatten(), moved, rtol=1e-10, atol=1e-12)


def test_paths_that_break_a_symmetry_are_charged_in_full():
    task = sb.load("placed-digits").subset(20, 0)
    model = sb.allconv(task, ("factored", "conv"), 1)
    prior = sb.TensorwisePrior(model, learn=["block1*"])
    problem = Problem(model, as_source(task.train, torch.device("cpu")), sb.Categorical(), prior)
    scaled = {name for name, is_scaled in zip(prior.groups, scaled_groups(prior, problem), strict=True) if is_scaled}
    assert scaled == {"block1.paths.conv.weight", "block1.paths.conv.bias"}


def with_a_choice(prior: type[Prior] = sb.TensorwisePrior) -> Problem:
    """Sums of four features, by paths that know which is which and by one that does not."""
    inputs = torch.randn(80, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    group = sb.groups.symmetric(4).pooled()
    paths = {"dense": sb.layers.DensePath((1, 4), (2, 1)), "same": sb.layers.OrbitPath(1, 2, group)}
    model = nn.Sequential(nn.Unflatten(1, (1, 4)), sb.RelaxedLayer(paths), nn.Flatten()).double()
    data = as_source((inputs, (inputs.sum(1) > 0).long()), torch.device("cpu"))
    return Problem(model, data, sb.Categorical(), prior(model))


BREAKING, KEEPING = ["1.paths.dense.weight", "1.paths.dense.bias"], "1.paths.same.parts.0.weight"


def test_where_a_symmetry_is_broken_the_first_try_keeps_it():
    problem = with_a_choice()
    prior, named = problem.prior, dict(problem.model.named_parameters())
    assert breaking_tensors(problem) == BREAKING
    for gain in (True, False):
        before = {name: parameter.detach().clone() for name, parameter in named.items()}
        search = Search(ScaleSearch(factor=2.0), problem)
        search.begin(-3.0, 0, breaking=1.0)
        search.change({})
        assert not named[BREAKING[0]].any()
        assert torch.equal(named[KEEPING], before[KEEPING])
        assert prior.precisions()[BREAKING[0]].log().item() == pytest.approx(LOG_PRECISION_RANGE[1])
        assert prior.precisions()[KEEPING].item() == pytest.approx(1.0)
        assert search.judge(-2.0 if gain else -4.0, 1) == gain
        search.change({})
        assert named[BREAKING[0]].any() == (not gain)
        assert prior.precisions()[KEEPING].item() == pytest.approx(0.5)  # scales are tried then
        for epoch in (2, 3):
            search.judge(-5.0, epoch)
            assert search.upwards == (epoch == 3)
            search.change({})
        search.judge(-5.0, 4)
        assert search.is_done
        assert (search.evidence, search.scale, search.tried) == (-2.0 if gain else -3.0, 1.0, 3)  # the first was no scale
        with torch.no_grad():
            named[BREAKING[0]].fill_(1.0)
            prior.log_precision.zero_()


def test_paths_that_share_a_precision_with_others_are_not_switched_off():
    assert breaking_tensors(with_a_choice(sb.LayerwisePrior)) == []


@torch.no_grad()
def test_a_search_decomposes_nothing_of_paths_that_are_off():
    """Neither for its evidence nor for how much they are used."""
    problem = with_a_choice()
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    used = sum(float(blocks[name].effective(problem.prior.precisions()[name])) for name in BREAKING)
    assert breaking_gamma(problem, blocks) == pytest.approx(used, rel=1e-12)
    for name in BREAKING:
        prior = problem.prior
        prior.log_precision[prior.groups.index(prior.group_of[name])] = log(float(blocks[name].norm) * 1e9)
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    assert 0 < breaking_gamma(problem, blocks) < 1e-7
    ScaleSearch(steps=3).evidence(problem, blocks, 0)
    for name, block in blocks.items():
        known = {what for part in vars(block).values() for what in getattr(part, "__dict__", {}) if "eigen" in what}
        assert known == (set() if name in BREAKING else {"eigenvalues", "eigenvectors"})


@pytest.mark.parametrize("is_gain", [True, False])
def test_training_asks_without_paths_that_break_a_symmetry_if_they_are_used(is_gain, monkeypatch):
    evidences = iter([-1.0, 0.0 if is_gain else -2.0, -3.0, -3.0])
    monkeypatch.setattr(ScaleSearch, "evidence", lambda *parts: next(evidences))
    problem = with_a_choice()
    trainer = sb.Laplace(search=ScaleSearch()).trainer(problem, sb.Schedule(20, 20), sb.Optimiser())
    state = trainer.init(torch.Generator().manual_seed(0))
    asked = []
    while not trainer.is_done(state):
        trainer.epoch(state)
        asked.append(state.search.is_symmetric)
    assert asked == [False] * 13 + [True, True] + [False] * 5
    weight = problem.model[1].paths["dense"].weight
    assert (weight.abs().max() < 1e-6) == is_gain


def fitted(epochs: int, **settings) -> sb.Result:
    problem = a_problem()
    objective = sb.Laplace(final_rule=Preconditioned(sb.Kfac(), steps=20, probes=2), search=ScaleSearch(**settings))
    return sb.fit(problem.model, few(), prior=problem.prior, objective=objective, epochs=epochs, progress=False)


def test_a_search_takes_the_last_epochs():
    result = fitted(40)
    assert len(result.history) == 40
    moved = [record.epoch for record in result.history if record.evidence is not None]
    assert moved[-1] == 40
    assert moved[-2] <= 28
    half = pytest.approx(0.5 * sb.Schedule().learning_rate)
    begun = [record.epoch for record in result.history[28:] if record.learning_rate == half]
    assert begun == [29, 33, 37]  # of four epochs each, three tries; or two, and the finish
    assert result.evidence.standard_error is not None
    assert result.evidence.slack is not None
    said = [record.epoch for record in result.history if record.decision is not None]
    assert said == [28, 32, 36, 40]


def test_what_was_decided_is_said(tmp_path, monkeypatch):
    evidences = iter([-5.0, -6.0, -4.0, -torch.inf, -4.2, -4.5])
    monkeypatch.setattr(ScaleSearch, "evidence", lambda *parts: next(evidences))
    problem = with_a_choice()
    data, objective = (problem.data.inputs, problem.data.targets), sb.Laplace(search=ScaleSearch(updates=1))
    result = sb.fit(problem.model, data, prior=problem.prior, objective=objective, epochs=20, progress=False)
    expected = (
        Decision("precisions by hyper-steps", -5.0, kept=True),
        Decision("nothing that breaks a symmetry", -6.0, kept=False),
        Decision("all precisions × 0.33", -4.0, kept=True),
        Decision("all precisions × 0.11", None, kept=False),
        Decision("all precisions × 0.11, weights as they were", -4.2, kept=False),
        Decision("what was kept, finished", -4.5, kept=False),
    )
    assert result.decisions == expected
    result.save(tmp_path / "run")
    assert sb.load_result(tmp_path / "run", model=problem.model).decisions == expected


def test_a_search_raises_the_evidence_of_a_network_that_fits_its_data():
    search = ScaleSearch(steps=43)
    before, after = (
        sb.fit(p.model, few(), prior=p.prior, objective=sb.Laplace(final_rule=Ggn(), search=s), epochs=e, progress=False)
        for p, s, e in ((a_problem(), None, 210), (a_problem(), search, 300))  # the same until the search begins
    )
    assert [record.loss for record in after.history[:210]] == [record.loss for record in before.history]
    assert after.log_evidence > before.log_evidence + 1


def test_few_epochs_have_no_search():
    assert len(fitted(5).history) == 5


def test_a_search_goes_on_from_a_saved_state(tmp_path):
    def a_trainer():
        return sb.Laplace(search=ScaleSearch(steps=8)).trainer(a_problem(), sb.Schedule(20, 20), sb.Optimiser())

    whole = a_trainer()
    state = whole.init(torch.Generator().manual_seed(0))
    records = []
    while not whole.is_done(state):
        records.append(whole.epoch(state))
        if state.epoch == 17:
            whole.save(state, tmp_path)
    again = a_trainer()
    state = again.load(tmp_path)
    while not again.is_done(state):
        last = again.epoch(state)
    assert last.evidence == records[-1].evidence


@pytest.mark.parametrize(
    "wrong",
    [{"tries": 0}, {"share": 0.4}, {"updates": 0}, {"factor": 1.0}, {"way": 1.1}, {"rate": 0.0}, {"steps": 0}, {"data": 0}],
)
def test_settings_without_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="must be"):
        ScaleSearch(**wrong)
    with pytest.raises(ValueError, match="use one of them"):
        sb.fit(nn.Linear(4, 3).double(), few(), objective=sb.Laplace(search=ScaleSearch(), keep_best=True), progress=False)


def test_evidences_are_compared_under_one_vector_whatever_eigenvectors_are_called():
    problem = a_problem()
    blocks = sb.Kfac().curvature(problem.model, problem.data, problem.likelihood).blocks
    before = ScaleSearch(steps=43).evidence(problem, blocks, 0)
    for block in blocks.values():
        for factor in [getattr(block, side) for side in ("A", "G", "H") if hasattr(block, side)]:
            factor.eigenvectors[..., 0].neg_()
    assert ScaleSearch(steps=43).evidence(problem, blocks, 0) == pytest.approx(before, rel=1e-9)


def search_by(epochs: int, evidences: list[float], monkeypatch, search: ScaleSearch | None = None, **settings):
    """A training whose tries are judged by given evidences; its trainer and state, before the epoch that judges the first."""
    found = iter(evidences)
    monkeypatch.setattr(ScaleSearch, "evidence", lambda *parts: next(found))
    objective = sb.Laplace(search=search or ScaleSearch(), **settings)
    trainer = objective.trainer(a_problem(), sb.Schedule(epochs, 20), sb.Optimiser())
    state = trainer.init(torch.Generator().manual_seed(0))
    while state.epoch < trainer.main + trainer.of_try - 1:
        trainer.epoch(state)
    return trainer, state


@pytest.mark.parametrize("epochs", [20, 21, 25])
def test_what_a_failed_try_did_is_undone_in_the_optimiser_too(epochs, monkeypatch):
    trainer, state = search_by(epochs, [-1.0, -2.0], monkeypatch)
    kept = {name.removeprefix("model."): v for name, v in state.search.kept.items() if name.startswith("model.")}
    monkeypatch.setattr("symbayes.training.scale.follow", lambda *parts: None)  # which would begin the next try
    trainer.epoch(state)
    assert not state.search.follows
    state.descent.set(1e-12, torch.zeros(4))
    trainer.problem.model.train()
    state.steps.epoch(state.generator)  # of steps that go nowhere
    for name, weight in trainer.problem.model.state_dict().items():
        torch.testing.assert_close(weight, kept[name], rtol=0, atol=1e-8)


def test_a_try_that_diverges_is_given_up(monkeypatch):
    """What is left finishes what was kept; where that diverges, too, training ends with it."""
    trainer, state = search_by(20, [-1.0, -2.0], monkeypatch)
    kept, begun = state.search.kept["model.0.weight"].clone(), state.epoch

    def diverge():
        with torch.no_grad():
            for place in (*trainer.problem.model.parameters(), *state.descent._places):
                place.fill_(torch.nan)
        return trainer.epoch(state)

    record = diverge()
    assert record.decision == Decision("all precisions × 0.33", None, kept=False)
    assert record.loss < 10
    assert torch.equal(trainer.problem.model[0].weight, kept)
    assert (state.search.ended, trainer.is_done(state)) == (begun + 1, False)
    trainer.epoch(state)
    assert not torch.equal(trainer.problem.model[0].weight, kept)
    record = diverge()
    assert record.decision == Decision("what was kept, finished", None, kept=False)
    assert trainer.is_done(state)
    assert record.evidence is not None
    assert torch.equal(trainer.problem.model[0].weight, kept)


def test_a_try_that_diverges_in_the_last_epoch_is_said(monkeypatch):
    trainer, state = search_by(20, [-1.0, -2.0, -3.0, -4.0], monkeypatch)
    while state.epoch < 19:
        trainer.epoch(state)
    state.search.is_done = False  # as if there were a try
    with torch.no_grad():
        for place in (*trainer.problem.model.parameters(), *state.descent._places):
            place.fill_(torch.nan)
    assert trainer.epoch(state).decision.log_evidence is None


def test_all_symmetry_is_asked_for_beside_all_scales_where_there_is_room(monkeypatch):
    """In six epochs, of one each or of two; what is left finishes what was kept."""
    for updates, gained, ended in ((4, 3, 18), (8, 2, 20)):
        evidences = iter([-5.0, -6.0, -4.0, -3.0, -2.0, -1.0])  # without it, and then scales and the finish
        monkeypatch.setattr(ScaleSearch, "evidence", lambda *parts, found=evidences: next(found))
        search = ScaleSearch(updates=updates)
        trainer = sb.Laplace(search=search).trainer(with_a_choice(), sb.Schedule(20, 20), sb.Optimiser())
        state = trainer.init(torch.Generator().manual_seed(0))
        rates = []
        while not trainer.is_done(state):
            last = trainer.epoch(state)
            rates.append(last.learning_rate / sb.Schedule().learning_rate)
        assert (last.epoch, state.search.gained, state.search.ended) == (20, gained, ended)
        assert rates[18:] == pytest.approx([0.5, 0.25])  # of the finish, or of the last try
        assert state.search.evidence == (-1.0 if gained == 3 else -3.0)


@pytest.mark.parametrize("is_gain", [True, False])
def test_a_finish_that_is_worse_than_what_it_began_with_is_undone(is_gain, monkeypatch):
    trainer, state = search_by(20, [-1.0, -2.0, -2.0, 0.0 if is_gain else -2.0], monkeypatch)
    kept = state.search.kept["model.0.weight"].clone()
    while not trainer.is_done(state):
        last = trainer.epoch(state)
    assert last.epoch == 20
    assert torch.equal(trainer.problem.model[0].weight, kept) == (not is_gain)


def test_training_that_is_stopped_while_it_finishes_gives_what_was_kept(monkeypatch):
    trainer, state = search_by(20, [-1.0, -2.0, -2.0], monkeypatch, search=ScaleSearch(way=0.0))
    kept = state.search.kept["model.0.weight"].clone()
    while state.epoch < 19:
        trainer.epoch(state)
    assert state.search.is_done
    assert not torch.equal(trainer.problem.model[0].weight, kept)
    trainer.conclude(state)
    assert torch.equal(trainer.problem.model[0].weight, kept)


def test_a_try_takes_a_limited_number_of_steps():
    search = ScaleSearch()
    assert [search.epochs_of_try(100, steps) for steps in (1, 100, 200, 2000)] == [10, 8, 4, 1]
    assert [search.epochs_of_try(epochs, 16) for epochs in (5, 10, 50)] == [0, 1, 5]
    assert [search.epochs_before(epochs) for epochs in (5, 10, 50)] == [5, 7, 35]


def test_precisions_of_the_first_try_are_scaled_and_nothing_else(monkeypatch):
    trainer, state = search_by(20, [-1.0], monkeypatch, cool_down=0.0)
    scaled = trainer.problem.prior.log_precision.detach() - state.search.kept["prior.log_precision"]
    torch.testing.assert_close(scaled, torch.full_like(scaled, -log(3)))


class Extra(nn.Linear):
    """A module that keeps more than tensors."""

    def get_extra_state(self):
        return {"note": "kept"}

    def set_extra_state(self, state):
        assert state == {"note": "kept"}


def test_modules_with_other_state_are_kept_too():
    for objective in (None, sb.Laplace(sb.Kfac(), keep_best=True)):
        assert sb.fit(Extra(4, 3).double(), few(), objective=objective, epochs=20, progress=False).log_evidence < 0


def test_rules_without_blocks_have_no_search():
    for rule in (Lanczos(), Preconditioned(), Ggn(), TangentKernel()):
        with pytest.raises(ValueError, match="needs curvature in blocks, near which the full GGN is sought"):
            sb.fit(a_problem().model, few(), objective=sb.Laplace(rule, search=ScaleSearch()), progress=False)
