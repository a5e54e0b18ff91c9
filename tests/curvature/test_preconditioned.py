"""The full GGN by preconditioned products, against the dense one in double precision."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.curvature import lanczos
from symbayes.curvature.blocks import Factor, KroneckerBlock
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.ggn import Ggn
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos, Preconditioned
from symbayes.curvature.rule import log_det_of
from symbayes.data.source import TensorSource
from symbayes.layers.conv import ConvPath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.likelihoods.classes import Categorical
from symbayes.priors import TensorwisePrior
from tests.small import load_few


@pytest.fixture(scope="module")
def problem():
    """A relaxed network, a little trained, its data, its precisions, and the dense GGN."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 2, 4, 4, generator=generator, dtype=torch.float64)
    targets = torch.arange(40) % 3
    paths = {
        "conv": ConvPath(2, 3, (3, 3), stride=2, generator=generator),
        "factored": FactoredPath((2, 4, 4), (3, 2, 2), generator=generator),
    }
    head = nn.Linear(12, 3)
    nn.init.uniform_(head.weight, -1, 1, generator=generator)
    nn.init.zeros_(head.bias)
    model = nn.Sequential(RelaxedLayer(paths, stride=2), nn.Tanh(), nn.Flatten(), head).double()
    schedule = sb.Schedule(10, 128, 3e-3, warm_up=0.0)
    sb.fit(model, (inputs, targets), objective=sb.Map(sb.curvature.Diagonal()), schedule=schedule, progress=False)
    data = TensorSource(inputs, targets, torch.device("cpu"))
    prior = TensorwisePrior(model)
    with torch.no_grad():
        prior.log_precision.copy_(torch.rand(len(prior.groups), generator=generator) * 4 - 1)
        precisions = {name: precision.double() for name, precision in prior.precisions().items()}
        return model, data, precisions, Ggn().curvature(model, data, Categorical())


def found_by(rule, problem, seed=0):
    """Its curvature, with products by the dense matrix: they are compared elsewhere, and there are many here."""
    model, data, _, dense = problem
    with torch.no_grad():
        curvature = rule.curvature(model, data, Categorical(), generator=torch.Generator().manual_seed(seed))
    curvature.products = replace(curvature.products, product=lambda v: dense.H @ v)
    return curvature


def test_it_is_the_dense_answer_where_the_space_is_whole(problem):
    _, _, precisions, dense = problem
    curvature = found_by(Preconditioned(Kfac(), steps=400), problem)
    wanted = torch.linalg.inv(dense.H + torch.diag(curvature.products.expand(precisions)))
    ((x, z),) = curvature.pairs(precisions)
    delta = curvature.products.expand(precisions)
    assert_close(x, wanted @ (delta * z), rtol=1e-5, atol=1e-7)


def test_all_signs_of_a_basis_together_give_every_effective_parameter(problem):
    """Probes along all axes of the eigenbasis, for which z zᵀ adds up to the identity."""
    _, _, precisions, dense = problem
    curvature = found_by(Preconditioned(Kfac(), steps=1), problem)
    product, S = curvature._scale(precisions, curvature._near(precisions))
    root = curvature.products.expand(precisions).sqrt()
    axes = torch.eye(len(S), dtype=S.dtype)
    M = torch.stack([product(axis) for axis in axes])
    assert_close(M, M.T, rtol=1e-6, atol=1e-9)
    spent = 1 - root * S * torch.linalg.inv(M).diagonal() * S * root
    for name, part in curvature.products.split(spent).items():
        assert_close(part.sum(), dense.effective(precisions)[name], rtol=1e-6, atol=1e-8)
    beside = sum(block.log_det(precisions[name]) for name, block in curvature.blocks.items())
    assert_close(beside + torch.linalg.slogdet(M)[1], dense.log_det(precisions), rtol=1e-8, atol=0)


