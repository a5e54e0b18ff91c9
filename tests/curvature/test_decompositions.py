"""Factors decomposed together: as one by one, at any scale; and what is said where that fails."""

import threading

import pytest
import torch
from torch.testing import assert_close

from symbayes.curvature import decompositions as solvers
from symbayes.curvature.blocks import DenseBlock, Factor, KroneckerBlock, cholesky
from symbayes.curvature.decompositions import decompose, negligible
from symbayes.curvature.rule import BlockCurvature
from symbayes.errors import NotFiniteError
from tests.replays import on_a_card


def factor(count, size, generator, scale=1.0):
    root = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    return Factor(scale * root @ root.mT, False, "weight")


def test_factors_of_one_size_are_decomposed_as_one_by_one(generator):
    factors = [factor(2, 5, generator), factor(1, 5, generator, 1e-30), factor(1, 3, generator)]
    decompose([DenseBlock(one) for one in factors], vectors=True, up_to=4)
    assert [set(vars(one)) & {"eigenvalues", "eigenvectors"} for one in factors] == [
        set(),
        set(),
        {"eigenvalues", "eigenvectors"},
    ]
    decompose([DenseBlock(one) for one in factors])
    for one in factors:
        assert_close(one.eigenvalues, torch.linalg.eigvalsh(one.matrices), rtol=1e-8, atol=0.0)
    assert "eigenvectors" not in vars(factors[0])
    vectors, values = vars(factors[2])["eigenvectors"], factors[2].eigenvalues
    assert_close(vectors @ torch.diag_embed(values) @ vectors.mT, factors[2].matrices)


def test_a_matrix_of_zeros_has_the_unit_vectors():
    nothing = Factor(torch.zeros(1, 3, 3), False, "weight")
    decompose([DenseBlock(nothing)], vectors=True)
    assert_close(nothing.eigenvalues, torch.zeros(1, 3))
    assert_close(nothing.eigenvectors, torch.eye(3)[None])


def test_eigenvectors_have_the_sign_that_no_solver_chooses(generator, monkeypatch):
    """Random vectors in an eigenbasis, and so an evidence, would be others where a solver turns one over."""
    one, solve = factor(2, 5, generator), torch.linalg.eigh
    wanted = Factor(one.matrices, False, "weight").eigenvectors
    signs = torch.tensor([1.0, -1.0, -1.0, 1.0, -1.0], dtype=torch.float64)

    def turned_over(matrices):
        values, vectors = solve(matrices)
        return torch.return_types.linalg_eigh((values, vectors * signs))

    monkeypatch.setattr(torch.linalg, "eigh", turned_over)
    assert_close(Factor(one.matrices, False, "weight").eigenvectors, wanted, rtol=0, atol=0)
    decompose([DenseBlock(one)], vectors=True)
    assert_close(one.eigenvectors, wanted)


def test_what_is_no_number_is_said_with_its_name():
    with pytest.raises(
        NotFiniteError, match=r"The curvature of 'block1.weight' could not be decomposed: its entries reach nan"
    ):
        decompose([DenseBlock(Factor(torch.full((1, 3, 3), torch.nan), False, "block1.weight"))])


def test_an_error_says_what_the_solver_said(monkeypatch, generator):
    def stuck(matrices):
        raise torch.linalg.LinAlgError("The algorithm failed to converge.\nAnd more.")

    def silent(matrices):
        raise RuntimeError

    monkeypatch.setattr(torch.linalg, "eigvalsh", silent)
    with pytest.raises(NotFiniteError, match="the solver says ''"):
        decompose([DenseBlock(factor(1, 3, generator))])
    monkeypatch.setattr(torch.linalg, "eigvalsh", stuck)
    with pytest.raises(NotFiniteError, match=r"the solver says 'The algorithm failed to converge\.'\. Check"):
        decompose([DenseBlock(factor(1, 3, generator))])


