"""Orbit layers: equivariance, known layers as special cases, their curvature, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Ekfac, Kfac
from symbayes.data.source import TensorSource
from symbayes.groups.orbits import pair_orbits
from symbayes.groups.permutation import Permutations, board, copies, cyclic, dihedral, pairs, symmetric
from symbayes.layers.conv import ConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout
from symbayes.likelihoods.values import Gaussian
from tests.oracles import dense_ggn

GROUPS = {
    "set": symmetric(6),
    "set pooled": symmetric(6).pooled(),
    "set to pairs": symmetric(4).onto(pairs(symmetric(4))),
    "pairs": pairs(symmetric(4)),
    "cycle": cyclic(7),
    "polygon": dihedral(6),
    "board": board(4),
    "copies": copies(dihedral(4), 2),
    "intransitive": Permutations({"a": (1, 0, 2, 3, 4), "b": (0, 1, 3, 4, 2)}, {"a": (0, 1, 2, 3), "b": (1, 2, 0, 3)}),
    "large": symmetric(300),
}


def randomised(path, generator):
    path = path.double()
    with torch.no_grad():
        for parameter in path.parameters():
            parameter.normal_(generator=generator)
    return path


@pytest.fixture(params=GROUPS, ids=str)
def path(request, generator):
    return randomised(OrbitPath(2, 3, GROUPS[request.param]), generator)


def test_a_path_is_equivariant_under_every_generator(path, generator):
    group = path.group
    inputs = torch.randn(4, 2, group.num_inputs, generator=generator, dtype=torch.float64)
    for of_inputs, of_outputs in zip(group.inputs, group.outputs, strict=True):
        element = (*of_inputs.tolist(), *of_outputs.tolist())
        assert_close(path(path.act_on_inputs(element, inputs)), path.act_on_outputs(element, path(inputs)))


def test_weights_are_all_there_is(path, generator):
    """Averaging any linear map over the group gives one that the path can be: its weights leave nothing out."""
    group = path.group
    if group.num_inputs > 20:
        return
    dense = torch.randn(3, group.num_outputs, 2, group.num_inputs, generator=generator, dtype=torch.float64)
    elements = list(group.elements((group.num_inputs,)))
    mean = torch.zeros_like(dense)
    for element in elements:
        inputs, outputs = element[: group.num_inputs], element[group.num_inputs :]
        mean += dense[:, outputs][..., inputs] / len(elements)
    basis = torch.eye(2 * group.num_inputs, dtype=torch.float64).view(-1, 2, group.num_inputs)
    weights = [part.weight for part in path.parts]
    target = mean.permute(2, 3, 0, 1).reshape(len(basis), 3, -1)

    def of(flat):
        named, start = {}, 0
        for index, part in enumerate(path.parts):
            named[f"parts.{index}.weight"] = flat[start : start + part.weight.numel()].view_as(part.weight)
            start += part.weight.numel()
            if part.bias is not None:
                named[f"parts.{index}.bias"] = torch.zeros_like(part.bias)
        return torch.func.functional_call(path, named, (basis,)).flatten()

    size = sum(weight.numel() for weight in weights)
    matrix = torch.stack([of(row) for row in torch.eye(size, dtype=torch.float64)], dim=1)
    assert torch.linalg.matrix_rank(matrix) == size
    solution = torch.linalg.lstsq(matrix, target.flatten()).solution
    assert_close(matrix @ solution, target.flatten())


def test_few_data_and_many_are_mapped_alike(path, generator):
    inputs = torch.randn(7, 2, path.group.num_inputs, generator=generator, dtype=torch.float64)
    assert_close(path(inputs), torch.cat([path(datum[None]) for datum in inputs]))


def test_a_set_has_two_weights_for_each_pair_of_channels(generator):
    path = randomised(OrbitPath(2, 3, symmetric(9)), generator)
    (part,) = path.parts
    assert part.weight.shape == (1, 3, 2, 2)
    inputs = torch.randn(5, 2, 9, generator=generator, dtype=torch.float64)
    own, others = part.weight[0].unbind(2)
    wanted = torch.einsum("dc,ncs->nds", own - others, inputs) + (inputs.sum(2) @ others.T)[..., None] + part.bias.T
    assert_close(path(inputs), wanted)


def test_a_cycle_is_a_convolution_with_a_filter_as_large_as_its_map(generator):
    path, conv = randomised(OrbitPath(2, 3, cyclic(7)), generator), ConvPath(2, 3, (7,)).double()
    (part,) = path.parts
    group = cyclic(7)
    seen = pair_orbits(group.inputs, group.outputs)[1][0].seen
    order = torch.argsort((torch.as_tensor(seen[0]) + 3) % 7)  # the first output sees input t at place t + 3 of the filter
    with torch.no_grad():
        conv.weight.copy_(part.weight[0][..., order])
        conv.bias.copy_(part.bias[0])
    inputs = torch.randn(5, 2, 7, generator=generator, dtype=torch.float64)
    assert_close(path(inputs), conv(inputs))
    assert sum(weight.numel() for weight in part.parameters()) == sum(weight.numel() for weight in conv.parameters())


@pytest.mark.parametrize(("group", "weights", "biases"), [(board(3), 15, 3), (pairs(symmetric(5)), 15, 2), (cyclic(8), 8, 1)])
def test_parameters_are_as_many_as_orbits(group, weights, biases):
    path = OrbitPath(2, 3, group)
    assert sum(part.weight.numel() for part in path.parts) == 6 * weights
    assert sum(part.bias.numel() for part in path.parts) == 3 * biases


def test_a_result_with_orbits_is_saved_and_read_back(generator, tmp_path):
    def build():
        return nn.Sequential(RelaxedLayer({"orbit": OrbitPath(1, 2, board(2).pooled(), in_shape=(2, 2))}), nn.Flatten())

    data = (torch.randn(20, 1, 2, 2, generator=generator), torch.randn(20, 2, generator=generator))
    result = sb.fit(build(), data, likelihood=Gaussian(), epochs=4, progress=False)
    result.save(tmp_path)
    again = sb.load_result(tmp_path, model=build())
    assert_close(again.model(data[0]), result.model(data[0]))
    assert again.symmetries == result.symmetries


def test_grids_are_kept(generator):
    path = OrbitPath(1, 2, board(4), in_shape=(4, 4), out_shape=(4, 4)).double()
    inputs = torch.randn(3, 1, 4, 4, generator=generator, dtype=torch.float64)
    assert_close(path(inputs.rot90(1, (2, 3))), path(inputs).rot90(1, (2, 3)))
    assert OrbitPath(1, 2, board(4).pooled(), in_shape=(4, 4), out_shape=(1, 1))(inputs.float()).shape == (3, 2, 1, 1)


@pytest.mark.parametrize("name", ["set", "set pooled", "set to pairs", "pairs", "cycle", "board"])
def test_initial_paths_keep_the_variance_through_a_relu(name, generator):
    path = OrbitPath(40, 50, GROUPS[name], generator=generator)
    inputs = torch.randn(100, 40, path.group.num_inputs, generator=generator).relu()
    assert 0.7 < path(inputs).square().mean() / (2 * inputs.square().mean()) < 1.4


def test_a_large_set_takes_memory_for_its_points_only():
    path = OrbitPath(1, 1, symmetric(5000))
    assert sum(buffer.numel() for buffer in path.buffers()) < 20_000
    assert path(torch.ones(2, 1, 5000)).shape == (2, 1, 5000)


def curvature_of(rule, model, inputs):
    likelihood = Gaussian().double().requires_grad_(False)
    outputs = model(inputs).detach()
    return rule.curvature(model, TensorSource(inputs, torch.zeros_like(outputs), torch.device("cpu")), likelihood)


@pytest.mark.parametrize("group", [symmetric(5).pooled(), board(3).pooled(), Permutations({"a": (1, 0, 2)}, {"a": (0, 1)})])
def test_kfac_is_exact_for_linear_networks_whose_outputs_share_no_weight(group, generator):
    model = nn.Sequential(OrbitPath(2, 3, group), nn.Flatten()).double()
    inputs = torch.randn(6, 2, group.num_inputs, generator=generator, dtype=torch.float64)
    exact = curvature_of(Ggn(joint=False), model, inputs).blocks
    wanted = dense_ggn(model, inputs, lambda f: torch.eye(len(f), dtype=f.dtype))
    for name, block in curvature_of(Kfac(), model, inputs).blocks.items():
        assert_close(block.dense(), wanted[name, name])
        assert_close(block.dense(), exact[name].dense())


def test_reduce_is_exact_for_a_linear_set_network_that_is_averaged(generator):
    class Averaged(nn.Sequential):
        def forward(self, inputs):
            return super().forward(inputs).mean(2)

    model = Averaged(OrbitPath(2, 3, symmetric(5))).double()
    inputs = torch.randn(6, 2, 5, generator=generator, dtype=torch.float64)
    wanted = dense_ggn(model, inputs, lambda f: torch.eye(len(f), dtype=f.dtype))
    for name, block in curvature_of(Kfac(sharing="reduce"), model, inputs).blocks.items():
        assert_close(block.dense(), wanted[name, name])


def test_the_trace_of_ekfac_and_the_blocks_of_biases_are_exact(generator):
    paths = {"orbit": OrbitPath(2, 3, board(3)), "dense": sb.layers.DensePath((2, 9), (3, 9))}
    layers = (RelaxedLayer(paths), nn.Tanh(), OrbitPath(3, 2, board(3).pooled()), nn.Flatten())
    model = randomised(nn.Sequential(*layers), generator)
    inputs = torch.randn(8, 2, 9, generator=generator, dtype=torch.float64)
    exact = curvature_of(Ggn(joint=False), model, inputs)
    wanted, found = exact.trace(), curvature_of(Ekfac(), model, inputs).trace()
    assert found.keys() == wanted.keys() == dict(model.named_parameters()).keys()
    for name in wanted:
        assert_close(found[name], wanted[name])
    for name, block in curvature_of(Kfac(), model, inputs).blocks.items():
        if name.endswith("bias"):
            assert_close(block.dense(), exact.blocks[name].dense())


def test_the_symmetry_is_known_by_name():
    layer = RelaxedLayer({"orbit": OrbitPath(1, 2, board(3)), "dense": sb.layers.DensePath((1, 9), (2, 9))})
    tensors = Layout.of(nn.Sequential(layer)).tensors
    assert {(tensor.path, tensor.symmetry) for tensor in tensors.values()} == {("orbit", "board symmetry"), ("dense", None)}
    strict = Layout.of(nn.Sequential(OrbitPath(1, 2, board(3)), nn.ReLU())).tensors
    assert {(t.layer, t.path, t.symmetry) for t in strict.values()} == {("0", "OrbitPath", "board symmetry")}
    assert "3 classes of inputs" in repr(layer)
    assert {name for name in layer.state_dict() if not name.endswith(("weight", "bias"))} == set()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OrbitPath(1, 2, board(3), in_shape=(3, 4)), r"in_shape must have as many cells .* there, 9; got \(3, 4\)"),
        (lambda: OrbitPath(1, 2, board(3), out_shape=(2,)), r"out_shape must have as many cells .* there, 9; got \(2,\)"),
        (
            lambda: OrbitPath(1, 2, board(3))(torch.zeros(1, 1, 3, 3)),
            r"OrbitPath expects inputs of shape \(n, 1, 9\), got \(1, 1, 3, 3\)",
        ),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
