"""Which classes want more of an invariance, and which less: the gradient of the evidence in extents, class by class.

An extent is one number for all data, at which the gradients of all classes balance: each is a sum over data, through the
curvature, too (`Replay`). So classes differ in what they want: turned far enough, a nine is a six.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.evaluate import without_autocast
from symbayes.curvature.kfac import Kfac
from symbayes.data.source import Data, TensorSource, source_for
from symbayes.invariance.extents import Amounts
from symbayes.likelihoods.classes import Categorical
from symbayes.priors import Prior
from symbayes.text import html_table, number, text_table

#: Parts of a class, by which the standard error is estimated.
_PARTS = 4


@dataclass(frozen=True)
class ClassGradients:
    """∂ log p(D) / ∂ log η by class and extent η, in nats per datum of the class: a tenth more of η gains about a tenth of it.

    Args:
        names: Of extents and probabilities.
        classes: Their labels.
        counts: Data in each.
        gradients: By class and name; above zero where the class wants more than all data together.
        errors: Their standard errors, by parts of the class.
    """

    names: tuple[str, ...]
    classes: tuple[int, ...]
    counts: tuple[int, ...]
    gradients: Float[Tensor, "class k"]
    errors: Float[Tensor, "class k"]

    def _rows(self) -> list[list[str]]:
        found = []
        for place, label in enumerate(self.classes):
            cells = zip(self.gradients[place].tolist(), self.errors[place].tolist(), strict=True)
            found.append([str(label), str(self.counts[place]), *(f"{number(p, 3)} ± {number(e, 3)}" for p, e in cells)])
        return found

    def __str__(self) -> str:
        return text_table(["class", "data", *self.names], self._rows())

    def _repr_html_(self) -> str:
        return html_table(["class", "data", *self.names], self._rows())


def gradients_by_class(model: nn.Module, data: Data, prior: Prior) -> ClassGradients:
    """The gradient of the evidence in every extent that is learned, class by class, at the weights there are; by KFAC.

    Args:
        model: Of classes, with extents or probabilities.
        data: What it was learned from; all of them are held in memory.
        prior: Over its weights.

    Raises:
        ValueError: If the model has no extents that are learned, or a class has fewer than eight data.
    """
    prior.check(model)
    modules = [module for module in model.modules() if isinstance(module, Amounts) and module.value.requires_grad]
    if not modules:
        raise ValueError("The model must have extents or probabilities that are learned; it has none.")
    source = source_for(model, data)
    inputs, targets = (torch.cat(parts) for parts in zip(*source.batches(500), strict=True))
    labels = targets.unique().tolist()
    members = {label: (targets == label).nonzero()[:, 0] for label in labels}
    for label, own in members.items():
        if len(own) < 2 * _PARTS:
            raise ValueError(
                f"Every class must have {2 * _PARTS} data or more for its gradient to be told; class {label} has {len(own)}. "
                "Leave it out, or join it with another."
            )
    values: list[Tensor] = [module.value for module in modules]
    with without_autocast():
        with torch.no_grad():
            curvature = Kfac().curvature(model, source, Categorical())
        replay = curvature.replay
        assert replay is not None
        precisions = {name: precision.detach() for name, precision in prior.precisions().items()}
        slopes, found = replay.slopes(precisions), []
        for own in members.values():
            parts = [own[part::_PARTS] for part in range(_PARTS)]
            found_in = []
            for part in parts:
                some = TensorSource(inputs[part], targets[part], inputs.device, in_order=False)
                term = replay.term(some, slopes, 1 / len(part))
                slope = torch.autograd.grad(term, values, allow_unused=True, materialize_grads=True)
                found_in.append(torch.cat([g.flatten() * v.detach().flatten() for g, v in zip(slope, values, strict=True)]))
            sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
            each = torch.stack(found_in).double().cpu()
            found.append(((sizes[:, None] * each).sum(0) / sizes.sum(), each.std(0) / _PARTS**0.5))
    means, errors = (torch.stack(column) for column in zip(*found, strict=True))
    names = tuple(name for module in modules for name in module.names)
    return ClassGradients(names, tuple(map(int, labels)), tuple(len(own) for own in members.values()), means, errors)
