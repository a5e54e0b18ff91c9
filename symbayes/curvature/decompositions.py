"""Decompositions of all factors of a model at once: by a GPU, by threads of the CPU, by processes that train together."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.curvature.blocks import Block, Factor, Solution, eigendecompose
from symbayes.processes import ALONE, Processes


def negligible(blocks: Mapping[str, Block], precisions: Mapping[str, Tensor]) -> set[str]:
    """Names of blocks that are not decomposed yet, and need not be: so far below the precision that their series is exact.

    With λ ≤ ‖H‖, what it leaves out is below (‖H‖/δ)² of the sum. A GPU is waited for once.
    """
    left = {name: block for name, block in blocks.items() if any(_open_factors(block))}
    if not left:
        return set()
    ratios = torch.stack([block.norm / precisions[name].detach() for name, block in left.items()])
    try:
        small = (ratios < sqrt(torch.finfo(ratios.dtype).eps)).tolist()
    except RuntimeError:  # under vmap there are no values to compare
        return set()
    return {name for name, is_small in zip(left, small, strict=True) if is_small}


def decompose_under(
    blocks: Mapping[str, Block],
    precisions: Mapping[str, Tensor],
    *,
    vectors: bool = False,
    up_to: int | None = None,
    dtype: torch.dtype | None = None,
    processes: Processes = ALONE,
) -> set[str]:
    """Decompose all blocks but those that are negligible under these precisions, as `decompose` does; the names of these."""
    left = negligible(blocks, precisions)
    used = (block for name, block in blocks.items() if name not in left)
    decompose(used, vectors=vectors, up_to=up_to, dtype=dtype, processes=processes)
    return left


def decompose(
    blocks: Iterable[Block],
    *,
    vectors: bool = False,
    up_to: int | None = None,
    dtype: torch.dtype | None = None,
    processes: Processes = ALONE,
) -> None:
    """Decompose factors that are not yet, those of one size together: on a GPU many small matrices cost hardly more than one.

    Those of middling size on a GPU, and some larger ones, go to threads of the CPU, while the GPU decomposes the others.

    Args:
        blocks: Whose factors.
        vectors: Whether eigenvectors are found, too.
        up_to: The largest size of factors to decompose; all when None.
        dtype: In which; that of the factors when None.
        processes: That have the same factors, and call this alike: each decomposes its share of those that take long.
    """
    found: dict[int, Factor] = {}
    for block in blocks:
        for factor in _open_factors(block, vectors=vectors):
            if up_to is None or factor.matrices.shape[1] <= up_to:
                found[id(factor)] = factor
    every = list(found.values())
    owners = _owners(every, processes.count)
    try:
        with processes.together():
            _solve([factor for factor in every if owners.get(id(factor), processes.rank) == processes.rank], vectors, dtype)
    except Exception:
        for factor in every:  # or some processes would have what others have not
            for name in ("eigenvalues", "eigenvectors"):
                vars(factor).pop(name, None)
        raise
    if owners:
        _exchange([(factor, owners[id(factor)]) for factor in every if id(factor) in owners], vectors, processes)


#: Features from which on factors are shared out: what processes would send takes longer for smaller ones.
_WORTH_SENDING = 128


def _owners(factors: Sequence[Factor], count: int) -> dict[int, int]:
    """Which of so many processes decomposes a factor, by its identity; none of those that all of them decompose."""
    if count == 1:
        return {}
    worth = [each for each in factors if each.matrices.shape[1] >= _WORTH_SENDING and not each.matrices.requires_grad]
    taken, owners = [0] * count, {}
    for factor in sorted(worth, key=_work, reverse=True):
        owners[id(factor)] = least = taken.index(min(taken))
        taken[least] += _work(factor)
    return owners


def _work(factor: Factor) -> int:
    return int(len(factor.matrices) * factor.matrices.shape[1] ** 3)


def _exchange(owned: Sequence[tuple[Factor, int]], vectors: bool, processes: Processes) -> None:
    """Give every process what the owner of each factor has found: the sum of that and of zeros."""
    wanted = ["eigenvalues", *(["eigenvectors"] if vectors else [])]
    sent: list[Tensor] = []
    for factor, owner in owned:
        zeros = {"eigenvalues": torch.zeros_like(factor.matrices[..., 0]), "eigenvectors": torch.zeros_like(factor.matrices)}
        found = vars(factor) if owner == processes.rank else zeros
        sent += [found[name].detach().contiguous() for name in wanted]  # of matrices without a graph
    received = iter(processes.sum(sent))
    for factor, _ in owned:
        for name in wanted:
            vars(factor)[name] = next(received)


def _solve(every: Sequence[Factor], vectors: bool, dtype: torch.dtype | None) -> None:
    by_size: dict[tuple[Any, ...], list[Factor]] = {}
    for factor in every:
        by_size.setdefault((factor.matrices.shape[1], factor.matrices.dtype, factor.matrices.device), []).append(factor)
    solve = partial(eigendecompose, vectors=vectors, dtype=dtype)
    aside: list[list[Factor]] = []
    others: list[list[Factor]] = []
    for (size, _, device), factors in by_size.items():
        has_graph = any(factor.matrices.requires_grad for factor in factors)
        taken, rest = _divided(factors, 0.0 if has_graph else _share(size, device))
        aside += [taken] if taken else []
        others += [rest] if rest else []
    with _in_threads(aside, solve) as running:
        for factors in others:
            _keep(factors, *solve(*_stacked(factors)))
        for factors, futures in zip(aside, running, strict=True):
            device, solved = factors[0].matrices.device, [future.result() for future in futures]
            values = torch.cat([part.to(device) for part, _ in solved])
            found = [part.to(device) for _, part in solved if part is not None]
            _keep(factors, values, torch.cat(found) if found else None)


#: Sizes of matrices that torch solves one after the other on a GPU, and threads of the CPU sooner (an H200, torch 2.11).
_MIDDLING = range(33, 513)
#: Larger ones, which a GPU solves one after the other as quickly as so many cores.
_LARGER, _CORES_OF_A_GPU = range(513, 1025), 10
#: That decompose at a time, at most.
_MOST_THREADS = 16


def _share(size: int, device: torch.device) -> float:
    """How many of the matrices of a size threads of the CPU decompose, so that both have done sooner."""
    if device.type != "cuda" or size not in range(_MIDDLING.start, _LARGER.stop):
        return 0.0
    return 1.0 if size in _MIDDLING else _cores() / (_cores() + _CORES_OF_A_GPU)


def _divided(factors: Sequence[Factor], share: float) -> tuple[list[Factor], list[Factor]]:
    """Factors with no more than a share of all matrices, and the others."""
    left = share * sum(len(factor.matrices) for factor in factors)
    taken: list[Factor] = []
    for factor in factors:
        if len(factor.matrices) <= left:
            taken.append(factor)
            left -= len(factor.matrices)
    chosen = {id(factor) for factor in taken}
    return taken, [factor for factor in factors if id(factor) not in chosen]


def _cores() -> int:
    """Those that this process may use, as far as there are threads for them."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, _MOST_THREADS)


