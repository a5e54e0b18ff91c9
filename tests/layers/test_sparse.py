"""Sparse paths against the dense maps they stand for, and the symmetry that a lengthscale controls."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from symbayes.curvature.kfac import Kfac
from symbayes.data.source import TensorSource
from symbayes.groups.grids import cube, p4, p4m
from symbayes.layers.basis import RadialBasis
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import (
    ExpandedPath,
    ProjectedPath,
    SparseConvPath,
    SparseFactoredPath,
    SparseGroupConvPath,
    weights_first,
)
from symbayes.layout import Layout
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.values import Gaussian
from symbayes.priors import TensorwisePrior
from symbayes.training.by_curvature import Map
from symbayes.training.fit import fit


@pytest.mark.parametrize("mode", ["circular", "zeros", "reflect", "replicate"])
def test_a_sparse_convolution_is_torch_s_with_the_dense_filter(mode, generator):
    path = SparseConvPath(2, 4, anchors=7, padding_mode=mode, groups=2, stride=2).double()
    plain = nn.Conv2d(2, 4, 3, padding=1, padding_mode=mode, groups=2, stride=2).double()
    with torch.no_grad():
        plain.weight.copy_((path.weight @ path.basis.matrix()).view_as(plain.weight))
        plain.bias.copy_(path.bias)
    inputs = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    assert_close(path(inputs), plain(inputs))
    assert (path.group is not None) == (mode == "circular")


def test_anchors_on_the_grid_make_a_sparse_path_dense(generator):
    inputs = torch.randn(3, 2, 4, 4, generator=generator, dtype=torch.float64)
    sparse, dense = SparseConvPath(2, 3, anchors=None).double(), ConvPath(2, 3).double()
    dense.load_state_dict({"weight": sparse.weight.view(3, 2, 3, 3), "bias": sparse.bias})
    assert_close(sparse(inputs), dense(inputs))
    sparse, dense = SparseFactoredPath((2, 4, 4), (3, 2, 2), anchors=None).double(), FactoredPath((2, 4, 4), (3, 2, 2)).double()
    dense.load_state_dict(
        {"scatter.bias": torch.zeros(4), **{k: v for k, v in sparse.state_dict().items() if "basis" not in k}}
    )
    assert_close(sparse(inputs), dense(inputs))


@pytest.mark.parametrize("kind", [{}, {"lifting": True}, {"mixing": "pointwise"}, {"anchors": None}])
def test_a_sparse_group_convolution_is_that_of_its_dense_filter(kind, generator):
    sparse = SparseGroupConvPath(2, 3, p4(), **kind).double()
    dense = GroupConvPath(2, 3, p4(), **{name: value for name, value in kind.items() if name != "anchors"}).double()
    dense.load_state_dict({"weight": sparse.dense_weight(), "bias": sparse.bias})
    inputs = torch.randn(3, 2 if sparse.lifting else 8, 4, 4, generator=generator, dtype=torch.float64)
    assert_close(sparse(inputs), dense(inputs))
    assert_close(sparse.filters(), dense.filters())
    anchors = {"{}": 18, "{'anchors': None}": 36}.get(str(kind), 4)
    assert sparse.weight.shape == (3, 2, anchors)


@pytest.mark.parametrize("group", [p4(), p4m(), cube()], ids=lambda group: group.name)
def test_a_group_that_turns_both_arguments_does_not_change_the_kernel(group):
    basis = RadialBasis((3,) * group.dims, anchors=None, turns=group.matrices, omega=0.7, noise=0.01).double()
    where = basis.locations.view(group.order, 3**group.dims, -1)
    kernel = (-0.5 * 0.7**2 * (where.flatten(0, 1)[:, None] - where.flatten(0, 1)).square().sum(-1)).exp()
    for turn, cells in enumerate(group.turned_cells((3,) * group.dims)):
        moved = where[group.table[turn]][:, cells].flatten(0, 1)
        assert_close((-0.5 * 0.7**2 * (moved[:, None] - moved).square().sum(-1)).exp(), kernel)


def test_a_quarter_turn_is_as_far_as_a_cell_along_a_diagonal():
    where = RadialBasis((3, 3), anchors=None, turns=p4().matrices).locations.view(4, 9, -1)
    assert_close((where[0, 0] - where[1, 0]).norm(), (where[0, 0] - where[0, 4]).norm())


def test_without_lengthscale_a_group_filter_is_the_same_for_all_turns_and_cells():
    path = SparseGroupConvPath(1, 2, p4(), anchors=5, learn_lengthscale=True).double()
    with torch.no_grad():
        path.basis.omega.fill_(1e-4)
    filters = path.dense_weight().detach().flatten(2)
    assert float(filters.std(2).max()) < 1e-3 * float(filters.abs().min())


@pytest.mark.parametrize("learn", [False, True])
def test_a_sparse_factored_path_is_the_dense_map_of_its_smooth_factors(learn, generator):
    path = SparseFactoredPath((3, 4, 5), (2, 3, 2), bias=False, learn_lengthscale=learn).double()
    inputs = torch.randn(6, 3, 4, 5, generator=generator, dtype=torch.float64)
    second = path.gather.weight @ path.gather.basis.matrix()
    first = path.scatter.basis.matrix().T @ path.scatter.weight
    assert path.gather.weight.shape == (3, 2, 10)
    assert path.scatter.weight.shape == (2, 3, 3)
    wanted = torch.einsum("dtc,cds,ncs->ndt", first, second, inputs.flatten(2)).view(6, 2, 3, 2)
    assert_close(path(inputs), wanted)
    assert_close(path(inputs).flatten(1), inputs.flatten(1) @ path.dense_weight().T)


@pytest.mark.parametrize("features", [1, 50])
def test_projecting_data_or_weights_gives_the_same(features, generator, monkeypatch):
    basis = RadialBasis((4, 4), 0.5)
    projected = ProjectedPath(3, basis, features, std=1.0).double()
    expanded = ExpandedPath(3, features, basis, std=1.0).double()
    for path, d_in in ((projected, 16), (expanded, features)):
        inputs = torch.randn(20, 3, d_in, generator=generator, dtype=torch.float64)
        found = []
        for choice in (True, False):
            monkeypatch.setattr("symbayes.layers.smooth.weights_first", lambda *_, choice=choice: choice)
            found.append(path(inputs))
        assert_close(*found)
    assert weights_first(20, basis.matrix(), features) == (features == 1)


def test_dense_weights_start_as_those_of_the_dense_paths(generator):
    for sparse, dense in (
        (SparseConvPath(20, 50, generator=generator), ConvPath(20, 50, generator=generator)),
        (SparseConvPath(20, 50, anchors=0.8, scale=0.1, generator=generator), ConvPath(20, 50, scale=0.1, generator=generator)),
    ):
        ratio = sparse.filters().square().mean() / dense.weight.square().mean()
        assert ratio.item() == pytest.approx(1, rel=0.05)
    smooth = SparseFactoredPath((5, 8, 8), (20, 8, 8), scale=0.3, generator=generator)
    rough = FactoredPath((5, 8, 8), (20, 8, 8), scale=0.3, generator=generator)
    for ours, theirs in ((smooth.gather, rough.gather), (smooth.scatter, rough.scatter)):
        ratio = ours.dense_weight().square().mean() / theirs.weight.square().mean()
        assert ratio.item() == pytest.approx(1, rel=0.05)


@pytest.mark.parametrize("learn", [False, True])
def test_kronecker_factors_are_those_of_the_dense_paths_projected(learn, generator):
    paths = {
        "conv": SparseConvPath(2, 3, learn_lengthscale=learn),
        "factored": SparseFactoredPath((2, 4, 4), (3, 4, 4), bias=False, learn_lengthscale=learn),
    }
    dense = {"conv": ConvPath(2, 3), "factored": FactoredPath((2, 4, 4), (3, 4, 4), bias=False)}
    sparse_model, dense_model = (
        nn.Sequential(RelaxedLayer(chosen), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3)).double() for chosen in (paths, dense)
    )
    with torch.no_grad():
        dense["conv"].weight.copy_(paths["conv"].filters())
        dense["factored"].gather.weight.copy_(paths["factored"].gather.dense_weight())
        dense["factored"].scatter.weight.copy_(paths["factored"].scatter.dense_weight())
        dense_model[3].load_state_dict(sparse_model[3].state_dict())
    inputs = torch.randn(6, 2, 4, 4, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.arange(6) % 3, torch.device("cpu"))
    ours, theirs = (Kfac().curvature(model, data, Categorical()).blocks for model in (sparse_model, dense_model))
    with torch.no_grad():
        Psi = torch.kron(torch.eye(2, dtype=torch.float64), paths["conv"].basis.matrix())
        block, reference = (blocks["0.paths.conv.weight"] for blocks in (ours, theirs))
        assert_close(block.A.matrices, Psi @ reference.A.matrices @ Psi.T)
        assert_close(block.G.matrices, reference.G.matrices)
        Psi = paths["factored"].gather.basis.matrix()
        block, reference = (blocks["0.paths.factored.gather.weight"] for blocks in (ours, theirs))
        assert_close(block.A.matrices, Psi @ reference.A.matrices @ Psi.T)
        assert_close(block.G.matrices, reference.G.matrices)
        Psi = paths["factored"].scatter.basis.matrix()
        block, reference = (blocks["0.paths.factored.scatter.weight"] for blocks in (ours, theirs))
        assert_close(block.A.matrices, reference.A.matrices)
        assert_close(block.G.matrices, Psi @ reference.G.matrices @ Psi.T)


def layer(omega):
    paths = {
        "sparse": SparseFactoredPath((2, 6, 5), (3, 6, 5), learn_lengthscale=True),
        "sparse_conv": SparseConvPath(2, 3, learn_lengthscale=True),
    }
    relaxed = RelaxedLayer(paths).double()
    with torch.no_grad():
        for name, parameter in relaxed.named_parameters():
            if name.endswith("omega"):
                parameter.fill_(omega)
    return relaxed


def equivariance_error(relaxed, inputs):
    """Largest relative difference between moving inputs and moving outputs, over some translations."""
    with torch.no_grad():
        outputs = relaxed(inputs)
        moved = [relaxed(inputs.roll(by, (2, 3))) - outputs.roll(by, (2, 3)) for by in [(1, 0), (0, 2), (3, 4)]]
        return max(float(error.norm() / outputs.norm()) for error in moved)


def test_the_layer_is_strictly_equivariant_where_omega_vanishes_and_only_there(generator):
    inputs = torch.randn(4, 2, 6, 5, generator=generator, dtype=torch.float64)
    assert equivariance_error(layer(0.0).paths["sparse"], inputs) < 1e-8
    assert equivariance_error(layer(0.0), inputs) < 1e-8
    assert equivariance_error(layer(1.0), inputs) > 0.1
    assert 0 < equivariance_error(layer(0.05), inputs) < equivariance_error(layer(0.2), inputs)


def test_a_large_precision_of_omega_makes_a_trained_layer_equivariant(generator):
    inputs = torch.randn(40, 2, 6, 5, generator=generator, dtype=torch.float64)
    targets = torch.randn(40, 2, generator=generator, dtype=torch.float64)
    errors, omegas = {}, {}
    for precision in (1.0, 1e8):
        with torch.random.fork_rng():
            torch.random.manual_seed(0)
            model = nn.Sequential(layer(1.0), nn.Tanh(), nn.Flatten(), nn.Linear(90, 2).double())
        prior = TensorwisePrior(model, learn=["*omega"])
        with torch.no_grad():
            prior.log_precision[prior.learned] = torch.tensor(precision).log().double()
        fit(model, (inputs, targets), likelihood=Gaussian(1.0).double(), prior=prior, objective=Map(), epochs=5, progress=False)
        errors[precision] = equivariance_error(model[0], inputs)
        omegas[precision] = max(p.abs().item() for name, p in model.named_parameters() if name.endswith("omega"))
    assert omegas[1.0] > 0.5
    assert omegas[1e8] < 1e-3
    assert errors[1.0] > 0.1
    assert errors[1e8] < 1e-4


def test_shapes_are_no_weights_and_belong_to_their_path():
    model = nn.Sequential(layer(1.0), SparseConvPath(3, 1, learn_locations=True))
    tensors = Layout.of(model).tensors
    omega = tensors["0.paths.sparse.gather.basis.omega"]
    assert (omega.kind, omega.layer, omega.path, omega.size) == ("shape", "0", "sparse", 1)
    locations = tensors["1.basis.locations"]
    assert (locations.kind, locations.layer, locations.path, locations.symmetry) == (
        "shape",
        "1",
        "SparseConvPath",
        "translation",
    )
    assert tensors["1.weight"].kind == "weight"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SparseConvPath(2, 2, anchors=10), "anchors must be at least 1 and at most the 9 cells, got 10"),
        (lambda: SparseConvPath(2, 2)(torch.zeros(1, 3, 4, 4)), r"SparseConvPath expects inputs \[n, 2, and 2 grid axes\]"),
        (lambda: SparseFactoredPath((2, 2), (1, 1))(torch.zeros(1, 4)), "SparseFactoredPath expects inputs of shape"),
        (lambda: SparseFactoredPath((2, 4), (1, 4), anchors=0.0), "must lie above 0 and be at most 1, got 0.0"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
