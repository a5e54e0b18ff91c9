"""Hidden units are found where their order means nothing, and nowhere else."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from symbayes.groups.lie import affine2d
from symbayes.invariance.filters import FilterBank
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.layout import weights
from symbayes.models import lenet, mlp, residual, small_cnn
from symbayes.posterior.units import HiddenUnits, check_units, hidden_units

IMAGES = torch.rand(3, 1, 28, 28, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
MIDDLE = IMAGES[:, :, 6:22, 6:22].contiguous()
SMALL = IMAGES[:, :, 10:18, 10:18].contiguous()
ROWS = torch.randn(3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
CLASSES = torch.tensor([0, 1, 2])


def norms():
    """Biases that a norm takes away again are left out."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, bias=False), nn.LayerNorm(6), nn.GroupNorm(1, 6), nn.SiLU()),
        *(nn.Conv2d(6, 5, 3, bias=False), nn.InstanceNorm2d(5, affine=True), nn.ELU()),
        *(nn.Conv2d(5, 4, 1), nn.LayerNorm((4, 4, 4))),
        *(
            nn.Conv2d(4, 3, 1, bias=False),
            nn.BatchNorm2d(3, track_running_stats=False),
            nn.Mish(),
            nn.Flatten(),
            nn.LayerNorm(48),
        ),
        *(nn.Linear(48, 7), nn.LayerNorm(7), nn.GELU()),
        *(nn.Linear(7, 6), nn.RMSNorm(6)),
        *(nn.Linear(6, 4, bias=False), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)),
    )


MODELS = {
    "mlp": (lambda: mlp((ROWS.float(), CLASSES), 7), ROWS, {"hidden": 7}),
    "deep, without biases, nested": (
        lambda: nn.Sequential(
            nn.Sequential(nn.Linear(5, 4, bias=False), nn.ReLU()),
            nn.Dropout(0.5),
            nn.Sequential(nn.Linear(4, 6), nn.Softplus()),
            nn.Linear(6, 2),
        ),
        ROWS,
        {"0.0": 4, "2.0": 6},
    ),
    "flattened maps": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, 4), nn.Tanh(), nn.Linear(4, 2)
        ),
        SMALL,
        {"0": 3, "4": 4},
    ),
    "sequences": (
        lambda: nn.Sequential(
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 4, 2),
            nn.Tanh(),
            nn.AvgPool1d(2),
            nn.Flatten(),
            nn.Identity(),
            nn.Linear(8, 2),
        ),
        ROWS,
        {"1": 4},
    ),
    "lenet": (lambda: lenet((IMAGES.float(), CLASSES)), IMAGES, {"conv1": 6, "conv2": 16, "conv3": 120, "hidden": 84}),
    "small_cnn": (lambda: small_cnn((MIDDLE.float(), CLASSES), 3), MIDDLE, {"conv1_1": 3, "conv2_1": 6, "hidden": 12}),
    "residual": (
        lambda: residual((SMALL.float(), CLASSES), 8, 2),
        SMALL,
        {"block1.conv1": 2, "block2.conv1": 4, "block3.conv1": 8},
    ),
    "norms": (norms, SMALL, {"0": 6, "4": 5, "7": 4, "9": 3, "14": 7, "17": 6, "19": 4}),
    "filter bank": (
        lambda: nn.Sequential(OrderedDict(bank=FilterBank((1, 8, 8), 5, affine2d(), 4), head=nn.Linear(5, 3))),
        SMALL,
        {"bank": 5},
    ),
    "orbit average": (lambda: OrbitAverage(mlp((SMALL.float(), CLASSES), 6), affine2d(), 4), SMALL, {"net.hidden": 6}),
}
each_model = pytest.mark.parametrize("name", MODELS)


@each_model
@torch.no_grad()
def test_they_are_found_and_may_change_places(name, generator):
    build, inputs, wanted = MODELS[name]
    model = build().double().eval()
    units = hidden_units(model, inputs)
    assert {each.name: each.count for each in units} == wanted
    # All of them together, by a cycle of all units in any order.
    values = {n: p + 0.1 * torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in weights(model).items()}
    moved = values
    for each in units:
        cycle = torch.randperm(each.count, generator=generator)
        moved = each.permute(moved, torch.empty_like(cycle).scatter(0, cycle, cycle.roll(1)))
    before, after = (torch.func.functional_call(model, tensors, (inputs,)) for tensors in (values, moved))
    torch.testing.assert_close(after, before)
    assert float(before.std(0).max()) > 1e-3
    assert all(any(not torch.equal(moved[tensor], values[tensor]) for tensor in each.axes) for each in units)


