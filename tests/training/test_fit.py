"""`fit` from data to result: it learns, repeats itself, saves itself, and says what is wrong."""

import json
import re
from dataclasses import fields, replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

import symbayes as sb
from symbayes.curvature import Ggn, Lanczos, MonteCarloFisher, TangentKernel
from symbayes.data.source import TensorSource, as_source
from symbayes.report.runs import make_page
from symbayes.training import by_curvature
from symbayes.training.record import Record
from symbayes.training.trainer import Problem, train
from tests.damage import reseal


def blobs(n=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(n) % 3
    centres = torch.tensor([[2.0, 0.0], [-2.0, 1.0], [0.0, -2.0]])
    return centres[targets] + 0.5 * torch.randn(n, 2, generator=generator), targets


def network(seed=0):
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))


QUICK = {"epochs": 12, "progress": False}


@pytest.mark.parametrize(
    "wrap", [lambda d: d, lambda d: TensorDataset(*d), lambda d: DataLoader(TensorDataset(*d), 20, shuffle=True)]
)
def test_it_learns_from_every_kind_of_data(wrap):
    result = sb.fit(network(), wrap(blobs()), likelihood=sb.Categorical(), schedule=sb.Schedule(40, 20, 0.03), progress=False)
    assert result.evaluate(blobs(seed=1))["accuracy"] > 0.95
    assert result.log_evidence < 0
    assert len(result.history) in (36, 40)  # a search may end before all it may try
    assert "KFAC" in result.evidence.estimator


