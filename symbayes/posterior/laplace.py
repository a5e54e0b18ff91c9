"""Laplace's posterior: N(W*, (H + Δ)⁻¹), from curvature that is known already.

Of a tensor whose curvature is negligible against its precision, as of a path that is off, only the diagonal of H is kept, and
nothing is decomposed. That changes its covariance by ‖H‖/δ of itself, at most, which is below the root of machine precision;
variances and log-determinant change by less than the square of that.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from symbayes.curvature.blocks import Block, DenseBlock, DiagonalBlock, EigenBlock, Factor, KroneckerBlock
from symbayes.curvature.decompositions import decompose, negligible
from symbayes.curvature.ggn import FullCurvature
from symbayes.curvature.lanczos import PreconditionedCurvature
from symbayes.curvature.rule import BlockCurvature, Curvature
from symbayes.errors import NoPosteriorError, NotFiniteError
from symbayes.layout import weights
from symbayes.posterior.posterior import Members, Posterior, Weights
from symbayes.posterior.spread import DiagonalSpread, EigenSpread, FullSpread, Spread
from symbayes.priors import Prior


@torch.no_grad()
def laplace_posterior(curvature: Curvature, model: nn.Module, prior: Prior) -> Posterior:
    """The normal distribution around the weights that the model has now, with precision H + Δ.

    Args:
        curvature: H at these weights, by `Kfac`, `Ekfac`, `Diagonal`, `Ggn`, or `Preconditioned` (its blocks).
        model: Whose weights they are.
        prior: With the precisions Δ.

    Raises:
        NoPosteriorError: If the rule of the curvature keeps no matrix: `Lanczos`, `TangentKernel`, `Subsets`.
        NotFiniteError: If H has entries that are no numbers.
        ValueError: If prior or curvature are of another model.
    """
    prior.check(model)
    mean = {name: parameter.detach().clone() for name, parameter in weights(model).items()}
    return posterior_at(curvature, mean, prior.precisions())


@torch.no_grad()
def posterior_at(curvature: Curvature, mean: Weights, precisions: Mapping[str, Tensor]) -> Posterior:
    """The same for weights W* and precisions δ by tensor, as they were when the curvature was found."""
    given, precisions = precisions, {name: precision.double() for name, precision in precisions.items()}
    if isinstance(curvature, BlockCurvature | PreconditionedCurvature):
        _check(mean, curvature.blocks)
        blocks = _decompose(curvature.blocks, given)
        parts = [({name: mean[name]}, _spread(blocks[name], precisions[name], name)) for name in mean]
    elif isinstance(curvature, FullCurvature):
        _check(mean, curvature.sizes)
        ordered = {name: mean[name] for name in curvature.sizes}
        by_weight = torch.cat([precisions[name].expand(size) for name, size in curvature.sizes.items()])
        parts = [(ordered, FullSpread(_lower(curvature.H, by_weight, "all tensors")))]
    else:
        raise NoPosteriorError(
            f"A posterior needs curvature that is kept as a matrix, or as blocks; {curvature.estimator} keeps none. "
            "Use Kfac(), Ekfac() or Diagonal(), or Ggn() where the model is small, as in sb.Laplace(final_rule=sb.Kfac())."
        )
    found = []
    for members, spread in parts:
        like = next(iter(members.values()))
        cast = type(spread)(**{name: value.to(like) for name, value in vars(spread).items()})
        found.append((Members({name: tuple(value.shape) for name, value in members.items()}), cast))
    by = curvature.base if isinstance(curvature, PreconditionedCurvature) else curvature.estimator
    return Posterior(mean, tuple(found), f"Laplace with {by}", predicts="linearised")


def _check(mean: Mapping[str, Tensor], known: Mapping[str, object]) -> None:
    odd = sorted(mean.keys() ^ known.keys())
    if odd:
        raise ValueError(
            f"The curvature must be of the trainable tensors of the model; unmatched={odd}. Estimate it for this model, after "
            "freezing what is not to be learned."
        )


def _spread(block: Block, precision: Float[Tensor, ""], name: str) -> Spread:
    """(H + δI)⁻¹ for one tensor, in double precision."""
    match block:
        case KroneckerBlock():
            values = block.G.eigenvalues.double()[:, :, None] * block.A.eigenvalues.double()[:, None, :]
            U_A = None if block.A.diagonal else block.A.eigenvectors
            return _eigen_spread(values + precision, block.G.eigenvectors, U_A, block.transposed)
        case EigenBlock():
            values, basis = _finite(block.values, name).double(), block.basis
            U_A = None if basis.A.diagonal else basis.A.eigenvectors
            return _eigen_spread(values + precision, basis.G.eigenvectors, U_A, basis.transposed)
        case DiagonalBlock():
            return DiagonalSpread((_finite(block.diagonal, name).double() + precision).rsqrt())
        case _:
            H = block.dense()
            return FullSpread(_lower(H, precision.expand(len(H)), name))


def _eigen_spread(
    values: Float[Tensor, "block d_out d_in"],
    U_G: Float[Tensor, "some d_out d_out"],
    U_A: Float[Tensor, "block d_in d_in"] | None,
    transposed: bool,
) -> EigenSpread:
    """(U diag(λ) Uᵀ)⁻¹ with U = U_G ⊗ U_A; U_A is None for the identity, which embeddings have."""
    std = values.rsqrt()
    if U_A is None:  # each row of [d_in, d_out] for itself, rather than an identity over all symbols
        return EigenSpread(values.new_ones(1, 1, 1), U_G, std[0].T[:, None])
    return EigenSpread(U_A, U_G, std.mT) if transposed else EigenSpread(U_G, U_A, std)


def _decompose(blocks: Mapping[str, Block], precisions: Mapping[str, Tensor]) -> dict[str, Block]:
    """Blocks with eigenbases, all found at once in double precision; of those that are negligible only the diagonal."""
    for name, block in blocks.items():
        for part in vars(block).values():
            if isinstance(part, Factor):
                _finite(part.matrices, name)
    left = negligible(blocks, precisions)
    # Others have a Cholesky factor, and need no basis.
    of_factors = (block for name, block in blocks.items() if isinstance(block, KroneckerBlock) and name not in left)
    decompose(of_factors, vectors=True, dtype=torch.float64)
    return {name: _diagonal(block) if name in left else block for name, block in blocks.items()}


def _diagonal(block: Block) -> Block:
    return DiagonalBlock(block.diagonal_entries) if isinstance(block, KroneckerBlock | DenseBlock) else block


def _lower(H: Float[Tensor, "p p"], precision: Float[Tensor, " p"], name: str) -> Float[Tensor, "p p"]:
    """L, lower triangular, with L Lᵀ = (H + Δ)⁻¹."""
    root = precision.rsqrt()
    scaled = root[:, None] * _finite(H, name).double() * root
    identity = torch.eye(len(H), dtype=scaled.dtype, device=scaled.device)
    # P = U Uᵀ, with U upper triangular from the Cholesky factor of the flipped matrix; then P⁻¹ = U⁻ᵀ U⁻¹.
    flipped, failed = torch.linalg.cholesky_ex((identity + scaled).flip(0, 1))
    if not failed:
        return root[:, None] * torch.linalg.solve_triangular(flipped.flip(0, 1), identity, upper=True).T
    # Sums in single precision can be indefinite by rounding: with eigenvalues not below zero, as blocks have them.
    values, vectors = torch.linalg.eigh(scaled)
    R = torch.linalg.qr((vectors * (1 + values.clamp(min=0)).rsqrt()).T).R
    return root[:, None] * (R.T * R.diagonal().sign())


def _finite(values: Tensor, name: str) -> Tensor:
    if not values.isfinite().all():
        raise NotFiniteError(
            f"The curvature of {name!r} must be finite, got NaN or infinity. Check that the loss is finite and the weights "
            "have not diverged; a smaller learning rate helps."
        )
    return values