@each_model
def test_they_stand_in_no_tensor_more_and_none_less(name):
    """Without any one of the tensors they stand in, outputs change."""
    build, inputs, _ = MODELS[name]
    model = build().double()
    for each in hidden_units(model):
        for left_out in each.axes:
            axes = {tensor: axis for tensor, axis in each.axes.items() if tensor != left_out}
            repeats = {tensor: repeat for tensor, repeat in each.repeats.items() if tensor != left_out}
            with pytest.raises(ValueError, match=rf"permuting units '{each.name}' changes outputs"):
                check_units(model, [HiddenUnits(each.name, each.count, axes, repeats)], inputs)


class Doubled(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs.roll(1, -1))


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
        self.head = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def frozen():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].bias.requires_grad_(False)
    return model


def shared():
    layer = nn.Linear(5, 5)
    return nn.Sequential(layer, nn.Tanh(), layer)


NONE = {
    "one layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 2)),
    "a single unit": lambda: nn.Sequential(nn.Linear(5, 1), nn.Linear(1, 2)),
    "running statistics": lambda: nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
    "groups of channels": lambda: nn.Sequential(nn.Conv1d(1, 4, 1), nn.Conv1d(4, 4, 1, groups=2)),
    "normalised in groups": lambda: nn.Sequential(nn.Conv1d(1, 4, 1), nn.GroupNorm(2, 4), nn.Conv1d(4, 4, 1)),
    "a softmax of unknown axis": lambda: nn.Sequential(nn.Linear(5, 4), nn.Softmax(0), nn.Linear(4, 2)),
    "pooled units": lambda: nn.Sequential(nn.Linear(5, 4), nn.MaxPool1d(1), nn.Linear(4, 2)),
    "maps over positions": lambda: nn.Sequential(nn.Conv1d(1, 4, 1), nn.Linear(4, 2)),
    "flattened rows of units": lambda: nn.Sequential(nn.Linear(5, 4), nn.Flatten(), nn.Linear(12, 2)),
    "flattened in part": lambda: nn.Sequential(nn.Conv2d(1, 4, 1), nn.Flatten(2), nn.Linear(4, 2)),
    "a subclass": lambda: nn.Sequential(nn.Linear(5, 4), Doubled(4, 2)),
    "frozen": frozen,
    "shared": shared,
    "fixed filters": lambda: nn.Sequential(FilterBank.from_images(SMALL, affine2d(), 2, lengthscale=1.0), nn.Linear(3, 2)),
    "own forward": Own,
}


@pytest.mark.parametrize("name", NONE)
def test_where_order_matters_or_may_none_are_found(name):
    model = NONE[name]()
    with pytest.raises(
        ValueError, match=rf"None were found in this {type(model).__name__}\. .*HiddenUnits\(name, count, axes\)"
    ):
        hidden_units(model)


def test_those_described_by_hand_are_checked():
    model = Own().double()
    axes = {"body.0.weight": -2, "body.0.bias": -1, "head.weight": -1}
    check_units(model, [HiddenUnits("body", 4, axes)], ROWS)
    with pytest.raises(ValueError, match=r"must stand in trainable weights of the model, .*; got body\.weight\."):
        check_units(model, [HiddenUnits("body", 4, {"body.weight": -2})], ROWS)
    square = nn.Sequential(nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)).double()
    check_units(square, [HiddenUnits("rows", 5, {"0.weight": -2, "1.weight": -1})], ROWS)
    with pytest.raises(ValueError, match=r"permuting units 'columns' changes outputs of size"):
        check_units(square, [HiddenUnits("columns", 5, {"0.weight": -1, "1.weight": -2})], ROWS)


def test_running_statistics_make_order_matter():
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    axes = {"0.weight": -2, "0.bias": -1, "1.weight": -1, "1.bias": -1, "2.weight": -1}
    units = [HiddenUnits("0", 4, axes)]
    check_units(model, units, ROWS)  # all zeros and ones at first
    model[1].running_mean += torch.arange(4)
    with pytest.raises(ValueError, match=r"permuting units '0' changes outputs"):
        check_units(model, units, ROWS)


def test_checking_leaves_the_model_as_it_was():
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    hidden_units(model, ROWS)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_units_at_zero_are_checked_all_the_same():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    nn.init.zeros_(model[2].weight)
    with pytest.raises(ValueError, match=r"permuting units 'half' changes outputs"):
        check_units(model, [HiddenUnits("half", 4, {"0.weight": -2, "0.bias": -1})], ROWS)
