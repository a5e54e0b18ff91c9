"""The log evidence by exact KFAC under one precision, ours and that of laplace-torch, in gradients of the same network.

Factors, decompositions and log|H + Δ|: all that is asked of a network once it is trained. On the same data both agree on every
weight. Of biases that positions share ours has the exact block; and the peer takes circular padding, which CONV has, for zeros.
"""

from typing import Any

import torch
from laplace import Laplace
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.curvature import Workload
from benchmarks.networks import Network
from benchmarks.timing import interleaved
from symbayes.curvature.kfac import Kfac
from symbayes.evidence.evidence import laplace_evidence
from symbayes.likelihoods.classes import Categorical
from symbayes.priors import ScalarPrior


def measure_evidence(network: Network, size: int, batch_size: int, repeats: int) -> dict[str, Any]:
    """Timings by case, and what each has found."""
    work = Workload(network, size, batch_size)
    loader = DataLoader(TensorDataset(work.inputs, work.targets), batch_size)

    @torch.no_grad()
    def ours() -> float:
        rule = Kfac(batch_size=batch_size)
        return float(laplace_evidence(work.model, work.source, Categorical(), ScalarPrior(work.model), rule=rule).total)

    def theirs() -> float:
        found = Laplace(work.model, "classification", subset_of_weights="all", hessian_structure="kron")
        found.fit(loader)
        return float(found.log_marginal_likelihood())

    timings = interleaved({"gradient": work.gradient, "ours": ours, "laplace-torch": theirs}, "gradient", repeats)
    return {"cases": timings, "log evidence": {"ours": ours(), "laplace-torch": theirs()}}
