"""Language models: `python -m benchmarks.language [--model small] [--device cuda] [--sequences 512] [--lanczos 20]`.

A decoder-only transformer in the shape of GPT-2, its head tied to its embedding, trained for some steps of Adam on the
documentation of Python, byte by byte; a byte is a token. Then, with the likelihood of every token: the seconds of a gradient
over the sequences; KFAC by one random column, in such gradients, with the check of its shortcuts and without; the seconds of
an evidence and of one hyper-step; the evidence before and after, and effective parameters; and what a GPU holds beside what
was to be expected. With `--lanczos`, the evidence by the full GGN under the same precisions, by so many products.
"""

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.timing import seconds_on
from papers import runs as provenance
from symbayes.curvature.check import trusted
from symbayes.curvature.kfac import Kfac
from symbayes.curvature.lanczos import Lanczos
from symbayes.curvature.memory import fixed_bytes, memory_budget
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import TensorSource
from symbayes.evidence.evidence import evidence_at
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.positions import AtPositions, PerPosition
from symbayes.precision import tensor_cores
from symbayes.priors import TensorwisePrior
from symbayes.training.hyper import update_precisions

_GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """Of a decoder: how many words and places it knows, its features, layers and heads."""

    words: int
    places: int
    width: int
    depth: int
    heads: int


#: By name. That of 124 M parameters knows as many words as GPT-2, of which bytes use few; the largest has a billion.
SHAPES = {
    "tiny": Shape(256, 64, 128, 4, 4),
    "small": Shape(50257, 1024, 768, 12, 12),
    "billion": Shape(50257, 1024, 2048, 18, 16),
}


class Layer(nn.Module):
    """Attention to what came before, and a perceptron, both with data flowing around them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Float[Tensor, "n t width"]) -> Float[Tensor, "n t width"]:
        """The same shape."""
        q, k, v = self.queries(self.before(inputs)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        inputs = inputs + self.mix(attended.transpose(1, 2).flatten(2))
        found: Tensor = inputs + self.down(functional.gelu(self.up(self.between(inputs))))
        return found


class Decoder(nn.Module):
    """Logits of the next token at every place; head and embedding are one tensor."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(shape.words, shape.width), nn.Embedding(shape.places, shape.width)
        self.layers = nn.Sequential(*(Layer(shape.width, shape.heads) for _ in range(shape.depth)))
        self.norm, self.head = nn.LayerNorm(shape.width), nn.Linear(shape.width, shape.words, bias=False)
        self.head.weight = self.words.weight
        for weight in (self.words.weight, self.places.weight):
            nn.init.normal_(weight, std=0.02)

    def forward(self, tokens: Int[Tensor, "n t"]) -> Float[Tensor, "n t words"]:
        """For every place."""
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        found: Tensor = self.head(self.norm(self.layers(self.words(tokens) + places)))
        return found


def text(sequences: int, length: int, seed: int) -> tuple[Int[Tensor, "n t"], Int[Tensor, "n t"]]:
    """Pieces of Python's documentation as bytes, and the byte that follows each.

    Raises:
        ValueError: If there is too little of it.
    """
    whole = torch.tensor(list("\n".join(topics.values()).encode()), dtype=torch.long)
    starts = torch.arange(0, len(whole) - length - 1, length)
    if len(starts) < sequences:
        raise ValueError(f"There are {len(starts)} sequences of {length} tokens, {sequences} were asked for. Ask for fewer.")
    chosen = starts[torch.randperm(len(starts), generator=torch.Generator().manual_seed(seed))[:sequences]]
    at = chosen[:, None] + torch.arange(length)
    return whole[at], whole[at + 1]


def train(model: nn.Module, data: TensorSource, likelihood: PerPosition, steps: int, batch: int) -> float:
    """Some steps of Adam; the mean loss of a token in the last."""
    optimiser = torch.optim.Adam(model.parameters(), 3e-4)
    generator, done, loss = torch.Generator().manual_seed(0), 0, torch.zeros(())
    while done < steps:
        for inputs, targets in data.batches(batch, generator=generator):
            loss = -likelihood.log_prob(model(inputs), targets).sum() / targets.numel()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            done += 1
            if done == steps:
                break
    return float(loss.detach())


