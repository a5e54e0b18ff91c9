"""The radial basis: Ψ against its formula, the grid recovered exactly, and a cache that is never stale."""

from copy import deepcopy

import pytest
import torch
from torch.func import functional_call, hessian, jacfwd, jacrev, vmap
from torch.testing import assert_close

from symbayes.layers.basis import RadialBasis


def formula(basis, cells):
    """Ψ, entry by entry."""
    anchors, omega = basis.locations.detach().double(), float(basis.omega.detach())
    K = torch.zeros(len(anchors), len(anchors), dtype=torch.float64)
    k = torch.zeros(len(anchors), len(cells), dtype=torch.float64)
    for i, z in enumerate(anchors):
        for j, other in enumerate(anchors):
            K[i, j] = torch.exp(-0.5 * omega**2 * (z - other).square().sum())
        for j, cell in enumerate(cells):
            k[i, j] = torch.exp(-0.5 * omega**2 * (z - cell).square().sum())
    return torch.linalg.inv(K + basis.noise**2 * torch.eye(len(anchors), dtype=torch.float64)) @ k


def cells_of(*axes):
    return torch.cartesian_prod(*(torch.tensor(axis, dtype=torch.float64) for axis in axes)).reshape(-1, len(axes))


@pytest.mark.parametrize("grid", [(7,), (3, 3), (2, 5), (16, 16), (3, 3, 3), (1, 1)])
def test_anchors_on_the_grid_give_dense_weights_back(grid):
    basis = RadialBasis(grid).double()
    assert_close(basis.matrix(), torch.eye(len(basis.locations), dtype=torch.float64), rtol=0, atol=1e-12)
    assert_close(RadialBasis(grid, 1.0).matrix(), RadialBasis(grid).matrix())


@pytest.mark.parametrize("learned", [{}, {"learn_lengthscale": True}, {"learn_locations": True}])
def test_it_is_the_regression_from_anchors_to_cells(learned):
    basis = RadialBasis((2, 3), 4, omega=0.7, **learned).double()
    assert basis.noise == (0.01 if learned else 0.0)
    assert_close(basis.matrix().detach(), formula(basis, cells_of([-0.5, 0.5], [-1, 0, 1])))


@pytest.mark.parametrize(("grid", "anchors", "count"), [((3, 3), 0.5, 4), ((1, 1), 0.5, 1), ((32, 32), 0.5, 512), ((4,), 3, 3)])
def test_anchors_are_counted_as_in_the_paper_and_keep_apart(grid, anchors, count):
    locations = RadialBasis(grid, anchors).locations
    assert len(locations) == count
    assert_close(locations[0], torch.zeros(len(grid)))
    assert (locations.abs() <= (torch.tensor(grid) - 1) / 2).all()
    if count > 1:
        nearest = torch.cdist(locations, locations).fill_diagonal_(torch.inf).min()
        spacing = (torch.tensor(grid) - 1).prod().item() / count
        assert nearest > 0.5 * spacing ** (1 / len(grid))


@pytest.mark.parametrize(
    ("grid", "anchors", "count", "farthest"),
    [
        ((3, 3), 5, 5, 1),
        ((3, 3), 0.8, 7, 1),
        ((2, 2), 2, 2, 1),
        ((5,), 5, 5, 0),
        ((3, 3, 3), 0.5, 14, 1),
        ((2, 32), 0.5, 32, 2**0.5),
    ],
)
def test_anchors_without_room_are_cells_and_leave_none_alone(grid, anchors, count, farthest):
    basis, cells = RadialBasis(grid, anchors), RadialBasis(grid).locations
    is_anchor = (cells[:, None] == basis.locations).all(-1).any(1)
    assert is_anchor.sum() == len(basis.locations) == count
    assert is_anchor[cells.norm(dim=1).argmin()]
    assert torch.cdist(cells, basis.locations).amin(1).max() <= farthest
    assert_close(basis.matrix()[:, is_anchor], torch.eye(len(basis.locations)), rtol=0, atol=1e-5)


def test_it_is_made_without_memory():
    with torch.device("meta"):
        basis, spread = RadialBasis((3, 3), 7), RadialBasis((3, 3), 4)
    assert basis.matrix().is_meta
    assert [basis.matrix().shape, spread.matrix().shape] == [(7, 9), (4, 9)]


def test_a_row_of_cells_has_room_along_it():
    along = RadialBasis((1, 9), 0.5).locations[:, 1].sort().values
    assert along.diff().min() > 1
    assert along.frac().any()


def test_its_slope_is_the_derivative_in_omega():
    basis = RadialBasis((3, 4), 0.5, learn_lengthscale=True, omega=0.6).double()
    wanted = jacrev(lambda omega: functional_call(basis, {"omega": omega}, ()))
    basis.forward = basis.matrix
    assert_close(basis.slope(), wanted(basis.omega.detach())[..., 0])
    assert not basis.slope().requires_grad