@pytest.mark.parametrize(("epochs", "said"), [(3, [1, 2, 3]), (25, [3, 5, 8, 10, 13, 15, 18, 20, 23, 25])])
def test_without_a_terminal_ten_lines_say_how_far_it_is(epochs, said, capsys):
    sb.fit(network(), blobs(), objective=sb.Laplace(), epochs=epochs)
    lines = capsys.readouterr().err.splitlines()
    assert [int(re.match(rf"epoch (\d+) of {epochs}, \d+ s: loss \d\.\d{{4}}", line)[1]) for line in lines] == said
    assert "log evidence -" in lines[-1]
    sb.fit(network(), blobs(), **QUICK)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_there_is_a_bar_that_goes(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    sb.fit(network(), blobs(), objective=sb.Map(sb.Kfac()), epochs=3)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert said.endswith("\x1b[1A\x1b[2K")  # up a line, and it is wiped


def test_the_same_seed_gives_the_same_result():
    first, second, other = (sb.fit(network(), blobs(), seed=seed, **QUICK) for seed in (3, 3, 4))
    assert first.log_evidence == second.log_evidence
    assert first.log_evidence != other.log_evidence
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert_close(a, b, rtol=0, atol=0)


def test_map_keeps_the_prior_and_still_reports_the_evidence():
    prior = sb.ScalarPrior(network(), 2.0)
    model = network()
    result = sb.fit(model, blobs(), prior=prior, objective=sb.Map(sb.Kfac()), **QUICK)
    assert_close(prior.log_precision.exp().detach(), torch.tensor([2.0]))
    assert [record.evidence is not None for record in result.history] == [False] * 11 + [True]
    evidence = sb.laplace_evidence(model, blobs(), sb.Categorical(), prior)
    assert result.log_evidence == pytest.approx(float(evidence.total.detach()), rel=1e-5)


def test_the_state_of_highest_evidence_is_kept():
    objective = sb.Laplace(sb.Kfac(), burn_in=0.0, cool_down=0.0, hyper_every=1, keep_best=True)
    result = sb.fit(network(), blobs(), objective=objective, **QUICK)
    seen = [record.evidence.total for record in result.history if record.evidence]
    assert result.log_evidence == max(seen)
    again = sb.laplace_evidence(result.model, blobs(), result.likelihood, result.prior, rule=sb.Kfac())
    assert result.log_evidence == pytest.approx(float(again.total.detach()), rel=1e-4)


def test_precisions_move_after_burn_in_and_rest_in_the_cool_down():
    objective = sb.Laplace(sb.Kfac(), burn_in=0.25, cool_down=0.5, hyper_every=1)
    result = sb.fit(network(), blobs(), objective=objective, **QUICK)
    records = result.history
    assert [record.epoch for record in records if record.evidence] == [3, 4, 5, 6, 12]
    assert records[11].evidence.precision == records[5].evidence.precision
    assert records[5].evidence.precision != records[4].evidence.precision


def test_the_final_rule_reports_the_evidence_of_what_is_kept():
    objective = sb.Laplace(sb.Kfac(MonteCarloFisher(2)), Ggn(), hyper_every=4)
    result = sb.fit(network(), blobs(), objective=objective, **QUICK)
    assert result.evidence.estimator == "exact GGN (full)"
    again = sb.laplace_evidence(result.model, blobs(), result.likelihood, result.prior, rule=Ggn())
    assert result.log_evidence == pytest.approx(float(again.total.detach()), rel=1e-4)


def test_only_the_evidence_of_the_final_rule_is_found_at_the_end(monkeypatch):
    """That of the other rule would cost a decomposition of all factors, and nobody would see it."""
    asked, rightly = [], by_curvature.evidence_at

    def noted(curvature, *rest):
        asked.append(curvature.estimator)
        return rightly(curvature, *rest)

    monkeypatch.setattr(by_curvature, "evidence_at", noted)
    result = sb.fit(network(), blobs(), objective=sb.Map(sb.Kfac(), Ggn()), **QUICK)
    assert asked == [result.evidence.estimator] == ["exact GGN (full)"]


def test_training_is_a_generator_of_records():
    model = network()
    inputs, targets = blobs()
    problem = Problem(model, as_source((inputs, targets), torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    records = train(problem, sb.Laplace(hyper_every=1), sb.Schedule(3), generator=torch.Generator().manual_seed(0))
    first = next(records)
    assert isinstance(first, Record)
    assert (first.epoch, first.epochs) == (1, 3)
    assert [record.epoch for record in records] == [2, 3]


def test_regression_learns_its_noise():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(300, 1, generator=generator) * 4 - 2
    targets = torch.sin(2 * inputs) + 0.2 * torch.randn(300, 1, generator=generator)
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 30), nn.Tanh(), nn.Linear(30, 1))
    objective = sb.Laplace(sb.Kfac(), hyper_every=2)
    result = sb.fit(
        model,
        (inputs, targets),
        likelihood=sb.Gaussian(),
        objective=objective,
        schedule=sb.Schedule(150, 50, 0.02),
        progress=False,
    )
    assert result.evidence.noise[0] == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("keep_best", [True, False])
@pytest.mark.parametrize("rule", [sb.Kfac(), Ggn(), Lanczos(2, 20)], ids=str)
def test_the_evidence_of_a_learned_noise_is_that_of_the_noise_kept(rule, keep_best):
    inputs = blobs()[0]
    objective = sb.Laplace(rule, damping=1.0, hyper_every=3, keep_best=keep_best)
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    result = sb.fit(model, (inputs, inputs[:, :1] * 3), likelihood=sb.Gaussian(), objective=objective, **QUICK)
    again = sb.laplace_evidence(
        result.model,
        (inputs, inputs[:, :1] * 3),
        result.likelihood,
        result.prior,
        rule=Ggn() if "Lanczos" in str(rule) else rule,
    )
    tolerance = 0.2 if "Lanczos" in str(rule) else 1e-3
    assert result.log_evidence == pytest.approx(float(again.total.detach()), rel=tolerance)
    assert result.evidence.noise == pytest.approx(result.likelihood.noise().tolist())


def test_a_loader_over_a_part_of_the_data_is_of_that_size():
    inputs, targets = blobs()
    part = DataLoader(TensorDataset(inputs, targets), 20, sampler=SubsetRandomSampler(range(30)))
    result = sb.fit(network(), part, **QUICK)
    assert result.num_data == 30
    assert result.evaluate(part) == pytest.approx(result.evaluate((inputs[:30], targets[:30])))


def test_integer_labels_of_any_width_are_taken():
    inputs, targets = blobs()
    assert sb.fit(network(), (inputs, targets.int()), **QUICK).log_evidence == sb.fit(network(), blobs(), **QUICK).log_evidence


def _numbers(posterior):
    """All tensors of a posterior: its mean and those of its parts."""
    parts = [[getattr(spread, field.name) for field in fields(spread)] for _, spread in posterior.parts]
    tensors = [value for part in parts for value in part if isinstance(value, torch.Tensor)]
    return [posterior.mean[name] for name in sorted(posterior.mean)], sorted(tensors, key=lambda one: (one.shape, one.sum()))


def test_a_result_survives_saving(tmp_path):
    task = sb.load("placed-digits")
    part = (task.train[0][:60], task.train[1][:60])
    result = sb.fit(sb.allconv(task, width=1), part, epochs=2, progress=False)
    result.save(tmp_path / "run")
    again = sb.load_result(tmp_path / "run")
    assert again.log_evidence == result.log_evidence
    assert again.symmetries == result.symmetries
    assert again.history == result.history
    assert_close(again.model(part[0]), result.model(part[0]))
    assert again.posterior.temperature == result.posterior.temperature
    assert again.posterior.mean.keys() == result.posterior.mean.keys()
    assert_close(_numbers(again.posterior), _numbers(result.posterior), rtol=0, atol=0)
    assert again.evaluate(part) == pytest.approx(result.evaluate(part))  # factors lie in another order of memory
    assert_close(again.predict(part[0]).mean, result.predict(part[0]).mean)
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "weights.safetensors", "posterior.safetensors", "result.json", "history.jsonl", "seal.json",
    }  # fmt: skip


