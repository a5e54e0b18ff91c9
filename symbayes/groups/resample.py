"""How an affine map acts on images as a matrix: bilinear resampling written out, with derivatives of every order."""

import torch
from jaxtyping import Float
from torch import Tensor

from symbayes.groups.warp import Images, pixels


def resampling(group: Images, coefficients: Float[Tensor, "s k"], shape: tuple[int, int]) -> Float[Tensor, "s q p"]:
    """R_s with vec(T_s x) = R_s vec(x), for images of a height and a width; what `Images.transform` does, as matrices.

    A pixel q of T x is read at T⁻¹ q, between pixels, where pixel p counts by a product of hats, (1 − |Δx|)₊ (1 − |Δy|)₊. The
    transpose is what the map does to a gradient, or to the other side of a scalar product: ⟨T W, x⟩ = ⟨W, Tᵀ x⟩. Torch's own
    resampling has no second derivatives; this has, at the price of h·w × h·w numbers for every transformation.
    """
    h, w = shape
    back = group.elements(-coefficients)[:, :2]
    sides = torch.tensor([w, h], dtype=back.dtype, device=back.device)
    relative = sides / max(h, w)
    grid = pixels((w, h), back).flatten(0, 1) * relative
    read = (torch.einsum("sij,qj->sqi", back[..., :2], grid) + back[:, None, :, 2]) / relative
    places = ((read + 1) * sides - 1) / 2  # in pixels from the middle of the first
    if group.padding == "reflection":
        # The image and its mirror image follow each other with period 2 · side; both begin half a pixel before a middle.
        places = sides - ((places + 0.5) % (2 * sides) - sides).abs() - 0.5
    if group.padding != "zeros":
        places = torch.minimum(places.clamp(min=0), sides - 1)
    hats = [
        (1 - (places[..., axis, None] - torch.arange(size, dtype=back.dtype, device=back.device)).abs()).relu()
        for axis, size in enumerate((w, h))
    ]
    return (hats[1][..., :, None] * hats[0][..., None, :]).flatten(2)