def test_vectors_that_are_not_at_right_angles_are_found_again(monkeypatch, generator):
    """As a GPU gives them in single precision, where one eigenvalue is nearly all of the trace."""
    solve, asked = torch.linalg.eigh, []

    def poor(matrices):
        asked.append(matrices.dtype)
        values, vectors = solve(matrices)
        return torch.return_types.linalg_eigh((values, vectors * (1.5 if matrices.dtype == torch.float32 else 1.0)))

    monkeypatch.setattr(torch.linalg, "eigh", poor)
    one = Factor(factor(1, 4, generator).matrices.float(), False, "weight")
    decompose([DenseBlock(one)], vectors=True)
    assert asked == [torch.float32, torch.float64]
    assert one.eigenvectors.dtype == torch.float32
    assert_close(one.eigenvectors.mT @ one.eigenvectors, torch.eye(4)[None])
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrices: (torch.ones(1, 4), torch.ones(1, 4, 4)))
    with pytest.raises(NotFiniteError, match="eigenvectors that are not at right angles"):
        decompose([DenseBlock(factor(1, 4, generator))], vectors=True)


@on_a_card
def test_nearly_all_of_the_trace_in_one_eigenvalue_is_decomposed_on_a_gpu(generator):
    mean = 1 + 0.1 * torch.rand(720, generator=generator)
    rows = (mean + 1e-3 * torch.randn(2000, 720, generator=generator)).relu()
    moment = (rows.T @ rows)[None].cuda()
    one, beside = Factor(moment, False, "weight"), [Factor(moment[:, :n, :n].clone(), False, "other") for n in (360, 180)]
    decompose([DenseBlock(each) for each in (one, *beside)], vectors=True)
    vectors, values = one.eigenvectors[0].double(), one.eigenvalues[0].double()
    assert_close(vectors.mT @ vectors, torch.eye(720, device="cuda", dtype=torch.float64), rtol=0, atol=1e-4)
    assert_close((vectors * values) @ vectors.mT, moment[0].double(), rtol=0, atol=1e-4 * float(moment.max()))


def test_a_want_of_memory_is_not_taken_for_a_bad_matrix(monkeypatch, generator):
    def full(matrices):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.linalg, "eigvalsh", full)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        decompose([DenseBlock(factor(1, 3, generator))])


def kinds(dtype):
    """A block of every kind that has to be decomposed."""
    generator = torch.Generator().manual_seed(0)
    shared, rows, own = (Factor(factor(*shape, generator).matrices.to(dtype), False, "w") for shape in ((1, 4), (3, 5), (2, 6)))
    diagonal = Factor(torch.rand(3, 5, generator=generator, dtype=dtype), True, "w")
    return {
        "kronecker": KroneckerBlock(shared, rows),
        "half": KroneckerBlock(shared, diagonal, transposed=True),
        "dense": DenseBlock(own),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.99, 1e-3])
def test_where_the_curvature_is_faint_a_series_is_as_exact_as_eigenvalues(dtype, share):
    blocks, eps = kinds(dtype), torch.finfo(dtype).eps
    # Precisions at which the norm is just below the bound, or far.
    precisions = {name: block.squares.sqrt() / (share * eps**0.5) for name, block in blocks.items()}
    curvature = BlockCurvature(blocks, torch.zeros(()), "by hand", None)
    assert negligible(blocks, precisions) == set(blocks)
    effective, log_det = curvature.effective(precisions), curvature.log_det(precisions)
    assert not any("eigenvalues" in getattr(part, "__dict__", {}) for block in blocks.values() for part in vars(block).values())
    logs = torch.zeros((), dtype=torch.float64)
    for name, block in kinds(dtype).items():
        ratios = block.eigenvalues.double() / precisions[name].double()
        assert_close(effective[name].double(), (ratios / (1 + ratios)).sum(), rtol=20 * eps, atol=0.0)
        logs += ratios.log1p().sum()
    assert_close(log_det.double(), logs, rtol=20 * eps, atol=0.0)