def test_a_result_measures_what_its_layers_keep(tmp_path):
    task = sb.load("placed-digits")
    part = (task.train[0][:60], task.train[1][:60])
    result = sb.fit(sb.allconv(task, width=1), part, epochs=1, progress=False)
    blocks = [row for row in result.symmetries.rows if row.layer.startswith("block")]
    assert all((row.error is not None) == (row.path == "conv") for row in blocks)
    assert sum(row.energy for row in blocks) == pytest.approx(8)
    found = sb.equivariance(result.model, part[0], sb.groups.Translation()).row("block2")
    assert blocks[3].error == pytest.approx(found.error.value, abs=6 * found.error.standard_error)
    assert all("equivariance error" in sentence for sentence in result.symmetries.words())
    few = replace(result, examples=result.examples[:4])
    assert all(row.error is row.energy is None for row in few.symmetries.rows)
    # As earlier versions saved it.
    few.save(tmp_path)
    summary = json.loads((tmp_path / "result.json").read_text())
    for row in summary["symmetries"]:
        del row["error"], row["energy"]
    (tmp_path / "result.json").write_text(json.dumps(summary))
    reseal(tmp_path)
    again = sb.load_result(tmp_path)
    assert all(cells[3:5] == ("–", "–") for cells in again.symmetries.table()[1])
    assert all("equivariance" not in sentence for sentence in again.symmetries.words())
    assert "–" in make_page(tmp_path)


def test_lengthscales_are_learned_alone_and_survive_saving(tmp_path):
    task = sb.load("placed-digits")
    part = (task.train[0][:20], task.train[1][:20])
    model = sb.allconv(task, ("sparse", "sparse_conv"), 1, filter_anchors=0.8, learn_lengthscales=True)
    prior = sb.TensorwisePrior(model, 2.0, learn=["*omega"])
    result = sb.fit(model, part, prior=prior, objective=sb.Laplace(), epochs=2, progress=False)
    for name, precision in result.evidence.precision.items():
        assert (precision == pytest.approx(2.0)) == (not name.endswith("omega"))
    assert result.evidence.effective["block1.paths.sparse.gather.basis.omega"] > 0
    result.save(tmp_path)
    again = sb.load_result(tmp_path)
    assert_close(again.model(part[0]), result.model(part[0]))
    assert again.prior.learn == ("*omega",)
    assert_close(again.prior.learned, prior.learned)


class Wrapped(nn.Sequential):
    """A network that is known by its class alone."""


