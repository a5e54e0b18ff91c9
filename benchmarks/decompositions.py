"""Decompositions by size: `python -m benchmarks.decompositions [--device cuda] [--row f-fc+conv] [--width 10] [--out FILE]`.

For every size of the factors of a row of Table 2, of which there are so many: milliseconds for all of them at once, of
eigenvalues, of eigenvectors, too, in single and double precision, and of Cholesky factors; on the device, and on one thread of
the CPU with the way there and back; and last, of `decompose` for all sizes. Torch solves stacks of matrices on a GPU one after
the other from some size on, which depends on its version.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from jaxtyping import Float
from rich.console import Console
from rich.table import Table
from torch import Tensor

from papers import runs as provenance
from papers.ella.rows import NETWORKS, TABLES
from symbayes.curvature.blocks import DenseBlock, Factor
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import as_source
from symbayes.data.task import Task
from symbayes.likelihoods.classes import Categorical

#: Random images by which factors get their sizes.
_IMAGES = 8
Stack = Float[Tensor, "block d d"]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decompositions", description=__doc__)
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--row", default="f-fc+conv", help="of Table 2")
    parser.add_argument("--width", type=int, default=TABLES["table2"].width)
    parser.add_argument("--repeats", type=int, default=3, help="of which the quickest counts")
    parser.add_argument("--out", type=Path, default=Path("decompositions.json"), help="where to write the figures")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(asked.device)
    stacks = [_stack(count, size, device) for size, count in sorted(_sizes(asked.row, asked.width).items())]
    found = {f"{len(stack)} of {stack.shape[1]}": dict(_measured(stack, asked.repeats)) for stack in stacks}
    together = {
        words: 1e3 * min(_seconds(partial(_decompose, stacks, vectors), device) for _ in range(asked.repeats + 1))
        for words, vectors in (("eigenvalues", False), ("vectors", True))
    }
    about = {"commit": provenance.commit(), "machine": provenance.machine(asked.device), "torch": torch.__version__}
    about |= {"row": asked.row, "width": asked.width}
    asked.out.write_text(json.dumps({"about": about, "milliseconds": found, "by decompose": together}, indent=2) + "\n")
    Console(width=140).print(_table(asked.row, found, together))


def _sizes(row: str, width: int) -> Counter[int]:
    """How many factors there are of each size."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(_IMAGES, 3, 32, 32, generator=generator), torch.arange(_IMAGES) % 10
    model = NETWORKS[row].build(Task("random images", images, images, 10), width, 0, equivariant_stride=False)
    with torch.no_grad():
        rule = Kfac(MonteCarloFisher())
        source = as_source(images, torch.device("cpu"))
        blocks = rule.curvature(model, source, Categorical(), generator=generator).blocks
    parts = {id(part): part for block in blocks.values() for part in vars(block).values() if isinstance(part, Factor)}
    sizes: Counter[int] = Counter()
    for factor in parts.values():
        if not factor.diagonal:
            sizes[factor.matrices.shape[1]] += len(factor.matrices)
    return sizes


def _stack(count: int, size: int, device: torch.device) -> Stack:
    """Second moments of twice as many random rows as there are features."""
    rows = torch.randn(count, size, 2 * size, generator=torch.Generator().manual_seed(size))
    return (rows @ rows.mT / (2 * size)).to(device)


def _measured(stack: Stack, repeats: int) -> Iterator[tuple[str, float]]:
    """Milliseconds by what is done."""
    ways: dict[str, Callable[[Stack], object]] = {
        "eigenvalues": torch.linalg.eigvalsh,
        "vectors": torch.linalg.eigh,
        "vectors, double": lambda matrices: torch.linalg.eigh(matrices.double()),
        "Cholesky": torch.linalg.cholesky,
    }
    if stack.is_cuda:
        ways["eigenvalues by the CPU"] = lambda matrices: torch.linalg.eigvalsh(matrices.cpu()).to(matrices.device)
        ways["vectors by the CPU"] = lambda matrices: [part.to(matrices.device) for part in torch.linalg.eigh(matrices.cpu())]
    for name, work in ways.items():
        work(stack)  # not counted: libraries are loaded, memory is found
        yield name, 1e3 * min(_seconds(partial(work, stack), stack.device) for _ in range(repeats))


def _decompose(stacks: Sequence[Stack], vectors: bool) -> None:
    """As the evidence does, for factors that nobody has decomposed."""
    decompose([DenseBlock(Factor(stack, diagonal=False, name="random")) for stack in stacks], vectors=vectors)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter() - started


def _table(row: str, found: dict[str, dict[str, float]], together: dict[str, float]) -> Table:
    table = Table(title=f"{NETWORKS[row].name}, milliseconds", title_justify="left")
    table.add_column("factors")
    names = list(next(iter(found.values())))
    for name in names:
        table.add_column(name, justify="right")
    for factors, times in found.items():
        table.add_row(factors, *(f"{times[name]:.1f}" for name in names))
    table.add_row("all", *(f"{sum(times[name] for times in found.values()):.0f}" for name in names))
    table.add_row("all, by decompose", *(f"{together[name]:.0f}" if name in together else "" for name in names))
    return table


if __name__ == "__main__":
    main()