def test_what_is_not_faint_is_decomposed_and_slopes_are_the_same(generator):
    blocks = kinds(torch.float64)
    weak = {name: block.squares.sqrt() * 1e9 for name, block in blocks.items()}
    precisions = {
        name: value.clone().requires_grad_() for name, value in (weak | {"dense": torch.tensor(2.0).double()}).items()
    }
    assert negligible(blocks, precisions) == {"kronecker", "half"}
    BlockCurvature(blocks, torch.zeros(()), "by hand", None).log_det(precisions).backward()
    assert "eigenvalues" in vars(blocks["dense"].H)
    for name, precision in precisions.items():  # ∂ log|I + H/δ| / ∂δ = −γ/δ
        wanted = -kinds(torch.float64)[name].effective(precision.detach()) / precision.detach()
        assert_close(precision.grad, wanted, rtol=1e-12, atol=0.0)
    assert negligible(blocks, {name: torch.tensor(torch.nan) for name in blocks}) == set()


def test_log_determinants_of_many_precisions_go_at_once():
    grid = torch.tensor([0.1, 1.0, 1e12], dtype=torch.float64)
    curvature = BlockCurvature(kinds(torch.float64), torch.zeros(()), "by hand", None)
    found = torch.vmap(lambda precision: curvature.log_det(dict.fromkeys(curvature.blocks, precision)))(grid)
    one_by_one = BlockCurvature(kinds(torch.float64), torch.zeros(()), "by hand", None)
    wanted = [one_by_one.log_det(dict.fromkeys(one_by_one.blocks, precision)) for precision in grid]
    assert_close(found, torch.stack(wanted))