def test_a_user_s_model_is_loaded_into_one_of_the_same_structure(tmp_path):
    likelihood = sb.Gaussian(0.5, 3)
    targets = torch.eye(3)[blobs()[1]]
    result = sb.fit(Wrapped(network()), (blobs()[0], targets), likelihood=likelihood, **QUICK)
    result.save(tmp_path)
    with pytest.raises(ValueError, match=r"was not made by sb.allconv.*sb.load_result\(folder, model=...\)"):
        sb.load_result(tmp_path)
    with pytest.raises(ValueError, match="The model does not fit what is saved"):
        sb.load_result(tmp_path, model=nn.Linear(2, 3))
    again = sb.load_result(tmp_path, model=Wrapped(network(seed=9)))
    assert_close(again.model(blobs()[0]), result.model(blobs()[0]))
    assert_close(again.likelihood.noise(), result.likelihood.noise())


def test_damaged_results_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold result\.json"):
        sb.load_result(tmp_path)
    result = sb.fit(network(), blobs(), **QUICK)
    result.save(tmp_path)
    weights = tmp_path / "weights.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"is damaged .* Copy it again"):
        sb.load_result(tmp_path, model=network())
    weights.write_bytes(whole)
    (tmp_path / "history.jsonl").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        sb.load_result(tmp_path, model=network())
    result.save(tmp_path)
    summary = json.loads((tmp_path / "result.json").read_text()) | {"format": 99}
    (tmp_path / "result.json").write_text(json.dumps(summary))
    reseal(tmp_path)
    with pytest.raises(ValueError, match="has format 99; this version reads formats 1 and 2"):
        sb.load_result(tmp_path, model=network())


def test_estimators_can_be_compared_on_request():
    result = sb.fit(network(), blobs(), **QUICK)
    found = result.compare_estimators(blobs(), {"KFAC": sb.Kfac(), "full": Ggn(), "by products": Lanczos(20, 40)})
    assert found["KFAC"] < found["full"]
    assert found["by products"] == pytest.approx(found["full"], rel=0.1)


NAN = torch.full((60, 2), float("nan"))
REFUSED = [
    (
        (blobs()[0], blobs()[1] + 5),
        sb.Categorical(),
        ValueError,
        r"must lie in 0 … 2, because the model has outputs for 3 classes; got 5 … 7",
    ),
    ((blobs()[0], blobs()[1].float()), sb.Categorical(), ValueError, "must be class numbers, an integer tensor"),
    (blobs(), sb.Bernoulli(), ValueError, "must be zeros and ones, or probabilities, of shape"),
    ((blobs()[0], torch.zeros(60, 2)), sb.Gaussian(), ValueError, "must be real numbers of shape"),
    ((blobs()[0], NAN[:, :1].expand(60, 3)), sb.Gaussian(), ValueError, "targets must be finite, got 180"),
    ((blobs()[0], torch.zeros(60, 3)), sb.Gaussian(outputs=2), ValueError, "a noise for each of 2 outputs; the model has 3"),
    ((NAN, blobs()[1]), sb.Categorical(), sb.NotFiniteError, "Inputs must be finite, got NaN or infinity in 60 of 60"),
    ((blobs()[0][:0], blobs()[1][:0]), sb.Categorical(), ValueError, "The data set is empty"),
]


@pytest.mark.parametrize(("scale", "shift"), [(1e3, 0.0), (1e-3, 0.0), (1.0, 100.0), (1.0, -100.0)])
@pytest.mark.parametrize("likelihood", [sb.Gaussian, sb.Heteroscedastic])
def test_targets_of_another_scale_than_outputs_are_said_aloud(likelihood, scale, shift):
    inputs, _ = blobs()
    targets = torch.cat([inputs[:, :1], scale * inputs[:, 1:] + shift], 1)
    model = nn.Linear(2, 4 if likelihood is sb.Heteroscedastic else 2)
    settings = {"likelihood": likelihood(), "objective": sb.Map(), "epochs": 1, "progress": False}
    with pytest.warns(UserWarning, match=r"of about mean 0 and standard deviation 1; output 1 has .*Standardise targets"):
        sb.fit(model, (inputs, targets), **settings)
    sb.fit(model, (inputs, inputs), **settings)  # a warning would be an error