def test_it_is_right_on_average_over_probes(problem):
    _, _, precisions, dense = problem
    curvature = found_by(Preconditioned(Kfac(), steps=40, probes=20), problem)
    error = curvature.standard_error(precisions)
    assert error < 0.07 * float(dense.log_det(precisions))
    assert abs(float(curvature.log_det(precisions) - dense.log_det(precisions))) < 4 * error
    for name, wanted in dense.effective(precisions).items():
        assert abs(float(curvature.effective(precisions)[name] - wanted)) < 4 * (2 * float(wanted) / 20) ** 0.5 + 0.05


def test_the_sum_of_effective_parameters_comes_down_with_steps(problem):
    _, _, precisions, _ = problem
    delta = found_by(Preconditioned(Kfac(), 1), problem).products.expand(precisions)
    sums = []
    for steps in (1, 3, 10, 30, 60):
        held = found_by(Preconditioned(Kfac(), steps), problem).pairs(precisions)
        sums.append(len(delta) - float(sum((delta * x * z).sum() for x, z in held)))
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize("steps", [3, 6])
def test_blocks_save_the_first_steps(steps, problem):
    """The error that is left, against what the same probe says in the end; late steps are no better than without blocks."""
    _, _, precisions, _ = problem

    def error(build):
        found, final = (float(found_by(build(k), problem).log_det(precisions)) for k in (steps, 100))
        return abs(found - final)

    assert error(lambda k: Preconditioned(Kfac(), k)) < error(lambda k: Lanczos(1, k))


def test_exact_blocks_of_a_network_of_one_tensor_need_few_steps(generator):
    model = nn.Linear(4, 3, bias=False).double()
    inputs = torch.randn(20, 4, generator=generator, dtype=torch.float64)
    data = TensorSource(inputs, torch.arange(20) % 3, torch.device("cpu"))
    precisions = {name: precision.detach().double() for name, precision in TensorwisePrior(model, 3.0).precisions().items()}
    with torch.no_grad():
        dense = Ggn().curvature(model, data, Categorical())
        rule = Preconditioned(Ggn(joint=False), steps=5)
        curvature = rule.curvature(model, data, Categorical(), generator=generator)
    assert_close(curvature.log_det(precisions), dense.log_det(precisions), rtol=1e-3, atol=0)
    assert_close(curvature.effective(precisions), dense.effective(precisions), rtol=1e-3, atol=0)


def test_of_exact_blocks_no_less_is_taken_than_steps_can_make_good(problem):
    _, _, precisions, _ = problem
    small = {name: 1e-6 * precision for name, precision in precisions.items()}
    curvature = found_by(Preconditioned(Ggn(joint=False), steps=15), problem)
    share, _ = curvature._find_share(small)
    assert 0.003 <= share < 0.004  # a quarter of what there is would take less


def test_effective_parameters_are_no_more_than_weights(problem, monkeypatch):
    """Which solutions in single precision may say under precisions that are next to nothing."""
    _, _, precisions, _ = problem
    curvature = found_by(Lanczos(1, 3), problem)
    z = curvature.probes[0]
    monkeypatch.setattr(curvature, "pairs", lambda precisions: [(-10 * z, z)])
    sizes = curvature.products.sizes
    assert {name: float(gamma) for name, gamma in curvature.effective(precisions).items()} == pytest.approx(sizes)


def test_of_blocks_that_are_far_too_large_a_share_is_taken(problem, monkeypatch):
    """Whole, they would put all that is left of the matrix at the end of a long spectrum."""
    _, _, precisions, _ = problem

    def found(steps):
        curvature = found_by(Preconditioned(Kfac(), steps), problem)
        blocks = curvature.blocks.items()
        curvature.blocks = {
            name: replace(block, G=Factor(1e4 * block.G.matrices, block.G.diagonal, name))
            if isinstance(block, KroneckerBlock)
            else block
            for name, block in blocks
        }
        delta = curvature.products.expand(precisions)
        gamma = len(delta) - float(sum((delta * x * z).sum() for x, z in curvature.pairs(precisions)))
        return float(curvature.log_det(precisions)), gamma

    exact, share = found(400), found(8)
    monkeypatch.setattr(lanczos, "_solved", lambda beside, wanted: 1.0)
    whole = found(8)
    for by_share, by_whole, wanted in zip(share, whole, exact, strict=True):
        assert abs(by_share - wanted) < 0.5 * abs(by_whole - wanted)