@contextmanager
def _in_threads(
    groups: Sequence[Sequence[Factor]], solve: Callable[[Tensor, str], Solution]
) -> Iterator[list[list[Future[Solution]]]]:
    """Solutions of groups of factors, in pieces and on the CPU, that threads find in the meantime."""
    if not groups:
        yield []
        return
    count, threads = _cores(), torch.get_num_threads()
    try:
        # One thread of torch in each, or they are in each other's way. This thread copies: others have other streams.
        with ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            yield [
                [pool.submit(solve, piece, names) for piece in stack.cpu().chunk(count)]
                for stack, names in map(_stacked, groups)
            ]
    finally:
        torch.set_num_threads(threads)  # what later threads begin with; that of this one has not changed


def _stacked(factors: Sequence[Factor]) -> tuple[Float[Tensor, "block d d"], str]:
    """Matrices of factors as one stack, and the names of all."""
    names = ", ".join(dict.fromkeys(factor.name for factor in factors))
    return torch.cat([factor.matrices for factor in factors]), names


def _keep(factors: Sequence[Factor], values: Float[Tensor, "block d"], vectors: Float[Tensor, "block d d"] | None) -> None:
    """Give every factor its own part of a stack that is decomposed."""
    counts = [len(factor.matrices) for factor in factors]
    for factor, own in zip(factors, values.split(counts), strict=True):
        vars(factor)["eigenvalues"] = own
    if vectors is not None:
        for factor, own in zip(factors, vectors.split(counts), strict=True):
            vars(factor)["eigenvectors"] = own


def _open_factors(block: Block, *, vectors: bool = False) -> Iterator[Factor]:
    """Those that are not decomposed yet, or only without vectors."""
    for part in vars(block).values():
        if not isinstance(part, Factor) or part.diagonal:
            continue
        if "eigenvalues" not in vars(part) or (vectors and "eigenvectors" not in vars(part)):
            yield part