def test_the_scale_of_targets_is_that_of_all_of_them():
    inputs = torch.linspace(-1.7, 1.7, 1000)[:, None]  # in order: those of a batch differ little
    sb.fit(nn.Linear(1, 1), (inputs, inputs), likelihood=sb.Gaussian(), objective=sb.Map(), epochs=1, progress=False)


def test_a_network_that_begins_at_the_mean_of_its_targets_is_not_warned_of():
    inputs, _ = blobs()
    model = nn.Linear(2, 1)
    nn.init.constant_(model.bias, 100.0)
    sb.fit(model, (inputs, inputs[:, :1] + 100), likelihood=sb.Gaussian(), objective=sb.Map(), epochs=1, progress=False)


@pytest.mark.parametrize(("data", "likelihood", "kind", "message"), REFUSED, ids=[case[3] for case in REFUSED])
def test_data_that_cannot_be_learned_from_are_refused_before_training(data, likelihood, kind, message):
    with pytest.raises(kind, match=message):
        sb.fit(network(), data, likelihood=likelihood, schedule=sb.Schedule(12, 128), progress=False)


def test_models_that_cannot_be_trained_are_refused_before_training():
    with pytest.raises(ValueError, match="no trainable parameter"):
        sb.fit(nn.Flatten(), blobs(), **QUICK)
    with pytest.raises(ValueError, match=r"must give outputs \[n, c\], a row for each of the 4 inputs; got shape \(4, 3, 5\)"):
        sb.fit(nn.Conv1d(2, 3, 1), (torch.zeros(4, 2, 5), torch.zeros(4).long()), **QUICK)


def test_priors_and_types_that_do_not_fit_are_refused_before_training():
    model = network()
    prior = sb.TensorwisePrior(model)
    for layer in (model[0], model[2]):
        layer.bias.requires_grad_(False)
    with pytest.raises(ValueError, match=r"same trainable tensors; unmatched=\['0.bias', '2.bias'\]"):
        sb.fit(model, blobs(), prior=prior, **QUICK)
    with pytest.raises(ValueError, match=r"must be of one type, got torch.float64 and torch.float32. Convert one"):
        sb.fit(network(), TensorSource(blobs()[0].double(), blobs()[1], torch.device("cpu")), **QUICK)


def test_a_sampler_that_draws_another_number_than_it_says_is_refused():
    class Short(DataLoader):
        def __iter__(self):
            return iter(list(super().__iter__())[:-1])

    with pytest.raises(ValueError, match="must give each of the 60 data once; got 40"):
        sb.fit(network(), Short(TensorDataset(*blobs()), 20), **QUICK)


def test_kinds_that_could_not_be_loaded_are_not_saved(tmp_path):
    class Own(sb.ScalarPrior):
        pass

    model = network()
    with pytest.raises(ValueError, match=r"among ScalarPrior, .* got Own"):
        sb.fit(model, blobs(), prior=Own(model), **QUICK).save(tmp_path)


def test_a_loss_that_stops_being_a_number_is_said():
    class Diverging(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = network(), 0

        def forward(self, inputs):
            self.calls += self.training
            return self.inner(inputs) * (float("nan") if self.calls > 3 else 1)

    with pytest.raises(sb.NotFiniteError, match="The loss must be finite, got nan per datum with a learning rate of"):
        sb.fit(Diverging(), blobs(), **QUICK)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: sb.Laplace(burn_in=1.0), "burn_in and cool_down must be shares of the epochs"),
        (lambda: sb.Laplace(damping=0.0), "damping must lie above 0"),
        (lambda: sb.Laplace(hyper_every=0), "hyper_steps and extent_steps must be at least 1"),
        (lambda: sb.Schedule(epochs=0), "epochs and batch_size must be at least 1"),
        (lambda: sb.Gaussian(0.0), "noise must be positive, got 0.0"),
        (lambda: MonteCarloFisher(0), "samples must be at least 1, got 0"),
        (lambda: Lanczos(0), "at least one probe and one step, got 0 and 60"),
        (lambda: TangentKernel(0), "at least one subset of at least one datum, got 1 of 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