def test_a_tensor_that_is_off_keeps_some_effective_parameters(problem):
    """Signs alone would say zero or less, and MacKay's update would then switch it on."""
    _, _, precisions, _ = problem
    off = {name: precision * 1e6 if "conv" in name else precision for name, precision in precisions.items()}
    curvature = found_by(Preconditioned(Kfac(), steps=10), problem)
    for name, gamma in curvature.effective(off).items():
        assert 0 < gamma < 2 * curvature.blocks[name].effective(off[name])


def switched_off(precisions):
    """Precisions under which the factored path is off."""
    return {name: precision * 1e15 if "factored" in name else precision for name, precision in precisions.items()}


def is_decomposed(block):
    return any("eigenvalues" in vars(part) or "eigenvectors" in vars(part) for part in factors_of(block))


def factors_of(block):
    return [part for part in vars(block).values() if isinstance(part, Factor)]


def test_blocks_of_a_path_that_is_off_are_not_decomposed_and_the_identity_still_holds(problem):
    """log|I + HΔ⁻¹| = log|I + KΔ⁻¹| + log|M| and γ, against the dense matrix and against all blocks decomposed."""
    _, _, precisions, dense = problem
    off = switched_off(precisions)
    curvature, slow = (found_by(Preconditioned(Kfac(), steps=400), problem) for _ in range(2))
    decompose(slow.blocks.values(), vectors=True)
    for found in (curvature, slow):
        near = found._near(off)
        product, S = found._scale(off, near)
        M = torch.stack([product(axis) for axis in torch.eye(len(S), dtype=S.dtype)])
        beside = sum(block.log_det(off[name]) for name, block in near.items())
        assert_close(beside + torch.linalg.slogdet(M)[1], dense.log_det(off), rtol=1e-10, atol=0)
    assert {name for name, block in curvature.blocks.items() if is_decomposed(block)} == {n for n in off if "factored" not in n}
    for name, gamma in slow.effective(off).items():
        assert_close(curvature.effective(off)[name], gamma, rtol=1e-6, atol=0)


def test_what_is_left_undecomposed_adds_next_to_nothing_to_the_error_of_a_probe(problem):
    """At most √2 ‖K_l‖ / δ_l for each such block: log M is that of K itself but for terms of second order."""
    model, data, precisions, _ = problem
    with torch.no_grad():
        blocks = Kfac().curvature(model, data, Categorical()).blocks
    K = torch.block_diag(*(block.dense() for block in blocks.values()))
    # Products with K: then M is the identity wherever K was decomposed, and all noise is of what was not.
    off = switched_off(precisions)
    curvature = found_by(Preconditioned(Kfac(), steps=60, probes=200), problem)
    assert list(curvature.blocks) == list(blocks)
    curvature.products = replace(curvature.products, product=lambda v: K @ v)
    bound = 2 * sum(float(block.norm / off[name]) ** 2 for name, block in blocks.items() if "factored" in name)
    assert 0 < bound < 1e-15
    assert float(curvature.log_dets(off).std()) < 1.2 * bound**0.5 + 1e-12
    assert_close(curvature.log_det(off), log_det_of(blocks, off), rtol=1e-10, atol=0)


