"""Where training begins, whatever weights and precisions it is given: every layer as symmetric as its paths allow.

From different beginnings come different networks: a path that begins in use is fitted before the evidence can say that it
should not be, and a local search does not find its way back. So the beginning is chosen once, for all networks and data alike.
The simplest is taken: paths that keep the most symmetry are on, and those that would break it give next to nothing. All have
the same prior: a path comes in where the gradient asks for it, and goes where the evidence does not pay for it.

Gradients of the first epochs ask for anything that lowers the loss, and Adam moves all weights alike, however small they or
their gradients are: a path with many weights would come in before the symmetric ones have had their say. So paths that break a
symmetry move slowly at first, and see what the others leave (`slow_share`). How this compares with other beginnings is
measured: docs/research/evidence.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Generator, Tensor, nn

from symbayes.curvature.evaluate import evaluating
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layout import Layout, WeightTensor, weights
from symbayes.priors import Prior

#: Size of the outputs of a path that breaks a symmetry, relative to those of the paths that keep it.
SMALL = 0.001
#: Paths that keep the symmetry count as off below this size, relative to the strongest path of their layer.
_OFF = 0.1


def breaking_weights(model: nn.Module) -> list[bool]:
    """For every weight of a model, whether it breaks a symmetry that another path of its layer keeps."""
    tensors = Layout.of(model).tensors
    return [name in tensors and tensors[name].relaxes for name in weights(model)]


def slow_share(epoch: int, epochs: int) -> float:
    """Of the learning rate, at which such weights move in an epoch, counted from 1: it rises along a line, to 1."""
    return min(1.0, epoch / epochs)


@torch.no_grad()
def begin_symmetric(model: nn.Module, prior: Prior, inputs: Tensor, generator: Generator) -> None:
    """Scale the paths of every `RelaxedLayer` by what they give for some inputs, and set precisions to their first value.

    Paths that keep the most symmetry stay as they are; if they were off, their layer is brought to √2 times the size of its
    inputs, as initial weights usually are for ReLUs. Beside them the others are made small, without biases. Learned precisions
    begin at the first value of the prior.

    Args:
        model: Whose weights are scaled, in place.
        prior: Over them.
        inputs: Some data.
        generator: For weights that are all zero, and have to be something to be scaled.
    """
    tensors = Layout.of(model).tensors
    relaxing = {(tensor.layer, tensor.path) for tensor in tensors.values() if tensor.relaxes}
    if not relaxing:
        return
    layers = {name: module for name, module in model.named_modules() if isinstance(module, RelaxedLayer)}
    handles = [
        layer.register_forward_hook(_Scaling(name, layer, tensors, generator), with_kwargs=True)
        for name, layer in layers.items()
        if any(place[0] == name for place in relaxing)
    ]
    if inputs.is_floating_point() and not inputs.any():  # blank data would say nothing of any path
        inputs = torch.randn(inputs.shape, generator=generator).to(inputs)
    try:
        with evaluating(model):
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    prior.log_precision.copy_(torch.where(prior.learned, log(prior.precision), prior.log_precision))


@dataclass
class _Scaling:
    """After a layer: scale its paths, and give what it gives then."""

    name: str
    layer: RelaxedLayer
    tensors: Mapping[str, WeightTensor]
    generator: Generator
    is_done: bool = False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], outputs: Tensor) -> Tensor:
        if self.is_done:  # a layer that is called again sees other features, and is scaled already
            return outputs
        self.is_done = True
        seen = self._see(args, kwargs)
        size = {path: _size(given) for path, (_, given) in seen.items()}
        breaking = {path for path in seen if any(t.relaxes for t in self._of(path).values())}
        strongest = max(size.values())
        keeping = [path for path in seen if path not in breaking]
        for path in keeping:
            if size[path] < _OFF * strongest:
                inputs = seen[path][0]
                size[path] = self._scale(path, inputs, _size(inputs) * (2 / len(keeping)) ** 0.5)
        whole = sum(size[path] ** 2 for path in keeping) ** 0.5
        for path in breaking:
            for name, tensor in self._of(path).items():
                if tensor.kind == "bias":
                    self._parameter(name).zero_()
            self._scale(path, seen[path][0], SMALL * whole)
        found: Tensor = self.layer.forward(*args, **kwargs)  # what hooks of users do was done
        return found

    def _see(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, tuple[Tensor, Tensor]]:
        """What every path is given, and gives."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def note(name: str) -> Any:
            return lambda path, given, output: seen.__setitem__(name, (given[0], output))

        handles = [path.register_forward_hook(note(name)) for name, path in self.layer.paths.items()]
        try:
            self.layer.forward(*args, **kwargs)
        finally:
            for handle in handles:
                handle.remove()
        return seen

    def _scale(self, path: str, inputs: Tensor, wanted: float) -> float:
        """Scale the weights of a path so that without biases its outputs have a size, each factor alike; the size with them."""
        named = {name: self._parameter(name) for name in self._of(path)}
        weights = [named[name] for name, tensor in self._of(path).items() if tensor.kind == "weight"]
        biases = {name: named[name].clone() for name, tensor in self._of(path).items() if tensor.kind == "bias"}
        module = self.layer.paths[path]
        for name in biases:
            named[name].zero_()
        if weights and not any(weight.any() for weight in weights):
            for weight in weights:
                weight.copy_(torch.randn(weight.shape, generator=self.generator) / max(1, weight[0].numel()) ** 0.5)
        before = _size(module(inputs))
        if weights and before > 0:
            for weight in weights:
                weight.mul_(2)
            factors = max(1, round(log(_size(module(inputs)) / before, 2)))
            for weight in weights:
                weight.mul_((wanted / before) ** (1 / factors) / 2)
        for name, bias in biases.items():
            named[name].copy_(bias)
        return _size(module(inputs))

    def _of(self, path: str) -> dict[str, WeightTensor]:
        return {name: t for name, t in self.tensors.items() if (t.layer, t.path) == (self.name, path)}

    def _parameter(self, name: str) -> Tensor:
        return self.layer.get_parameter(name.removeprefix(f"{self.name}." if self.name else ""))


def _size(outputs: Tensor) -> float:
    return float(outputs.double().square().mean().sqrt())
