"""Nothing in silence: what modules do beside what their class says has the right curvature, or is refused by name."""

from math import isfinite

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import Diagonal, Ekfac, Ggn, Lanczos, Preconditioned, Subsets, TangentKernel
from symbayes.curvature.capture import _scales
from symbayes.curvature.check import COUNT, _same_outputs
from symbayes.curvature.ggn import products_of
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import evidence_at
from tests.curvature.networks import Do, Standardised, jacobian

N, CLASSES = 6, 3
#: Rules that give the full log-determinant, and one that gives the diagonal.
FULL = {"ggn": Ggn(), "kernel": TangentKernel(N)}


def data(*shape, count=N):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64), torch.arange(count) % CLASSES


def tokens(high=5, length=3):
    return torch.randint(0, high, (N, length), generator=torch.Generator().manual_seed(0)), torch.arange(N) % CLASSES


def evidence(model, pair, rule):
    generator = torch.Generator().manual_seed(0)
    prior = sb.TensorwisePrior(model)
    with torch.no_grad():
        return float(sb.laplace_evidence(model, pair, sb.Categorical(), prior, rule=rule, generator=generator).total)


def exact(model, pair):
    """The log evidence by Jacobians: with the full curvature, and with its diagonal; all precisions 1."""
    inputs, targets = pair
    outputs, J, names = jacobian(model, inputs)
    p = outputs.softmax(1)
    H = torch.einsum("nap,nab,nbq->pq", J, torch.diag_embed(p) - p[:, :, None] * p[:, None], J)
    fit = outputs.log_softmax(1).gather(1, targets[:, None]).sum()
    squares = sum(model.get_parameter(name).detach().square().sum() for name in names)
    # Of log p(W) and the volume, the terms in log 2π cancel.
    full = fit - squares / 2 - torch.logdet(torch.eye(len(H), dtype=H.dtype) + H) / 2
    return float(full), float(fit - squares / 2 - H.diagonal().log1p().sum() / 2)


class CircularConv(nn.Conv2d):
    def __init__(self):
        super().__init__(2, 3, 3, padding=1, padding_mode="circular")

    def forward(self, x):
        return super().forward(2 * x)


