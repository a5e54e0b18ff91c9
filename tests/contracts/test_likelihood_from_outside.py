"""A likelihood that is defined and registered outside the package goes the whole way: nothing else has to know of it."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.likelihoods.likelihood import register, registered
from symbayes.posterior.predict import calibration, of_draws
from symbayes.report.runs import make_page
from symbayes.scores import LEVELS, score_intervals
from tests import small


@register
class Counts(small.Arrivals):
    """y ~ Poisson(exp f), with intervals of the exact distribution at the mean."""

    def interval(self, mean, std, level):
        counts = torch.arange(int(mean.max() + 12 * std.max() + 12), dtype=mean.dtype)
        shares = torch.distributions.Poisson(mean[..., None]).log_prob(counts).exp().cumsum(-1)
        low, high = ((shares < end).sum(-1).to(mean) for end in ((1 - level) / 2, (1 + level) / 2))
        return low, high

    def calibrate(self, mean, std, targets, bins):
        return score_intervals(lambda level: self.interval(mean, std, level), mean, targets)


@register
class Spread(sb.Likelihood):
    """A Laplace density with a learned scale b: a noise that is not Gaussian, with statistics of its own."""

    def __init__(self, scale=1.0):
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor([float(scale)]).log())

    @property
    def learns_noise(self):
        return self.log_scale.requires_grad

    def noise(self):
        return self.log_scale.exp()

    def scales(self):
        return (-2 * self.log_scale).exp()

    def noise_statistics(self, outputs, targets):
        return (outputs - targets).abs().sum(-2)

    @torch.no_grad()
    def update_noise(self, statistics, effective, num_data, damping):
        target = (statistics.sum() / (num_data * len(statistics))).log()[None]
        self.log_scale.lerp_(target, damping)

    def log_prob(self, outputs, targets):
        return torch.distributions.Laplace(outputs, self.log_scale.exp()).log_prob(targets).sum(1)

    def fisher_columns(self, outputs):
        return torch.eye(outputs.shape[1])[:, None].expand(-1, len(outputs), -1)[None]

    def sampled_columns(self, outputs, samples, *, generator=None):
        return self.fisher_columns(outputs)

    def score(self, outputs, targets):
        return (targets - outputs).sign() / self.noise()

    def sample(self, outputs, *, generator=None):
        return torch.distributions.Laplace(outputs, self.noise()).sample()

    def check(self, outputs, targets):
        assert outputs.shape == targets.shape

    def metrics(self, outputs, targets):
        return {"absolute error": (outputs - targets).abs().mean(1)}

    def moments(self, outputs):
        return outputs, (2 * self.noise().square()).expand_as(outputs)

    def link(self, mean):
        return mean


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1))


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 2, generator=generator)
    return inputs, torch.poisson((inputs.sum(1, keepdim=True) / 2 + 1).exp(), generator=generator)


@pytest.fixture(scope="module", params=[lambda: sb.Laplace(), lambda: sb.Elbo()], ids=["laplace", "elbo"])
def result(request, data):
    return sb.fit(network(), data, likelihood=Counts(), objective=request.param(), epochs=30, progress=False)


def test_it_learns_evaluates_and_predicts(result, data):
    before = -Counts().log_prob(torch.zeros(200, 1), data[1]).mean()
    assert result.evaluate(data)["nll"] < before
    found = result.predict(data[0][:5])
    assert found.mean.shape == (5, 1)
    assert (found.mean > 0).all()
    assert_close(found.std.square() - found.epistemic.square(), found.mean, rtol=1e-4, atol=1e-4)  # that of counts
    low, high = found.interval(0.9)
    assert ((low <= found.mean) & (found.mean <= high)).all()
    with pytest.raises(ValueError, match="Classes are of a Categorical likelihood; this is Counts"):
        found.classes()


def test_it_is_calibrated_as_it_says(result, data):
    found = result.calibration(data, samples=16)
    assert (found.of, found.accuracy) == ("values", None)
    assert [row.level for row in found.rows] == list(LEVELS)
    assert "root mean squared error" in str(found)


def test_its_intervals_hold_at_least_as_often_as_they_say(generator):
    outputs = torch.linspace(-1, 3, 5000)[:, None]
    drawn = Counts().sample(outputs, generator=generator)
    found = calibration(of_draws(outputs[None], Counts(), "by hand"), drawn)
    for row in found.rows:  # of whole numbers an interval holds its level or more
        assert row.coverage > row.level - 4 * (row.level * (1 - row.level) / 5000) ** 0.5


def test_it_is_saved_loaded_and_shown(result, data, tmp_path):
    result.save(tmp_path, result.calibration(data, samples=16))
    again = sb.load_result(tmp_path, model=network())
    assert type(again.likelihood) is Counts
    assert_close(again.predict(data[0]).mean, result.predict(data[0]).mean)
    page = make_page(tmp_path)
    assert "likelihood Counts" in page
    assert '<div id="reliability"' in page
    assert "An interval of a level" in page


@pytest.mark.parametrize("objective", [sb.Laplace(hyper_every=1, damping=1.0), sb.Elbo()], ids=["laplace", "elbo"])
def test_a_noise_that_is_not_gaussian_is_learned_from_its_own_statistics(objective, tmp_path, generator):
    inputs = torch.randn(400, 2, generator=generator)
    noise = torch.distributions.Laplace(0.0, 0.5).icdf(torch.rand(400, 1, generator=generator))
    data, schedule = (inputs, inputs.sum(1, keepdim=True) + noise), sb.Schedule(40, 50, learning_rate=0.03)
    found = sb.fit(nn.Linear(2, 1), data, likelihood=Spread(3.0), objective=objective, schedule=schedule, progress=False)
    assert found.likelihood.noise().item() == pytest.approx(0.5, rel=0.1)
    found.save(tmp_path)
    assert_close(sb.load_result(tmp_path, model=nn.Linear(2, 1)).likelihood.noise(), found.likelihood.noise())
    assert f"Noise σ: {found.evidence.noise[0]:.3g}." in make_page(tmp_path)


def test_what_it_leaves_out_is_refused_by_name(result, data):
    bare = replace(result, likelihood=small.Arrivals())
    with pytest.raises(ValueError, match=r"this is Arrivals. Use prediction.metrics\(targets\)"):
        bare.calibration(data)
    with pytest.raises(ValueError, match=r"Intervals are of values.*this is Arrivals"):
        bare.predict(data[0][:3]).interval()
    learns_no_noise = r"Arrivals learns no noise. Override learns_noise and noise_statistics together, with update_noise"
    with pytest.raises(ValueError, match=learns_no_noise):
        small.Arrivals().noise_statistics(data[1], data[1])
    with pytest.raises(ValueError, match=learns_no_noise):
        small.Arrivals().update_noise(data[1][0], 0.0, 200, 0.5)


class Unfinished(small.Arrivals):
    """It says that it learns a noise, and not how."""

    learns_noise = True


@pytest.mark.parametrize("objective", [sb.Laplace(), sb.Elbo()], ids=["laplace", "elbo"])
def test_a_noise_that_nothing_moves_is_refused_before_training(objective, data):
    with pytest.raises(ValueError, match=r"Unfinished has no noise_statistics and no update_noise. Write them, or learn it by"):
        sb.fit(network(), data, likelihood=Unfinished(), objective=objective, epochs=2, progress=False)


def test_a_likelihood_that_is_not_registered_is_not_saved(result, tmp_path):
    with pytest.raises(ValueError, match=r"can be found by its name; Arrivals cannot. Decorate the class with .*register"):
        replace(result, likelihood=small.Arrivals()).save(tmp_path)
    with pytest.raises(ValueError, match=r"must be among Categorical, Bernoulli, Ordinal, .*; got Arrivals. Import the module"):
        registered("Arrivals")


def test_a_name_is_registered_once():
    assert register(Counts) is Counts
    with pytest.raises(ValueError, match=r"Categorical is that of symbayes.likelihoods.classes.Categorical. Rename"):
        register(type("Categorical", (small.Arrivals,), {}))
    assert registered("Categorical") is sb.Categorical
