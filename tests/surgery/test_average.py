"""A hardened average is what the average gives in evaluation, by operations of torch alone; or the network alone."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.groups.lie import Generator, Images, LieGroup
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.surgery import hardened
from tests.curvature.networks import Do
from tests.surgery.alone import assert_loads_alone

GROUPS = {
    "images": (sb.affine2d(), (2, 6, 5)),
    "images with zeros around": (sb.affine2d("rotation", "scale", padding="zeros"), (1, 5, 6)),
    "sequences": (sb.groups.affine1d(), (2, 9)),
    "sets of points": (sb.affine2d(on="points"), (7, 2)),
    "points": (sb.affine2d(on="points"), (2,)),
    "colours": (sb.groups.colours(), (3, 4, 5)),
    "one side": (sb.affine2d("rotation", "shear").one_sided("rotation"), (1, 6, 6)),
    "a product": (sb.groups.colours("brightness", "hue") * sb.affine2d("rotation"), (3, 5, 5)),
}


class Brightness(LieGroup):
    """A group that acts in a way of its own."""

    def transform(self, coefficients, inputs):
        return inputs[:, None] + coefficients[..., None]

    def side(self, inputs):
        return 1


class Doubled(Images):
    """Images that are not only read at other places."""

    def transform(self, coefficients, inputs):
        return 2 * super().transform(coefficients, inputs)


def averaged(group, shape, generator, *, start=0.3, **settings):
    """A network that no transformation leaves alone, and some data, in double precision."""
    net = nn.Sequential(nn.Flatten(), nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3)).double()
    inputs = torch.randn(5, *shape, dtype=torch.float64, generator=generator)
    net(inputs)
    return sb.OrbitAverage(net, group.starting(start), 6, **settings).eval(), inputs


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("group", GROUPS, ids=str)
def test_an_average_is_written_out(group, antithetic, generator):
    model, inputs = averaged(*GROUPS[group], generator, antithetic=antithetic)
    found = hardened(model, inputs, off=0.0)
    assert found.model.training == model.training
    assert all(type(module).__module__.startswith("torch.") for module in found.model.modules())
    for some in (inputs, inputs[:2]):
        assert_close(found.model(some), model(some), rtol=1e-12, atol=1e-12)
    assert (model(inputs) - model.net(inputs)).abs().max() > 1e-3
    assert "average of 6 copies, " in str(found)
    assert found.layers[""][1].endswith(model.orbit.words())


def test_extents_are_in_the_report(generator):
    model, inputs = averaged(sb.affine2d("rotation", "translation_x"), (1, 8, 8), generator)
    assert hardened(model, inputs).layers == {"": ((), "average of 6 copies, translation_x ±1.2 px, rotation ±17.2 °")}


def relaxed_average(generator):
    net = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4))
    inputs = torch.randn(6, 1, 6, 6, generator=generator)
    relaxed = sb.relax(net, inputs, generator=generator)
    with torch.no_grad():
        for parameter in relaxed[0].paths["factored"].parameters():
            parameter.normal_(std=0.2, generator=generator)
    return sb.OrbitAverage(relaxed, sb.affine2d("rotation").starting(0.4), 4).eval(), inputs


def test_the_network_inside_an_average_is_hardened_as_well(generator):
    model, inputs = relaxed_average(generator)
    whole = hardened(model, inputs, off=0.0)
    assert_close(whole.model(inputs), model(inputs), rtol=1e-5, atol=1e-5)
    assert whole.layers["net.0"][1] == "factored + conv"
    alone = hardened(model, inputs, off=0.0, average=False)
    assert_close(alone.model(inputs), model.net(inputs), rtol=1e-5, atol=1e-5)
    assert alone.layers[""] == (("average of 4 copies, rotation ±22.9 °",), "its network")
    assert isinstance(alone.model[3], nn.Linear)
    assert not any(isinstance(module, RelaxedLayer) for module in [*whole.model.modules(), *alone.model.modules()])
    assert alone.operations[1] * 3 < whole.operations[1]


def test_paths_of_a_network_that_is_left_alone_are_judged_alone(generator):
    model, inputs = relaxed_average(generator)
    with torch.no_grad():
        for parameter in model.net[0].paths["factored"].parameters():
            parameter.mul_(1e-2)
    assert hardened(model, inputs, average=False).layers["net.0"] == (("factored",), "conv")


def test_an_average_that_changes_next_to_nothing_falls_away(generator):
    model, inputs = averaged(sb.affine2d("rotation"), (1, 6, 6), generator, start=1e-4)
    found = hardened(model, inputs)
    assert isinstance(found.model, nn.Sequential)
    assert found.layers[""] == (("average of 6 copies, rotation ±0.00573 °",), "its network")
    assert_close(found.model(inputs), model.net(inputs), rtol=1e-12, atol=1e-12)
    assert isinstance(sb.harden(model, inputs, off=0.0), torch.fx.GraphModule)


def test_an_average_inside_another_module_and_another_average(generator):
    inner, inputs = averaged(sb.groups.colours("brightness", channels=1), (1, 6, 6), generator)
    outer = nn.Sequential(sb.OrbitAverage(inner, sb.affine2d("rotation").starting(0.5), 4), nn.Linear(3, 2).double()).eval()
    found = hardened(outer, inputs, off=0.0)
    assert_close(found.model(inputs), outer(inputs), rtol=1e-12, atol=1e-12)
    assert list(found.layers) == ["0.net", "0"]
    alone = sb.harden(outer, inputs, average=False)
    assert [type(module) for module in alone] == [nn.Sequential, nn.Linear]


def test_a_group_of_its_own_is_refused_and_the_network_is_not(generator):
    model, inputs = averaged(Brightness((Generator("brightness", ((0.0, 1.0), (0.0, 0.0)), "%"),)), (4, 2), generator)
    with pytest.raises(ValueError, match=r"must be of images, sequences, points or colours; 'the model' is .* a Brightness"):
        sb.harden(model, inputs, off=0.0)
    assert_close(sb.harden(model, inputs, average=False)(inputs), model.net(inputs), rtol=1e-12, atol=1e-12)


def test_a_known_group_with_a_transform_of_its_own_is_refused_as_well(generator):
    model, inputs = averaged(Doubled(sb.affine2d("rotation").generators), (1, 5, 5), generator)
    with pytest.raises(ValueError, match=r"'the model' is averaged over a Doubled. average=False gives the network"):
        sb.harden(model, inputs, off=0.0)


@pytest.mark.parametrize(
    ("group", "shape", "others"),
    [
        (sb.affine2d("rotation"), (1, 8, 8), [(1, 16, 16), (1, 4, 16), (1, 8, 1), (2, 8, 8)]),
        (sb.groups.affine1d(), (2, 9), [(2, 18), (4, 9), (1, 9)]),
        (sb.groups.colours(), (3, 4, 6), [(3, 6, 4), (3, 8, 6)]),
    ],
    ids=["images", "sequences", "colours"],
)
def test_a_hardened_average_takes_data_of_its_shape_alone(group, shape, others, generator):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * shape[0], 3))
    if len(shape) == 2:
        net = nn.Sequential(nn.AdaptiveAvgPool1d(4), nn.Flatten(), nn.Linear(4 * shape[0], 3))
    inputs = torch.randn(4, *shape, generator=generator)
    plain = sb.harden(sb.OrbitAverage(net, group.starting(0.3), 4), inputs, off=0.0)
    assert plain(inputs).shape == (4, 3)
    for other in others:
        with pytest.raises(RuntimeError, match="don't multiply up to the size of dim"):
            plain(torch.randn(4, *other, generator=generator))


def test_a_hardened_average_over_points_takes_any_number_of_them(generator):
    net = nn.Sequential(Do(lambda s, x: x.square().mean(1), []), nn.Linear(2, 3))
    model = sb.OrbitAverage(net, sb.affine2d(on="points").starting(0.3), 4).eval()
    plain = sb.harden(model, torch.randn(4, 7, 2, generator=generator), off=0.0)
    more = torch.randn(4, 9, 2, generator=generator)
    assert_close(plain(more), model(more))


def test_a_hardened_average_is_exported_and_loaded_without_the_library(generator, tmp_path):
    model, inputs = averaged(sb.affine2d() * sb.groups.colours("brightness", channels=1), (1, 6, 6), generator)
    plain = sb.harden(model, inputs, off=0.0)
    exported = torch.export.export(plain, (inputs,), dynamic_shapes=({0: torch.export.Dim("n")},)).module()
    assert_close(exported(inputs[:3]), model(inputs[:3]), rtol=1e-12, atol=1e-12)
    assert_loads_alone(plain, inputs, model(inputs), tmp_path)


def test_a_hardened_average_is_learned_from_there(generator):
    model, inputs = relaxed_average(generator)
    plain = sb.harden(model, inputs, off=0.0)
    result = sb.fit(plain, (inputs, torch.arange(6) % 4), epochs=1, objective=sb.Laplace(), progress=False)
    assert result.model(inputs).isfinite().all()