class Halved(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        outputs, weights = super().forward(*args, **kwargs)
        return outputs / 2, weights


class ChannelsLast(nn.LayerNorm):
    """As torchvision's LayerNorm2d."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def images(*layers):
    return nn.Sequential(*layers, nn.Tanh(), nn.Flatten(), nn.LazyLinear(CLASSES))


SUBCLASSES = {
    "conv": (lambda: images(Standardised(2, 3, 3)), (2, 4, 4)),
    "circular conv": (lambda: images(CircularConv()), (2, 4, 4)),
    "layer norm": (lambda: images(nn.Conv2d(2, 3, 3), ChannelsLast(3)), (2, 4, 4)),
    "attention": (lambda: Do(lambda s, x: s.parts[1](s.parts[0](x, x, x)[0].mean(1)), [Halved(4, 2, batch_first=True),
                                                                                      nn.Linear(4, CLASSES)]), (3, 4)),
    "weight norm": (lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(),
                                          nn.Linear(4, CLASSES)), (4,)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_subclass_has_the_evidence_of_its_own_forward_pass(name):
    make, shape = SUBCLASSES[name]
    pair = data(*shape)
    model = make().double()
    model(pair[0])
    full, diagonal = exact(model, pair)
    assert_close(evidence(model, pair, Diagonal()), diagonal, rtol=1e-10, atol=0)
    for rule in FULL.values():
        assert_close(evidence(model, pair, rule), full, rtol=1e-10, atol=0)


def test_a_subclass_predicts_as_it_computes():
    class Doubled(nn.InstanceNorm2d):
        def forward(self, x):
            return 2 * super().forward(x) + 1

    pair = data(2, 4, 4)
    model = images(nn.Conv2d(2, 3, 3), Doubled(3, affine=True)).double()
    model(pair[0])
    result = sb.fit(model, pair, epochs=1, progress=False)
    with torch.no_grad():
        assert_close(result.predict(pair[0], by="plug-in").mean, model(pair[0]).softmax(1))


def test_weights_used_outside_their_module_are_refused_from_rows_and_right_from_jacobians():
    """The usual tying of a language model."""
    model = Do(
        lambda s, t: functional.linear(s.parts[1](s.parts[0](t)).tanh().mean(1), s.parts[0].weight)[:, :CLASSES],
        [nn.Embedding(5, 4), nn.Linear(4, 4)],
    ).double()
    pair = tokens()
    for rule in (Diagonal(), sb.Kfac(), Ekfac()):
        with pytest.raises(RuntimeError, match=r"Parameter 'parts.0.weight' is used in another way than as its module says"):
            evidence(model, pair, rule)
    with pytest.raises(RuntimeError, match=r"'parts.0.weight' is used in another way"):
        sb.fit(model, pair, epochs=1, progress=False)
    full, _ = exact(model, pair)
    for rule in FULL.values():
        assert_close(evidence(model, pair, rule), full, rtol=1e-10, atol=0)


def test_a_weight_that_a_model_keeps_elsewhere_is_refused():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, CLASSES)
            self.kept = (self.inner.weight,)

        def forward(self, x):
            return self.inner(x) + functional.linear(x.tanh(), self.kept[0])

    pair, model = data(4), Kept().double()
    for rule in (Diagonal(), Ggn(), TangentKernel(N), Lanczos()):
        with pytest.raises(RuntimeError, match=r"Parameter 'inner\.weight'"):
            evidence(model, pair, rule)
    with pytest.raises(RuntimeError, match=r"Parameter 'inner.weight' must be read from its module"):
        sb.fit(model, pair, objective=sb.Elbo(), epochs=1, progress=False)


HOOKS = {
    "forward": lambda layer: layer.register_forward_hook(lambda module, inputs, outputs: 3 * outputs),
    "forward pre": lambda layer: layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,)),
}


def with_hook(kind, place=0):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, CLASSES)).double()
    HOOKS[kind](model[place])
    return model


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_of_a_user_are_part_of_the_model(kind):
    model, pair = with_hook(kind), data(4)
    full, diagonal = exact(model, pair)
    assert_close(evidence(model, pair, Diagonal()), diagonal, rtol=1e-10, atol=0)
    for rule in FULL.values():
        assert_close(evidence(model, pair, rule), full, rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", HOOKS)
def test_noise_behind_a_map_is_drawn_before_the_hooks_of_a_user(kind):
    """By many draws, the bound is the same with weights drawn and with noise behind maps."""
    model, (inputs, targets) = with_hook(kind, 2), data(4)
    objectives = [sb.Elbo(sb.MeanField(std=0.5), samples=20_000, draws="random", local=local) for local in (False, True)]
    variational = objectives[0].family.over(model)
    found = []
    for objective in objectives:
        seed, prior = torch.Generator().manual_seed(0), sb.TensorwisePrior(model)
        with torch.no_grad():
            bound = objective.evidence(model, variational, (inputs, targets), sb.Categorical(), prior, generator=seed)
        found.append(float(bound.total))
    assert len(variational.local(inputs)) == 2
    assert_close(found[1], found[0], rtol=0.005, atol=0)


def test_noise_behind_a_map_is_not_drawn_for_a_bias_that_layers_share():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.bias = first.bias
    model, (inputs, _) = nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(4, CLASSES)).double(), data(4)
    variational = sb.MatrixNormal().over(model)
    shown = [list(variational.members[index][0].shapes) for index in variational.local(inputs)]
    assert shown == [["0.weight"], ["2.weight"], ["4.weight", "4.bias"]]


@pytest.mark.parametrize("count", [CLASSES, N])
@pytest.mark.parametrize("layer", [nn.PReLU(), nn.PReLU(4)], ids=["one slope", "by channel"])
def test_jacobians_are_right_where_the_rules_of_torch_for_batches_are_not(layer, count):
    pair = data(4, count=count)
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, CLASSES)).double()
    full, _ = exact(model, pair)
    for rule in FULL.values():
        assert_close(evidence(model, pair, rule), full, rtol=1e-10, atol=0)
    result = sb.fit(model, pair, objective=sb.Map(Ggn()), epochs=1, progress=False)
    found = result.predict(pair[0], samples=4096).outputs.values.var(0)
    _, J, names = jacobian(model, pair[0])
    H = result.posterior.parts[0][1].lower
    wanted = result.posterior.temperature * torch.einsum("ncp,pq,ncq->nc", J, H @ H.T, J)
    assert list(result.posterior.parts[0][0].shapes) == names
    assert_close(found, wanted, rtol=0.02, atol=0)


def test_distances_are_differentiated_one_after_the_other():
    pair = data(4)
    model = Do(lambda s, x: torch.cdist(x[:, None], s.centres[None])[:, 0], centres=torch.randn(CLASSES, 4)).double()
    full, _ = exact(model, pair)
    assert_close(evidence(model, pair, Ggn()), full, rtol=1e-10, atol=0)


def by_every_direction(rule, model, pair):
    """The log evidence by products, with a probe along every axis in place of random signs: exact."""
    curvature = rule.curvature(model, TensorSource(*pair, torch.device("cpu")), sb.Categorical())
    size = curvature.probes.shape[1]
    curvature.probes, curvature.steps = size**0.5 * torch.eye(size, dtype=torch.float64), size
    return evidence_at(curvature, model, sb.TensorwisePrior(model), N).total


def slope_of_the_exact_evidence(model, pair, scale):
    """Differences of the evidence by Jacobians, for a scalar."""
    ends = []
    for step in (1e-5, -1e-5):
        with torch.no_grad():
            scale += step
        ends.append(exact(model, pair)[0])
        with torch.no_grad():
            scale -= step
    return torch.tensor((ends[0] - ends[1]) / 2e-5, dtype=torch.float64)


@pytest.mark.parametrize("rule", [Lanczos(), Preconditioned(sb.Kfac())], ids=["lanczos", "preconditioned"])
def test_gradients_by_products_in_a_tensor_of_the_user_are_exact(rule):
    pair, scale = data(2), torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model = Do(lambda s, x: s.parts[1](s.parts[0](x * scale).tanh()), [nn.Linear(2, 3), nn.Linear(3, CLASSES)]).double()
    (found,) = torch.autograd.grad(by_every_direction(rule, model, pair), scale)
    assert_close(found, slope_of_the_exact_evidence(model, pair, scale), rtol=1e-5, atol=1e-7)


COUPLED = {
    "mean": lambda: Do(lambda s, x: s.parts[0](x) - s.parts[0](x).mean(0), [nn.Linear(4, CLASSES)]),
    "batch norm": lambda: nn.Sequential(nn.Linear(4, CLASSES), nn.BatchNorm1d(CLASSES, track_running_stats=False)),
    "first": lambda: Do(lambda s, x: s.parts[0](x) - x[:1, :CLASSES], [nn.Linear(4, CLASSES)]),
}
EVERY = {
    "diagonal": Diagonal(),
    "kfac": sb.Kfac(),
    "lanczos": Lanczos(),
    "subsets": Subsets(size=4),
    **FULL,
}


@pytest.mark.parametrize("rule", EVERY)
@pytest.mark.parametrize("name", COUPLED)
def test_a_model_whose_data_see_each_other_is_refused(name, rule):
    with pytest.raises(RuntimeError, match="must not depend on the other data of its batch"):
        evidence(COUPLED[name]().double(), data(4), EVERY[rule])


@pytest.mark.parametrize("rule", [Diagonal(), sb.Kfac(), Ggn(), Lanczos()], ids=str)
def test_a_model_whose_data_see_each_other_in_large_batches_is_refused(rule):
    def centred(s, x):
        return s.parts[0](x) - (s.parts[0](x).mean(0) if len(x) > COUNT else 0)

    inputs = torch.randn(2 * COUNT, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"must not depend on the other data of its batch|matters to the outputs of others"):
        evidence(Do(centred, [nn.Linear(4, CLASSES)]).double(), (inputs, torch.arange(len(inputs)) % CLASSES), rule)


@pytest.mark.parametrize("rule", EVERY)
def test_a_model_that_draws_while_it_evaluates_is_refused(rule):
    model = Do(lambda s, x: functional.dropout(s.parts[0](x), 0.5, training=True), [nn.Linear(4, CLASSES)]).double()
    with pytest.raises(RuntimeError, match="In evaluation mode the model must give the same outputs every time"):
        evidence(model, data(4), EVERY[rule])


@pytest.mark.parametrize("objective", [sb.Laplace(), sb.Elbo()], ids=["laplace", "elbo"])
def test_training_refuses_what_evidence_would(objective):
    with pytest.raises(RuntimeError, match="must not depend on the other data of its batch"):
        sb.fit(COUPLED["mean"]().double(), data(4), objective=objective, epochs=1, progress=False)


LAYOUTS = {
    "a table of positions, summed": lambda: Do(
        lambda s, x: s.parts[1](x.mean(1) + s.parts[0](torch.arange(N)).mean(0)), [nn.Embedding(N, 4), nn.Linear(4, CLASSES)]
    ),
    "positions first": lambda: Do(
        lambda s, x: s.parts[1](s.parts[0](x.transpose(0, 1)).transpose(0, 1).tanh().mean(1)),
        [nn.Linear(4, 4), nn.Linear(4, CLASSES)],
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_as_many_positions_as_data_are_not_taken_for_data(name):
    model, pair = LAYOUTS[name]().double(), data(N, 4)
    with pytest.raises(RuntimeError, match=r"Module 'parts.0' must get the data along its first axis"):
        evidence(model, pair, Diagonal())
    full, _ = exact(model, pair)
    assert_close(evidence(model, pair, Ggn()), full, rtol=1e-10, atol=0)


def test_what_a_map_saw_is_kept_where_it_is_written_to():
    def function(self, x):
        h = x.tanh()
        y = self.parts[0](h)
        with torch.no_grad():
            h.mul_(2)
        return self.parts[1](y)

    model, pair = Do(function, [nn.Linear(4, 4), nn.Linear(4, CLASSES)]).double(), data(4)
    model.parts[0].weight.requires_grad_(False)
    _, diagonal = exact(model, pair)
    assert_close(evidence(model, pair, Diagonal()), diagonal, rtol=1e-10, atol=0)
    model.parts[0].weight.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"torch could not differentiate the outputs of the model in its weights.*inplace"):
        evidence(model, pair, Diagonal())


def test_a_model_that_writes_to_its_inputs_is_refused_and_the_data_stay():
    model, (inputs, targets) = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, CLASSES)).double(), data(4)
    before = inputs.clone()
    with pytest.raises(RuntimeError, match=r"must leave its inputs as they are.*x = x\.clone\(\)"):
        sb.fit(model, (inputs, targets), epochs=1, progress=False)
    assert torch.equal(inputs, before)


def test_padding_has_no_curvature_by_products_either():
    model = Do(lambda s, t: s.parts[1](s.parts[0](t).tanh().mean(1)), [nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 3)])
    model, pair = model.double(), tokens()
    assert (pair[0] == 0).any()
    _, J, _ = jacobian(model, pair[0])
    v = torch.randn(J.shape[2], generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.zeros(N, CLASSES, dtype=torch.float64)
    products = products_of(model, TensorSource(pair[0], targets, torch.device("cpu")), sb.Gaussian().double(), 4)
    assert_close(products.product(v), torch.einsum("ncp,ncq,q->p", J, J, v))


NORMS = {
    "batch norm": lambda: nn.BatchNorm2d(3),
    "instance norm": lambda: nn.InstanceNorm2d(3, affine=True),
    "instance norm with statistics": lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True),
}


@pytest.mark.parametrize("rule", [Diagonal, sb.Kfac])
@pytest.mark.parametrize("name", NORMS)
def test_the_size_of_batches_does_not_matter_to_gradients_either(name, rule):
    """Torch's gradient through norms on maps is wrong for a single datum, so none is ever alone in a batch."""
    inputs, targets = data(2, 4, 4, count=7)
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    model = Do(
        lambda s, x: s.parts[2](s.parts[1](s.parts[0](x * scale + (x * scale) ** 2)).tanh().flatten(1)),
        [nn.Conv2d(2, 3, 3), NORMS[name](), nn.Linear(12, CLASSES)],
    ).double()
    model(inputs)
    prior = sb.TensorwisePrior(model)
    found = [
        sb.evidence_gradient(model, (inputs, targets), sb.Categorical(), prior, [scale], rule=rule(batch_size=size))[0]
        for size in (7, 6, 3, 2, 1)
    ]
    for other in found[1:]:
        assert_close(other, found[0])


@pytest.mark.parametrize("norm", ["subclass", "function"])
@pytest.mark.parametrize("rule", [Ggn(), TangentKernel(N), Lanczos()], ids=["ggn", "kernel", "lanczos"])
def test_gradients_go_through_layer_norms_however_they_are_called(norm, rule):
    """In one step torch.func would hold their mean and std."""

    class Own(nn.LayerNorm):
        def forward(self, x):
            return super().forward(x)

    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    parts = [nn.Linear(4, 4), Own(4), nn.Linear(4, CLASSES)]
    if norm == "subclass":
        model = Do(lambda s, x: s.parts[2](s.parts[1](s.parts[0](x * scale)).tanh()), parts)
    else:
        model = Do(
            lambda s, x: s.parts[1](functional.layer_norm(s.parts[0](x * scale), (4,), s.w, s.b).tanh()),
            [parts[0], parts[2]],
            w=torch.rand(4),
            b=torch.rand(4),
        )
    model, pair = model.double(), data(4)

    if isinstance(rule, Lanczos):
        total = by_every_direction(rule, model, pair)
    else:
        total = sb.laplace_evidence(model, pair, sb.Categorical(), sb.TensorwisePrior(model), rule=rule).total
    (found,) = torch.autograd.grad(total, scale)
    assert_close(found, slope_of_the_exact_evidence(model, pair, scale), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", ["mean", "first"])
def test_the_bound_of_a_model_whose_data_see_each_other_is_refused_in_a_loop_of_the_user_too(name):
    model, pair = COUPLED[name]().double(), data(4)
    objective = sb.Elbo()
    variational = objective.family.over(model)
    with pytest.raises(RuntimeError, match="must not depend on the other data of its batch"):
        objective.evidence(model, variational, pair, sb.Categorical(), sb.TensorwisePrior(model))


def test_outputs_are_the_same_up_to_rounding_of_what_all_data_have():
    differences = torch.linspace(-0.01, 0.01, 8)[:, None]
    near, far = 1e4 + differences, 1e-4 + differences
    assert _same_outputs(near + 1e-3, near)
    assert not _same_outputs(near + 0.1, near)
    assert not _same_outputs(far + 1e-3, far)
    assert not _same_outputs(near[:4], near)


def test_gradients_that_are_small_are_compared_too(generator):
    gradients, factors = 1e-3 * torch.randn(6, 4, generator=generator), torch.tensor([1.0, 1.5, 2.0])
    rightly = gradients * factors.repeat_interleave(2)[:, None]
    assert _scales(gradients, rightly, factors)
    assert not _scales(gradients, rightly.roll(1, 0), factors)
    assert not _scales(gradients, 1.05 * rightly, factors)


@pytest.mark.parametrize("rule", [Diagonal(), sb.Kfac(), Ggn()], ids=str)
def test_classes_that_are_ruled_out_by_a_sum_are_no_reason_to_refuse(rule):
    pair = data(4)
    ruled_out = torch.zeros(CLASSES + 1, dtype=torch.float64).index_fill(0, torch.tensor([CLASSES]), -torch.inf)
    model = Do(lambda s, x: s.parts[0](x) + ruled_out, [nn.Linear(4, CLASSES + 1)]).double()
    assert isfinite(evidence(model, pair, rule))
