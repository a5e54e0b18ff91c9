"""What is trained by several processes and by one, to be compared; and what each of several processes does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.curvature import decompositions
from symbayes.curvature.blocks import DenseBlock, Factor
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.ggn import Ggn
from symbayes.layout import Hyperparameter
from symbayes.processes import all_processes
from symbayes.training.optimiser import PLAIN

SCHEDULE = sb.Schedule(epochs=4, batch_size=20)
#: Running factors from every batch, in the coordinates of the weights.
RUNNING = sb.Optimiser(1, eigenbasis=0)


def network(*, norm=False):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        norms = [nn.BatchNorm2d(4)] if norm else []
        layers = [nn.Conv2d(1, 4, 3, padding=1, bias=not norm), *norms, nn.Tanh(), nn.AvgPool2d(2), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(16, 3)).double()


def points(n=61):
    """The last batch of 20 would have a single datum, and of 58 a few more than processes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64)
    return x, (x.mean((1, 2, 3)) > 0).long() + (x[:, 0, 0, 0] > 0.5).long()


class Smoothed(nn.Module):
    """A network that sees as much of the mean of its input as a hyperparameter says."""

    def __init__(self):
        super().__init__()
        self.net, self.share = network(), Hyperparameter(torch.tensor([0.3], dtype=torch.float64))

    def forward(self, x):
        return self.net(x + self.share * (x.mean((2, 3), keepdim=True) - x))


def _fit(model, data=None, **settings):
    given = {"schedule": SCHEDULE, "seed": 3, "progress": False, **settings}
    return sb.fit(model, points() if data is None else data, **given)


def _noisy():
    x, y = points()
    targets = torch.stack([x.mean((1, 2, 3)), y.double()], 1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    generator = torch.Generator().manual_seed(2)
    for weight in net.parameters():
        weight.data.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) / 3)
    return _fit(net, (x, targets), likelihood=sb.Gaussian(), objective=sb.Laplace(sb.Kfac()), optimiser=PLAIN)


#: By name, what gives a result: of k processes as of one.
CASES = {
    "exact": lambda: _fit(network(), objective=sb.Laplace(sb.Kfac()), optimiser=RUNNING),
    "sampled": lambda: _fit(network(), objective=sb.Laplace(), optimiser=RUNNING),
    "few at the end": lambda: _fit(network(), points(63), objective=sb.Laplace(), optimiser=PLAIN),
    "augmented": lambda: _fit(network(), objective=sb.Map(), optimiser=RUNNING, augment=sb.FlipCrop(1)),
    "dataset": lambda: _fit(network(), _Pairs(*points()), objective=sb.Laplace(sb.Kfac()), optimiser=RUNNING),
    "batch norm": lambda: _fit(network(norm=True), objective=sb.Laplace(sb.Kfac()), optimiser=RUNNING),
    "noise": _noisy,
    "full": lambda: _fit(network(), objective=sb.Laplace(sb.Kfac(), final_rule=Ggn()), optimiser=RUNNING),
    "hyperparameter": lambda: _fit(Smoothed(), objective=sb.Laplace(sb.Kfac(), extent_share=0.5), optimiser=PLAIN),
    "preset": lambda: sb.fit(network(), points(), epochs=10, seed=3, progress=False),
}
#: Those that four processes train, too.
FOUR = ("sampled", "few at the end", "batch norm", "preset")


class _Pairs(TensorDataset):
    """No tensors to look into."""


def figures(result):
    """All that must be the same."""
    tensors = {**result.model.state_dict(), "log precision": result.prior.log_precision}
    tensors = {name: value.detach().double().clone() for name, value in tensors.items()}
    losses = [record.loss for record in result.history]
    return {**tensors, "evidence": torch.tensor([result.log_evidence, *losses], dtype=torch.float64)}


def _refusals(rank, folder):
    """What processes say to what they cannot train, by name."""
    wrong = points()
    wrong[0][41 if rank == 0 else 3] = math.nan  # not what others have
    apart = points()
    apart[0][5, 0, 0, 0] = math.inf  # in the share of one
    tries = {
        "other data": lambda: _fit(network(), wrong),
        "not finite": lambda: _fit(network(), apart),
        "loader": lambda: _fit(network(), DataLoader(TensorDataset(*points()), 20)),
        "wrapped": lambda: _fit(nn.Sequential(DistributedDataParallel(network()))),
        "small": lambda: _fit(network(), schedule=sb.Schedule(epochs=1, batch_size=2)),
        "norm": lambda: _fit(network(norm=True), points(62)),
        "drift": lambda: _fit(_Remembering(rank), objective=sb.Map()),
    }
    found = {}
    for name, attempt in tries.items():
        try:
            attempt()
            found[name] = "nothing"
        except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


class _Remembering(nn.Module):
    """With a buffer that is another in every process."""

    def __init__(self, rank):
        super().__init__()
        self.net, self.rank = network(), rank
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.seen.add_(self.rank)
        return self.net(x)


def _interrupted(folder):
    """Training that goes on from a checkpoint, which one process has written."""
    objective = sb.Laplace(sb.Kfac())
    settings = {"objective": objective, "optimiser": RUNNING, "checkpoint": folder / "kept", "checkpoint_every": 0.0}
    _fit(network(), **settings)
    resumed = _fit(network(), resume=True, **settings)
    resumed.save(folder / "result")
    return figures(resumed)


def work(rank, count, folder):
    """All cases, in one of several processes."""
    torch.set_num_threads(1)
    folder = Path(folder)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    decompositions._WORTH_SENDING = 2  # in these processes alone
    found: dict[str, Any] = {"decomposed": decomposed(all_processes())}
    found |= {name: figures(CASES[name]()) for name in (FOUR if count == 4 else CASES)}
    if count == 2:
        found |= {"interrupted": _interrupted(folder), "refusals": _refusals(rank, folder)}
        elbo = _fit(network(), objective=sb.Elbo(), schedule=sb.Schedule(epochs=2, batch_size=20))
        found |= {"elbo": figures(elbo), "alone": _asked_alone(rank)}
    torch.save(found, folder / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()


def decomposed(processes):
    """Factors that were decomposed, then with vectors; what this process solved; and what it says to what is not finite."""
    solved, solve = [], decompositions.eigendecompose
    generator = torch.Generator().manual_seed(5)
    shapes = ((2, 30), (1, 40), (3, 8), (1, 1), (1, 40))
    rows = [torch.randn(*shape, shape[1] + 2, generator=generator, dtype=torch.float64) for shape in shapes]
    factors = [Factor(row @ row.mT, False, f"w{index}") for index, row in enumerate(rows)]
    blocks = [DenseBlock(factor) for factor in factors]

    def watched(matrices, name, **how):
        solved.append((*matrices.shape[:2], how["vectors"]))
        return solve(matrices, name, **how)

    decompositions.eigendecompose = watched
    try:
        decompose(blocks, processes=processes)
        decompose(blocks, vectors=True, processes=processes)
        factors[1].matrices[0, 0, 0] = math.nan
        try:
            decompose([DenseBlock(replace(factor)) for factor in factors], processes=processes)
            said = "nothing"
        except ArithmeticError as error:
            said = f"{type(error).__name__}: {error}"
    finally:
        decompositions.eigendecompose = solve
    found = {f"values {f.name}": f.eigenvalues for f in factors} | {f"vectors {f.name}": f.eigenvectors for f in factors}
    return {"found": found, "solved": solved, "said": said}


def _asked_alone(rank):
    """What one process asks of a result, while others do not."""
    result = CASES["preset"]()
    return None if rank else float(result.predict(points()[0][:3], samples=8).mean.sum())