@pytest.mark.parametrize("omega", [0.6, 0.05, 0.0, -0.8])
def test_in_training_value_and_gradient_are_the_same(omega):
    basis = RadialBasis((3, 4), 0.5, learn_lengthscale=True, omega=omega).double()
    seen = torch.randn(6, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (exact,) = torch.autograd.grad((basis.eval().matrix() * seen).square().sum(), basis.omega)
    ours = basis.train().matrix()
    assert_close(ours, basis.eval().matrix(), rtol=1e-9, atol=1e-11)
    (found,) = torch.autograd.grad((ours * seen).square().sum(), basis.omega, create_graph=True)
    assert_close(found.detach(), exact, rtol=1e-7, atol=1e-9)
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        found.sum().backward()


def test_in_training_second_derivatives_of_functional_calls_are_exact():
    basis = RadialBasis((3, 4), 0.5, learn_lengthscale=True, omega=0.6).double()
    basis.forward = basis.matrix

    def energy(omega):
        return functional_call(basis, {"omega": omega}, ()).square().sum()

    at = basis.omega.detach()
    found = {mode: (hessian(energy)(at), jacfwd(energy)(at)) for mode in (True, False) if basis.train(mode) is basis}
    assert_close(found[True], found[False])
    assert found[True][0].abs() > 1
    inputs = torch.randn(5, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis.train()
    assert_close(vmap(lambda one: basis.matrix() @ one)(inputs), inputs @ basis.matrix().T)


def test_a_singular_basis_is_not_finite_in_training_either():
    basis = RadialBasis((8, 8), learn_lengthscale=True, omega=0.1, noise=0.0)
    assert basis.train().matrix().isnan().all()


def test_what_is_learned_is_differentiable_in_every_mode():
    basis = RadialBasis((3, 3), 4, learn_lengthscale=True, learn_locations=True).double()
    basis.forward = basis.matrix

    def matrix(omega, locations):
        return functional_call(basis, {"omega": omega, "locations": locations}, ())

    point = tuple(p.detach() for p in (basis.omega, basis.locations))
    assert torch.autograd.gradcheck(matrix, tuple(p.clone().requires_grad_() for p in point), check_forward_ad=True)
    assert_close(jacfwd(matrix, (0, 1))(*point), jacrev(matrix, (0, 1))(*point))
    many = torch.tensor([[0.5], [1.0]], dtype=torch.float64)
    assert_close(vmap(matrix, (0, None))(many, point[1])[1], matrix(many[1], point[1]))


def test_the_kept_matrix_follows_types_copies_and_loading():
    basis = RadialBasis((4, 4), 0.5)
    assert basis.matrix() is basis.matrix()
    exact = RadialBasis((4, 4), 0.5).double()
    assert_close(basis.double().matrix(), exact.matrix(), rtol=0, atol=0)
    other = RadialBasis((4, 4), 0.5, omega=0.5).double()
    copied = deepcopy(basis)
    copied.load_state_dict(other.state_dict())
    assert_close(copied.matrix(), other.matrix(), rtol=0, atol=0)
    assert_close(basis.matrix(), exact.matrix(), rtol=0, atol=0)
    assert set(basis.state_dict()) == {"omega", "locations"}


def test_without_omega_weights_are_the_same_everywhere():
    basis = RadialBasis((5, 4), 0.5, learn_lengthscale=True, omega=0.0).double()
    matrix = basis.matrix().detach()
    assert_close(matrix, torch.full_like(matrix, 1 / (10 + 1e-4)))


def test_a_single_cell_has_no_shape_to_learn():
    assert list(RadialBasis((1, 1), 0.5, learn_lengthscale=True, learn_locations=True).parameters()) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RadialBasis((2, 2, 2, 2)), r"must have 1, 2 or 3 axes of at least one cell, got \(2, 2, 2, 2\)"),
        (lambda: RadialBasis((0, 3)), "at least one cell"),
        (lambda: RadialBasis((3, 3), 10), "anchors must be at least 1 and at most the 9 cells, got 10"),
        (lambda: RadialBasis((3, 3), 0), "at most the 9 cells, got 0"),
        (lambda: RadialBasis((3, 3), 1.5), "share of the cells must lie above 0 and be at most 1, got 1.5"),
        (lambda: RadialBasis((3, 3), omega=0.0), "with omega=0 and noise=0.0 their covariance is singular"),
        (lambda: RadialBasis((8, 8), omega=0.1), "with omega=0.1 and noise=0.0 their covariance is singular"),
    ],
)
def test_what_cannot_be_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_it_takes_the_default_type_and_survives_an_empty_state():
    torch.set_default_dtype(torch.float64)
    try:
        assert RadialBasis((3, 3), 4).matrix().dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    basis, other = RadialBasis((3, 3), 4, omega=0.7), RadialBasis((3, 3), 4)
    other.to_empty(device="cpu").load_state_dict(basis.state_dict())
    assert_close(other.matrix(), basis.matrix())
