"""Sample orbits: a few images under the transformations that were learned, as bytes for a page."""

from base64 import b64encode
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from symbayes.invariance.extents import Extents


@torch.no_grad()
def sample_orbits(model: nn.Module, examples: Tensor, transformations: int = 8) -> list[list[dict[str, Any]]]:
    """A row for each example: itself, and under transformations that are spread evenly over the extents of the model.

    Nothing, where examples are no images of one or three channels, or the model has no extents or several, or they are of
    something else than its inputs.
    """
    found = [module for module in model.modules() if isinstance(module, Extents)]
    if len(found) != 1 or examples.ndim != 4 or examples.shape[1] not in (1, 3) or found[0].shape != tuple(examples.shape[1:]):
        return []
    examples = examples.to(found[0].value)  # they may come from a file, and the model be elsewhere
    moved = found[0].transform(found[0].even(transformations), examples)
    rows = torch.cat([examples[:, None], moved], 1).cpu()
    low, high = examples.amin().cpu(), examples.amax().cpu()
    levels = (255 * (rows - low) / (high - low).clamp(min=1e-12)).clamp(0, 255).round().to(torch.uint8)
    return [[_image(image) for image in row] for row in levels]


def _image(levels: UInt8[Tensor, "c h w"]) -> dict[str, Any]:
    channels, height, width = levels.shape
    raw = levels.permute(1, 2, 0).contiguous().numpy().tobytes()
    return {"width": width, "height": height, "channels": channels, "pixels": b64encode(raw).decode("ascii")}
