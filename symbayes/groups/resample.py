"""How an affine map acts on images: bilinear resampling written out, as a matrix or applied, with all its derivatives."""

from itertools import product

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
    places = _places(group, coefficients, shape)
    hats = [
        (1 - (places[..., axis, None] - torch.arange(size, dtype=places.dtype, device=places.device)).abs()).relu()
        for axis, size in enumerate((w, h))
    ]
    return (hats[1][..., :, None] * hats[0][..., None, :]).flatten(2)


def resampled(
    group: Images, coefficients: Float[Tensor, "s k"], images: Float[Tensor, "o c h w"]
) -> Float[Tensor, "s o c h w"]:
    """Images under s maps: what `resampling` gives times images, by the four pixels around each place.

    It costs four products for every number, where the matrices cost h·w; so it is the way to move many images. Derivatives are
    those of the matrices, except at places that are pixels: there they are to the right and below.
    """
    o, c, h, w = images.shape
    places = _places(group, coefficients, (h, w))
    first = places.detach().floor()
    beyond = places - first
    pixels_first = images.flatten(2).flatten(0, 1).T  # [p, o · c], so that what is read lies side by side
    moved: Tensor = torch.zeros((), dtype=images.dtype, device=images.device)
    for right, below in product((0, 1), (0, 1)):
        x, y = first[..., 0] + right, first[..., 1] + below
        share = _share(beyond[..., 0], right) * _share(beyond[..., 1], below)
        inside = (x >= 0) & (x < w) & (y >= 0) & (y < h)
        index = (y.clamp(0, h - 1) * w + x.clamp(0, w - 1)).long()
        part = pixels_first.index_select(0, index.flatten()).unflatten(0, index.shape)
        moved = moved + part * (share * inside)[..., None]
    return moved.unflatten(2, (o, c)).permute(0, 2, 3, 1).unflatten(3, (h, w))


def _share(beyond: Tensor, second: int) -> Tensor:
    """Of a pixel in what is read between two of them."""
    return beyond if second else 1 - beyond


def _places(group: Images, coefficients: Float[Tensor, "s k"], shape: tuple[int, int]) -> Float[Tensor, "s q 2"]:
    """Where every pixel of T x is read in x: x and y, in pixels from the middle of the first."""
    h, w = shape
    back = group.elements(-coefficients)[:, :2]
    sides = torch.tensor([w, h], dtype=back.dtype, device=back.device)
    relative = sides / max(h, w)
    grid = pixels((w, h), back).flatten(0, 1) * relative
    read = (torch.einsum("sij,qj->sqi", back[..., :2], grid) + back[:, None, :, 2]) / relative
    places = ((read + 1) * sides - 1) / 2
    if group.padding == "reflection":
        # The image and its mirror image follow each other with period 2 · side; both begin half a pixel before a middle.
        places = sides - ((places + 0.5) % (2 * sides) - sides).abs() - 0.5
    if group.padding != "zeros":
        places = torch.minimum(places.clamp(min=0), sides - 1)
    return places