def measure(asked: argparse.Namespace) -> dict[str, Any]:
    """What takes how long, and how much memory."""
    shape, device = SHAPES[asked.model], torch.device(asked.device)
    torch.manual_seed(asked.seed)
    model = AtPositions(Decoder(shape), channels_last=True).to(device).eval()
    inputs, targets = text(asked.sequences, asked.length, asked.seed)
    data, likelihood = TensorSource(inputs, targets, device), PerPosition(Categorical(), shape.words)
    weights = list(model.parameters())
    found: dict[str, Any] = {
        **asdict(shape),
        "parameters": sum(weight.numel() for weight in weights),
        "tokens": targets.numel(),
        "loss of a token": train(model, data, likelihood, asked.steps, asked.batch),
    }

    def gradient() -> None:
        with tensor_cores(device):  # as a step of `sb.fit`
            for some, wanted in data.batches(asked.batch):
                torch.autograd.grad(-likelihood.log_prob(model(some), wanted).sum(), weights)

    def factors() -> Any:
        draws = torch.Generator(device).manual_seed(asked.seed)
        with torch.no_grad(), memory_budget(asked.budget):
            return Kfac(MonteCarloFisher()).curvature(model, data, likelihood, generator=draws)

    def checked() -> Any:
        with trusted(model):
            return factors()

    found["seconds, gradient"] = seconds_on(device, gradient, asked.repeats)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found["seconds, KFAC, one column"] = seconds_on(device, factors, asked.repeats)
    found["seconds, KFAC, one column, checked before"] = seconds_on(device, checked, asked.repeats)
    for case in ("KFAC, one column", "KFAC, one column, checked before"):
        found[case] = found[f"seconds, {case}"] / found["seconds, gradient"]
    found["GiB, factors and rows, expected"] = fixed_bytes(model) / _GIB
    prior, curvature = TensorwisePrior(model).to(device), factors()
    with torch.no_grad():
        update_precisions(curvature, model, prior, 1.0)  # so that they are of the size of those that are learned
        curvature = factors()
        started = perf_counter()
        before = evidence_at(curvature, model, prior, data.size)
        found["seconds, evidence, with decompositions"] = perf_counter() - started
        started = perf_counter()
        update_precisions(curvature, model, prior, 0.5)
        after = evidence_at(curvature, model, prior, data.size)
        found["seconds, hyper-step and evidence"] = perf_counter() - started
    if device.type == "cuda":
        found["GiB, most that was held"] = torch.cuda.max_memory_allocated(device) / _GIB
    found |= {"estimator": before.estimator, "effective parameters": float(sum(before.effective.values()))}
    tokens = targets.numel()
    found["log evidence of a token"] = [float(before.total) / tokens, float(after.total) / tokens]
    if asked.lanczos:
        draws, started = torch.Generator().manual_seed(asked.seed), perf_counter()
        with torch.no_grad(), memory_budget(asked.budget):
            full = Lanczos(2, asked.lanczos, asked.batch).curvature(model, data, likelihood, generator=draws)
            by_products = evidence_at(full, model, prior, data.size)
        found["seconds, full GGN"] = perf_counter() - started
        found["log evidence of a token, full GGN"] = float(by_products.total) / tokens
        found["standard error of a token, full GGN"] = float(by_products.standard_error) / tokens
        found["effective parameters, full GGN"] = float(sum(by_products.effective.values()))
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language", description=__doc__)
    parser.add_argument("--model", default="tiny", choices=SHAPES)
    parser.add_argument("--device", default="cpu", help="where to compute")
    parser.add_argument("--sequences", type=int, default=512)
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a step; factors choose for themselves")
    parser.add_argument("--steps", type=int, default=200, help="of training")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", type=float, default=100.0, help="of memory for curvature, in GiB")
    parser.add_argument("--lanczos", type=int, default=0, help="products for the full GGN; none when 0")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("language.json"), help="where to write the figures")
    asked = parser.parse_args()
    if asked.device == "cpu":
        torch.set_num_threads(1)
    about = {"commit": provenance.commit(), "machine": provenance.machine(asked.device), "torch": torch.__version__}
    found = {"about": about, asked.model: measure(asked)}
    print(json.dumps(found, indent=1))
    asked.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
