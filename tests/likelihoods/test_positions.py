"""A likelihood at every position: equal to that of positions as data, and its curvature to that of the exact GGN."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, jacrev
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import ExactFisher, Ggn, Kfac, TangentKernel
from symbayes.curvature.ggn import products_of
from symbayes.data.source import as_source
from symbayes.posterior.predict import calibration, of_draws

CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(0)
#: Three data at four positions, with three outputs at each.
OUTPUTS = torch.randn(3, 12, generator=GENERATOR, dtype=torch.float64)
CLASSES = torch.tensor([[[0, 1], [2, -1]], [[-1, -1], [1, 1]], [[2, 2], [0, 1]]])
VALUES = torch.randn(3, 2, 2, 3, generator=GENERATOR, dtype=torch.float64)
CASES = {
    "classes": (sb.PerPosition(sb.Categorical(), 3), CLASSES.abs()),
    "some classes": (sb.PerPosition(sb.Categorical(), 3, ignore=-1), CLASSES),
    "labels": (sb.PerPosition(sb.Bernoulli(), 3), (VALUES > 0).double()),
    "some labels": (
        sb.PerPosition(sb.Bernoulli(), 3, ignore=-1),
        torch.where(VALUES[..., :1] > 1, -1.0, (VALUES > 0).double()),
    ),
    "counts": (sb.PerPosition(sb.Poisson(), 3), VALUES.abs().round()),
    "scattered counts": (sb.PerPosition(sb.NegativeBinomial(0.5), 3), VALUES.abs().round()),
    "some ordered classes": (sb.PerPosition(sb.Ordinal(), 3, ignore=-1), torch.where(CLASSES == 2, 3, CLASSES)),
    "smoothed classes": (sb.PerPosition(sb.Categorical(), 3), VALUES.softmax(-1)),
}


@pytest.fixture(params=CASES, ids=str)
def case(request):
    return CASES[request.param]


def apart(likelihood, targets):
    """Outputs and targets of all positions that have one, as data, and the datum of each."""
    flat = targets.flatten(0, 2)
    seen = (flat.reshape(12, -1) != -1).all(1) if likelihood.ignore == -1 else torch.ones(12, dtype=torch.bool)
    return OUTPUTS.reshape(12, 3)[seen], flat[seen], torch.arange(3).repeat_interleave(4)[seen]


def test_log_probabilities_and_metrics_are_those_of_positions_as_data(case):
    likelihood, targets = case
    outputs, wanted, datum = apart(likelihood, targets)
    each = likelihood.of.log_prob(outputs, wanted)
    assert_close(likelihood.log_prob(OUTPUTS, targets), torch.zeros(3).to(each).index_add(0, datum, each))
    for name, found in likelihood.metrics(OUTPUTS, targets).items():
        of_each = likelihood.of.metrics(outputs, wanted)[name]
        assert_close(found.mean(), of_each.mean())
        assert_close(found, torch.zeros(3).to(found).index_add(0, datum, of_each) * 3 / len(of_each))


def test_it_is_made_again_from_its_settings(case):
    likelihood, targets = case
    again = sb.PerPosition(**likelihood.settings())
    assert_close(again.log_prob(OUTPUTS, targets), likelihood.log_prob(OUTPUTS, targets))


@pytest.mark.parametrize(
    ("of", "outputs", "targets"),
    [(sb.Ordinal(), 3, CLASSES.abs()), (sb.Heteroscedastic(), 2, VALUES.flatten(1)[:, :6])],
    ids=["fewer outputs than classes", "more outputs than values"],
)
def test_predictions_at_positions_have_as_many_values_as_targets(of, outputs, targets):
    apart, flat = of_draws(OUTPUTS.reshape(1, -1, outputs), of, ""), targets.reshape(-1, *((1,) if outputs == 2 else ()))
    found = of_draws(OUTPUTS[None], sb.PerPosition(of, outputs), "")
    assert_close(found.mean.flatten(), apart.mean.flatten())
    assert_close(found.metrics(targets)["nll"].sum(), apart.metrics(flat)["nll"].sum())
    assert calibration(found, targets).rows == calibration(apart, flat).rows
    if of.has_classes:
        assert_close(found.classes().flatten(), apart.classes())
    else:
        assert_close(found.interval()[0].flatten(), apart.interval()[0].flatten())


def test_a_likelihood_with_a_noise_is_used_by_itself():
    with pytest.raises(ValueError, match=r"Gaussian has\. Flatten outputs and targets"):
        sb.PerPosition(sb.Gaussian(), 2)


def test_what_is_ignored_is_no_number_of_another_type():
    likelihood = sb.PerPosition(sb.Categorical(), 300, ignore=-1)
    outputs, targets = torch.randn(1, 1200, generator=GENERATOR), torch.tensor([[255, 1, 2, 3]], dtype=torch.uint8)
    assert_close(likelihood.log_prob(outputs, targets), likelihood.log_prob(outputs, targets.long()))


def test_a_batch_without_any_target_counts_for_nothing():
    likelihood = sb.PerPosition(sb.Categorical(), 3, ignore=-1)
    none = torch.full_like(CLASSES, -1)
    likelihood.check(OUTPUTS, none)
    assert_close(likelihood.log_prob(OUTPUTS, none), torch.zeros(3, dtype=torch.float64))
    assert not likelihood.at(none).fisher_columns(OUTPUTS).any()


def test_inputs_are_not_moved_away_from_their_targets():
    images = torch.zeros(8, 1, 4, 4)
    with pytest.raises(ValueError, match="augment moves inputs alone"):
        sb.fit(
            sb.AtPositions(UNet()), (images, images[:, 0].long()), likelihood=sb.PerPosition(sb.Categorical(), 3),
            augment=sb.FlipCrop(), epochs=1, progress=False,
        )  # fmt: skip


class Mine(sb.Categorical):
    """That is not registered."""


def test_a_likelihood_of_one_that_cannot_be_built_again_is_not_saved():
    with pytest.raises(ValueError, match="Mine is not registered"):
        sb.PerPosition(Mine(), 3).settings()


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (CLASSES[:2], "a target for each of the 3 data, got 2"),
        (CLASSES[:, :1], r"with 4 positions as the outputs have, and channels last; got \(3, 1, 2\)"),
        (CLASSES + 1, "must lie in 0 … 2"),
        (VALUES.movedim(-1, 1), r"Targets must be \[n, \*positions, 3\].*and channels last; got \(3, 3, 2, 2\)"),
    ],
)
def test_targets_that_cannot_be_are_refused(targets, message):
    with pytest.raises(ValueError, match=message):
        sb.PerPosition(sb.Categorical(), 3, ignore=-1).check(OUTPUTS, targets)


def test_outputs_that_are_not_at_positions_are_refused():
    with pytest.raises(ValueError, match=r"must be 5 at each position, \[n, positions · 5\]; got \(3, 12\)"):
        sb.PerPosition(sb.Categorical(), 5).check(OUTPUTS, CLASSES)
    with pytest.raises(ValueError, match=r"must give \[n, c, \*grid\]"):
        sb.AtPositions(nn.Linear(2, 3))(torch.zeros(1, 2))
    huge = torch.zeros(64, 4096 * 10)
    with pytest.raises(ValueError, match="Sample them"):
        sb.PerPosition(sb.Categorical(), 10).fisher_columns(huge)


class UNet(nn.Module):
    """With one way down and up, and a skip."""

    def __init__(self, c=2, classes=3):
        super().__init__()
        self.first, self.down = nn.Conv2d(1, c, 3, padding=1), nn.Conv2d(c, c, 3, stride=2, padding=1)
        self.up, self.last = nn.Upsample(scale_factor=2), nn.Conv2d(2 * c, classes, 1)

    def forward(self, inputs):
        fine = torch.tanh(self.first(inputs))
        return self.last(torch.cat([fine, self.up(torch.tanh(self.down(fine)))], 1))


class Tokens(nn.Module):
    """A class for every token."""

    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, inputs):
        features = self.embed(inputs)
        return self.head(torch.tanh(self.hidden(features) + features.mean(1, keepdim=True)))


def a_network(kind, generator):
    torch.manual_seed(0)
    if kind == "pixels":
        model, inputs = sb.AtPositions(UNet()).double(), torch.randn(4, 1, 4, 4, generator=generator, dtype=torch.float64)
        targets = torch.randint(-1, 3, (4, 4, 4), generator=generator)
    else:
        model, inputs = sb.AtPositions(Tokens(), channels_last=True).double(), torch.randint(0, 7, (4, 5), generator=generator)
        targets = torch.randint(-1, 3, (4, 5), generator=generator)
    return model, inputs, targets


def exact_ggn(model, inputs, targets):
    """Σ over positions that have a target, one by one, by Jacobians of the whole model."""
    named = dict(model.named_parameters())
    jacobians = jacrev(lambda weights: functional_call(model, weights, (inputs,)))(named)
    J = torch.cat([jacobians[name].flatten(2) for name in named], 2).unflatten(1, (-1, 3))  # [n, position, class, p]
    probabilities = model(inputs).unflatten(1, (-1, 3)).softmax(2)
    L = torch.diag_embed(probabilities) - probabilities[..., :, None] * probabilities[..., None, :]
    return torch.einsum("nscp,nscd,nsdq,ns->pq", J, L, J, (targets.flatten(1) != -1).double()).detach()


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
@pytest.mark.parametrize("rule", [Ggn(batch_size=3), TangentKernel(4, None)], ids=str)
def test_the_log_determinant_is_that_of_the_exact_ggn(kind, rule, generator):
    model, inputs, targets = a_network(kind, generator)
    H = exact_ggn(model, inputs, targets)
    prior = sb.ScalarPrior(model)
    data, likelihood = as_source((inputs, targets), CPU), sb.PerPosition(sb.Categorical(), 3, ignore=-1)
    found = rule.curvature(model, data, likelihood, generator=generator)
    wanted = torch.logdet(H + torch.eye(len(H), dtype=H.dtype))
    log_det = found.log_det({name: value.detach() for name, value in prior.precisions().items()})
    assert float(log_det) == pytest.approx(float(wanted), rel=1e-8)


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
def test_products_are_those_of_the_exact_ggn(kind, generator):
    model, inputs, targets = a_network(kind, generator)
    H = exact_ggn(model, inputs, targets)
    data, likelihood = as_source((inputs, targets), CPU), sb.PerPosition(sb.Categorical(), 3, ignore=-1)
    vector = torch.randn(len(H), generator=generator, dtype=H.dtype)
    assert_close(products_of(model, data, likelihood, 3).product(vector), H @ vector, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kind", ["pixels", "tokens"])
def test_kronecker_factors_see_what_was_observed_alone(kind, generator):
    """Of the last layer, whose gradients are those of outputs: its factor is the exact sum over positions."""
    model, inputs, targets = a_network(kind, generator)
    data, likelihood = as_source((inputs, targets), CPU), sb.PerPosition(sb.Categorical(), 3, ignore=-1)
    name = "network.last.bias" if kind == "pixels" else "network.head.bias"
    names = [name for name, _ in model.named_parameters()]
    sizes = [parameter.numel() for parameter in model.parameters()]
    start = sum(sizes[: names.index(name)])
    wanted = exact_ggn(model, inputs, targets)[start : start + 3, start : start + 3]
    found = Kfac(ExactFisher()).curvature(model, data, likelihood).blocks[name]
    vectors = torch.eye(3, dtype=wanted.dtype)
    turned = torch.stack([found.turn(vector) for vector in vectors], 1)
    assert_close(turned.T @ torch.diag(found.eigenvalues.flatten()) @ turned, wanted, rtol=1e-8, atol=1e-10)


def test_a_network_for_pixels_is_learned_predicts_and_is_saved(tmp_path, generator):
    images = torch.randn(100, 1, 4, 4, generator=generator)
    targets = (images[:, 0] > 0).long() + (images[:, 0] > 1)
    targets[:, 0, 0] = -1
    torch.manual_seed(0)
    likelihood = sb.PerPosition(sb.Categorical(), 3, ignore=-1)
    result = sb.fit(sb.AtPositions(UNet(4)), (images, targets), likelihood=likelihood, epochs=30, progress=False)
    assert result.evaluate((images, targets))["accuracy"] > 0.8
    said = result.predict(images[:5])
    assert said.mean.shape == (5, 48)
    assert likelihood.classes(said.mean).shape == (5, 16)
    assert result.calibration((images, targets)) is not None
    result.save(tmp_path / "run")
    again = sb.load_result(tmp_path / "run", sb.AtPositions(UNet(4)))
    assert again.evaluate((images, targets))["nll"] == pytest.approx(result.evaluate((images, targets))["nll"], rel=1e-4)
