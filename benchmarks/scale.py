"""Curvature and training of larger networks on one device: `python -m benchmarks.scale --device cuda [--out scale.json]`.

For CONV, F-FC+CONV, a usual CNN, ResNet-18 (batch norms), ViT-S and ViT-B/16 (layer norms, embeddings of positions), on
random images: the seconds of a gradient over the data, and in such gradients KFAC by one random column and by all columns,
without and with a budget of memory (`--budget`, in GiB), and as in a training, whose model was checked before; what that
holds on a GPU; and seconds of the decomposition of factors. A gradient is that of a step of `sb.fit`: of 250 images, in TF32
on a GPU, as factors are; beside it stands one in larger batches, and one in single precision. `--training` measures epochs by
plain MAP and by the evidence instead; `torchrun --nproc-per-node 2 -m benchmarks.scale --training ...` by several processes.
On a CPU there is one thread, time is that of the processor, and cases are interleaved.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.networks import allconv_plain, allconv_relaxed, cnn
from benchmarks.timing import interleaved, seconds_on
from papers import runs as provenance
from symbayes.curvature.check import trusted
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.memory import memory_budget
from symbayes.curvature.rule import BlockCurvature, ExactFisher, Fisher, MonteCarloFisher, log_det_of
from symbayes.data.source import TensorSource
from symbayes.likelihoods.classes import Categorical
from symbayes.precision import tensor_cores
from symbayes.priors import TensorwisePrior
from symbayes.processes import all_processes, of_torchrun
from symbayes.training.by_curvature import Laplace, Map
from symbayes.training.fit import fit, preset
from symbayes.training.optimiser import PLAIN
from symbayes.training.trainer import Problem


class Residual(nn.Module):
    """Two convolutions with batch norms around which data flow."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False), nn.BatchNorm2d(c_out))
        same = stride == 1 and c_in == c_out
        around = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))
        self.around = nn.Identity() if same else around

    def forward(self, inputs: Tensor) -> Tensor:
        """The sum of both ways."""
        return functional.relu(self.second(self.first(inputs)) + self.around(inputs))


def resnet18(width: int = 64) -> nn.Sequential:
    """As it is for images of 32 × 32."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
        layers += [Residual(channels, factor * width, stride), Residual(factor * width, factor * width, 1)]
        channels = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Vit(nn.Module):
    """A transformer over patches of images."""

    def __init__(self, size: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
                for _ in range(depth)
            )
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Classes, from the first token."""
        tokens = self.patches(inputs).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(tokens), -1, -1), tokens], 1) + self.places
        found: Tensor = self.head(self.norm(self.layers(tokens))[:, 0])
        return found


#: By name: what builds a network, and the size of its images.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "conv": (allconv_plain, 32),
    "factored+conv": (allconv_relaxed, 32),
    "cnn": (cnn, 32),
    "resnet18": (resnet18, 32),
    "vit-s": (lambda: Vit(32, 4, 384, 12, 6), 32),
    "vit-b16": (lambda: Vit(224, 16, 768, 12, 12), 224),
    "resnet18-narrow": (lambda: resnet18(16), 32),
    "vit-narrow": (lambda: Vit(32, 4, 96, 3, 3), 32),
}
#: Epochs of training that do not count, and those that do: a multiple of the intervals between decompositions.
_WARM, _EPOCHS = 4, 12


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("--device", default="cuda", help="where to compute")
    parser.add_argument("--networks", default="conv,cnn,resnet18,vit-s,vit-b16", help=f"of {', '.join(NETWORKS)}, with commas")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=16.0, help="of memory, in GiB, for figures within one; 0: none of them")
    parser.add_argument("--training", action="store_true", help="epochs by plain MAP and by the evidence instead")
    parser.add_argument("--out", type=Path, default=Path("scale.json"), help="where to write the figures")
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    with of_torchrun(asked.device) as device:
        first = all_processes().is_first
        about = {
            "commit": provenance.commit(),
            "machine": provenance.machine(asked.device),
            "torch": torch.__version__,
            "processes": all_processes().count,
            "images": asked.images,
            "budget": asked.budget,
        }
        found: dict[str, Any] = {}
        for name in asked.networks.split(","):
            found[name] = measure(name, asked.images, torch.device(device), asked.budget, asked.repeats, asked.training)
            if first:
                print(json.dumps({name: found[name]}, indent=1), flush=True)
                asked.out.write_text(json.dumps({"about": about, **found}, indent=2) + "\n")