def test_factors_of_one_size_are_decomposed_at_once_with_their_vectors(problem, monkeypatch):
    """Once for eigenvalues and eigenvectors, whatever is asked afterwards."""
    _, _, precisions, _ = problem
    curvature = found_by(Preconditioned(Kfac(), steps=3), problem)
    stacks, rightly = [], torch.linalg.eigh

    def counted(matrices):
        stacks.append(matrices.shape)
        return rightly(matrices)

    def never(matrices):
        raise AssertionError("eigenvalues come with vectors")

    monkeypatch.setattr(torch.linalg, "eigvalsh", never)
    monkeypatch.setattr("symbayes.curvature.blocks.torch.linalg.eigh", counted)
    decomposed = {id(part): part.matrices.shape for block in curvature.blocks.values() for part in factors_of(block)}
    curvature._near(precisions)
    assert len(stacks) == len({shape[1] for shape in decomposed.values()})
    assert sum(shape[0] for shape in stacks) == sum(shape[0] for shape in decomposed.values())
    curvature._near({name: 2 * precision for name, precision in precisions.items()})
    assert len(stacks) == len({shape[1] for shape in decomposed.values()})


def test_data_that_say_nothing_determine_nothing():
    model = nn.Linear(4, 3, bias=False).double()
    data = TensorSource(torch.zeros(5, 4, dtype=torch.float64), torch.arange(5) % 3, torch.device("cpu"))
    precisions = {"weight": torch.tensor(2.0, dtype=torch.float64)}
    with torch.no_grad():
        curvature = Preconditioned(Kfac(), steps=3).curvature(model, data, Categorical())
        assert_close(float(curvature.log_det(precisions)), 0.0)
        assert_close(float(curvature.effective(precisions)["weight"]), 0.0)


@pytest.mark.parametrize("base", [Kfac(), sb.curvature.Ekfac(), sb.curvature.Diagonal(), Ggn(joint=False)], ids=str)
def test_vectors_turn_into_the_eigenbasis_and_back(base, problem):
    model, data, _, _ = problem
    with torch.no_grad():
        blocks = base.curvature(model, data, Categorical()).blocks
    for block in blocks.values():
        H = block.dense()
        vector = torch.randn(len(H), generator=torch.Generator().manual_seed(2), dtype=H.dtype)
        assert_close(block.turn(block.turn(vector), back=True), vector)
        assert_close(block.turn(block.eigenvalues * block.turn(vector), back=True), H @ vector, rtol=1e-6, atol=1e-8)


def test_embeddings_turn_too(generator):
    model = nn.Sequential(nn.Embedding(7, 3), nn.Flatten(), nn.Linear(6, 2)).double()
    data = TensorSource(torch.randint(0, 7, (9, 2), generator=generator), torch.arange(9) % 2, torch.device("cpu"))
    with torch.no_grad():
        block = Kfac().curvature(model, data, Categorical()).blocks["0.weight"]
    vector = torch.randn(21, generator=generator, dtype=torch.float64)
    assert_close(block.turn(block.eigenvalues * block.turn(vector), back=True), block.dense() @ vector)
    assert_close(block.turn(block.turn(vector), back=True), vector)


def test_what_makes_no_sense_is_refused(problem):
    with pytest.raises(ValueError, match="at least one probe, for γ, too, and one step; got 1, None and 0"):
        Preconditioned(steps=0)
    with pytest.raises(ValueError, match="for γ, too, and one step; got 0, None and 20"):
        Preconditioned(probes=0)
    with pytest.raises(ValueError, match=r"must give blocks, got exact GGN \(full\). Use Kfac"):
        found_by(Preconditioned(Ggn()), problem)


def test_precisions_are_learned_with_it():
    task = load_few("placed-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(0))
    objective = sb.Laplace(Preconditioned(steps=3), hyper_every=1, damping=0.5, cool_down=0.2)
    result = sb.fit(model, task.train, objective=objective, epochs=3, progress=False)
    assert "preconditioned by KFAC" in str(result.history[-1].evidence.estimator)
    assert torch.isfinite(result.prior.log_precision).all()