@pytest.mark.parametrize("entries", [[[1.0, 2.0], [2.0, 1.0]], [[torch.inf, 0.0], [0.0, 1.0]]])
def test_a_factor_of_what_is_not_positive_or_not_finite_is_refused(entries):
    assert_close(cholesky(torch.tensor([[4.0, 2.0], [2.0, 2.0]])), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    with pytest.raises(NotFiniteError, match="must be on scales that double precision can add up"):
        cholesky(torch.tensor(entries))


def test_vectors_that_are_not_at_right_angles_are_found_again_in_double_precision(monkeypatch, generator):
    rightly = torch.linalg.eigh

    def doubtful(matrices):
        values, vectors = rightly(matrices)
        return values, vectors if matrices.dtype == torch.float64 else vectors.roll(1, 1) + vectors

    monkeypatch.setattr(torch.linalg, "eigh", doubtful)
    found = Factor(factor(2, 4, generator).matrices.float(), False, "weight")
    decompose([DenseBlock(found)], vectors=True)
    assert_close(found.eigenvectors @ torch.diag_embed(found.eigenvalues) @ found.eigenvectors.mT, found.matrices)


@pytest.fixture
def in_threads(monkeypatch):
    """Matrices of the CPU go the way of those of a GPU, in three pieces; of the largest ones half."""
    monkeypatch.setattr(solvers, "_share", lambda size, device: 0.0 if size <= 32 else 0.6 if size == 90 else 1.0)
    monkeypatch.setattr(solvers, "_cores", lambda: 3)


def middling(dtype):
    """Matrices of two sizes that go to threads, one of zeros and one nearly so among them, and of one that does not."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 40, 1.0), (1, 90, 1.0), (4, 6, 1.0), (1, 40, 0.0), (2, 40, 1e-30), (1, 40, 1.0), (1, 90, 1.0))
    return [
        Factor(factor(*shape[:2], generator, shape[2]).matrices.to(dtype), False, f"w{i}") for i, shape in enumerate(shapes)
    ]


def test_middling_matrices_of_a_gpu_go_to_threads_and_of_larger_ones_a_share(monkeypatch):
    monkeypatch.setattr(solvers, "_cores", lambda: 10)
    sizes = (6, 32, 33, 512, 513, 1024, 1025)
    assert [solvers._share(size, torch.device("cuda", 0)) for size in sizes] == [0, 0, 1, 1, 0.5, 0.5, 0]
    assert not any(solvers._share(size, torch.device("cpu")) for size in sizes)
    monkeypatch.undo()
    assert 1 <= solvers._cores() <= solvers._MOST_THREADS


def test_factors_are_divided_by_how_many_matrices_they_have(generator):
    factors = [factor(count, 3, generator) for count in (3, 1, 4, 2)]
    for share, taken in ((0.0, []), (0.25, [1]), (0.5, [0, 1]), (0.6, [0, 1, 3]), (1.0, [0, 1, 2, 3])):
        aside, others = solvers._divided(factors, share)
        assert [next(i for i, own in enumerate(factors) if own is some) for some in aside] == taken
        assert len(aside) + len(others) == 4


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(
    ("dtype", "begin", "tolerance"),
    [(torch.float64, None, 1e-10), (torch.float32, None, 1e-5), (torch.float32, torch.float64, 1e-5)],
)
def test_threads_find_what_is_found_without_them(monkeypatch, in_threads, dtype, begin, tolerance, vectors):
    found, wanted = middling(dtype), middling(dtype)
    decompose([DenseBlock(one) for one in found], vectors=vectors, dtype=begin)
    monkeypatch.undo()
    decompose([DenseBlock(one) for one in wanted], vectors=vectors, dtype=begin)
    for one, other in zip(found, wanted, strict=True):
        size = one.matrices.abs().max().clamp(min=1e-35)
        values = vars(one)["eigenvalues"]
        assert_close(values / size, vars(other)["eigenvalues"] / size, rtol=0, atol=tolerance)
        exact = torch.linalg.eigvalsh(one.matrices.double())
        assert_close(values.double() / size, exact / size, rtol=0, atol=100 * tolerance)
        assert ("eigenvectors" in vars(one)) == vectors
        if vectors:
            U = vars(one)["eigenvectors"]
            assert U.dtype == dtype
            assert_close((U * values[:, None]) @ U.mT / size, one.matrices / size, rtol=0, atol=tolerance)
    if vectors:
        assert_close(vars(found[3])["eigenvectors"], torch.eye(40, dtype=dtype)[None])


@pytest.mark.parametrize("is_bad", [False, True])
def test_threads_have_one_thread_of_torch_each_and_leave_the_others_as_they_were(monkeypatch, in_threads, is_bad):
    seen, rightly, before = {}, torch.linalg.eigvalsh, torch.get_num_threads()

    def watched(matrices):
        seen.setdefault((matrices.shape[1], threading.current_thread() is threading.main_thread()), set()).add(
            torch.get_num_threads()
        )
        return rightly(matrices)

    monkeypatch.setattr(torch.linalg, "eigvalsh", watched)
    found, later = middling(torch.float64), []
    if is_bad:
        found[0].matrices[3] = torch.nan
    torch.set_num_threads(2)
    try:
        if is_bad:
            with pytest.raises(NotFiniteError, match=r"The curvature of 'w0, w3, w4, w5' could not be .* entries reach nan"):
                decompose([DenseBlock(one) for one in found])
        else:
            decompose([DenseBlock(one) for one in found])
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert [torch.get_num_threads(), *later] == [2, 2]
    finally:
        torch.set_num_threads(before)
    assert seen == {(40, False): {1}, (90, False): {1}, (90, True): {2}, (6, True): {2}}


def test_what_is_to_be_differentiated_stays_where_it_is(monkeypatch, in_threads, generator):
    monkeypatch.setattr(solvers, "ThreadPoolExecutor", None)
    one, constant = factor(2, 40, generator), factor(1, 40, generator)
    one.matrices.requires_grad_()
    decompose([DenseBlock(one), DenseBlock(constant)])
    one.eigenvalues.sum().backward()
    assert_close(one.matrices.grad, torch.eye(40, dtype=torch.float64).expand(2, 40, 40))