def measure(name: str, images: int, device: torch.device, budget: float, repeats: int, training: bool) -> dict[str, float]:
    """What takes how long, in gradients unless it says seconds, and how much memory, in GiB."""
    build, size = NETWORKS[name]
    torch.manual_seed(0)
    model = build().to(device).eval()
    generator = torch.Generator().manual_seed(0)
    if size > 100:
        images = min(images, 1024)
    inputs, targets = torch.randn(images, 3, size, size, generator=generator), torch.randint(10, (images,), generator=generator)
    data = TensorSource(inputs, targets, device)
    found: dict[str, float] = {"images": images}
    if not training:
        return found | _curvature(model, data, budget, repeats)
    problem = Problem(model, data, Categorical().to(device), TensorwisePrior(model).to(device))
    usual = preset(problem)  # that of a whole training: how often factors are decomposed depends on how long it is
    assert isinstance(usual.objective, Laplace)
    by_evidence = replace(usual.objective, search=None, final_rule=None)
    schedule = replace(usual.schedule, epochs=_WARM + _EPOCHS + 1)
    for title, objective, optimiser in (("MAP", Map(), PLAIN), ("evidence", by_evidence, usual.optimiser)):
        torch.manual_seed(0)
        model = build().to(device)
        settings = {"objective": objective, "optimiser": optimiser, "schedule": schedule}
        result = fit(model, (inputs, targets), **settings, progress=False)  # type: ignore[arg-type]
        ends = [record.seconds for record in result.history]
        found[f"seconds of an epoch by {title}"] = (ends[_WARM + _EPOCHS - 1] - ends[_WARM - 1]) / _EPOCHS
        found[f"log evidence by {title}"] = result.log_evidence
    found["evidence in epochs of MAP"] = found["seconds of an epoch by evidence"] / found["seconds of an epoch by MAP"]
    return found


def _curvature(model: nn.Module, data: TensorSource, budget: float, repeats: int) -> dict[str, float]:
    """Factors in gradients of the same data, what they hold on a GPU, and their decomposition."""
    weights, device, found = list(model.parameters()), data.inputs.device, dict[str, float]()
    kept: dict[str, BlockCurvature] = {}

    is_large = data.inputs.shape[-1] > 100

    def gradient(batch_size: int, precision: Callable[[torch.device], AbstractContextManager[None]] = tensor_cores) -> None:
        with precision(device):
            for inputs, targets in data.batches(batch_size):
                torch.autograd.grad(functional.cross_entropy(model(inputs), targets), weights)

    @torch.no_grad()
    def factors(name: str, fisher: Fisher, gib: float | None) -> None:
        draws = torch.Generator(device).manual_seed(0)
        with nullcontext() if gib is None else memory_budget(gib):
            kept[name] = Kfac(fisher).curvature(model, data, Categorical(), generator=draws)

    def checked(name: str, fisher: Fisher) -> None:
        with trusted(model):
            factors(name, fisher, None)

    cases: dict[str, Callable[[], object]] = {"gradient": partial(gradient, 64 if is_large else 250)}
    cases["gradient, larger batches"] = partial(gradient, 250 if is_large else 1000)
    cases["gradient, single precision"] = partial(gradient, 64 if is_large else 250, lambda device: nullcontext())
    for title, fisher in (("one column", MonteCarloFisher()), ("exact", ExactFisher())):
        cases[f"KFAC, {title}"] = partial(factors, f"KFAC, {title}", fisher, None)
        if budget:
            words = f"KFAC, {title}, within {budget:g} GiB"
            cases[words] = partial(factors, words, fisher, budget)
        cases[f"KFAC, {title}, checked before"] = partial(checked, f"KFAC, {title}, checked before", fisher)
    if device.type == "cuda":
        for name, case in cases.items():
            found[f"seconds, {name}"], found[f"GiB, {name}"] = _on_gpu(case, device, repeats)
            found[name] = found[f"seconds, {name}"] / found["seconds, gradient"]
    else:
        for name, timing in interleaved(cases, "gradient", repeats).items():
            found[f"seconds, {name}"], found[name] = timing.seconds.median, timing.units.median
    found |= {f"trace, {name}": float(sum(curvature.trace().values())) for name, curvature in kept.items()}
    precisions = TensorwisePrior(model).to(device).precisions()
    started = perf_counter()
    found["log determinant"] = float(log_det_of(kept["KFAC, exact"].blocks, precisions).detach())
    found["seconds, decomposition"] = perf_counter() - started
    return found


def _on_gpu(work: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """The median of seconds, and the peak of memory beyond what there was, in GiB; after one time that does not count."""
    work()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    seconds = seconds_on(device, work, repeats)
    return seconds, (torch.cuda.max_memory_allocated(device) - before) / 2**30


if __name__ == "__main__":
    main()
