"""What a few steps of Lanczos know of a positive definite matrix M, of which there are products with vectors.

From a vector z, k steps give a k × k tridiagonal T, and with it a quadratic form and a solution:

    zᵀ log(M) z ≈ ‖z‖² e₁ᵀ log(T) e₁                    M⁻¹ z ≈ ‖z‖ Q T⁻¹ e₁

The first, Gauss's rule G_k, is never too little. Radau's rule R_k, with one more node at a number below the spectrum, is never
too much (Golub and Meurant 1994). So it is known how far a form may be off, at most.

It is known nearly how far it is, too, from how both rules have come closer, in two ways. Their errors fall at one rate as
steps go on, so that what Gauss's rule leaves out is a constant share f of the distance between them:

    G_j ≈ zᵀ log(M) z + f (G_j − R_j).

Along the second half of the steps that is a line, and where the distance is zero it has the form itself. And if the third
quarter of the steps took d from G, and the last one r d, then all further ones take r² d + r³ d + … = r d · r / (1 − r), with
an r of at most a half: no more than the last quarter took. The estimate is what the more cautious of both says: between both
rules, two or three times closer than Gauss's after twenty steps, and rarely too little (docs/research/evidence.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

#: Steps from which on there are quarters of them to go on from.
_FEWEST = 4


@dataclass(frozen=True)
class LogForm:
    """zᵀ log(M) z, as far as some steps of Lanczos tell."""

    value: float
    #: How far it is off, as far as can be told: its distance from Gauss's rule, or how much it has changed in the last quarter
    #: of the steps, if that is more.
    error: float
    #: How far it may be off at most, either way.
    slack: float


@dataclass(frozen=True)
class Krylov:
    """What k steps of Lanczos know of a positive definite M, from a vector z.

    Args:
        Q: An orthonormal basis of z, M z, …
        T: Q M Qᵀ, tridiagonal, in double precision.
        beta: What the next entry beside the diagonal would be; 0 where the space is whole.
        start: z.
    """

    Q: Float[Tensor, "k p"]
    T: Float[Tensor, "k k"]
    beta: Float[Tensor, ""]
    start: Float[Tensor, " p"]

    def log_form(self, lowest: float) -> LogForm:
        """zᵀ log(M) z, where all eigenvalues of M are at least a number."""
        steps = len(self.T)
        before = -(-3 * steps // 4)
        first = max(1, before // 2)
        upper, lower = self.rules(lowest, first)

        def after(k: int) -> float:
            return _go_on({j: (upper[j - first], lower[j - first]) for j in range(max(first, k // 2), k + 1)})

        value = after(steps)
        slack = max(abs(upper[-1] - value), abs(value - lower[-1]))
        error = max(upper[-1] - value, abs(value - after(before))) if steps >= _FEWEST else slack
        return LogForm(value, min(error, slack), slack)

    def rules(self, lowest: float, first: int = 1) -> tuple[list[float], list[float]]:
        """zᵀ log(M) z by Gauss's rule, never too little, and by Radau's, never too much, from so many steps on."""
        # On the CPU: these are many small matrices.
        whole, weight = self.T.cpu(), float(self.start.double().norm() ** 2)
        beside = [*whole.diagonal(1), self.beta.cpu()]
        upper, lower = [], []
        for k in range(first, len(whole) + 1):
            T, beta = whole[:k, :k], beside[k - 1]
            upper.append(weight * _first_of_log(T, lowest))
            lower.append(weight * _first_of_log(_with_node(T, beta, lowest), lowest) if beta > 0 else upper[-1])
        return upper, lower

    def solution(self) -> Float[Tensor, " p"]:
        """M⁻¹ z in the Krylov space: what k steps of conjugate gradients would give."""
        theta, S = torch.linalg.eigh(self.T)
        tiny = torch.finfo(self.start.dtype).eps
        return self.start.norm() * self.Q.T @ (S @ (S[0] / theta.clamp(min=tiny))).to(self.Q)


def tridiagonalise(
    product: Callable[[Float[Tensor, " p"]], Float[Tensor, " p"]], start: Float[Tensor, " p"], steps: int
) -> Krylov:
    """Lanczos with full reorthogonalisation."""
    steps = min(steps, len(start))
    Q = start.new_empty(steps, len(start))
    Q[0] = start / start.norm()
    alphas: list[Tensor] = []
    betas: list[Tensor] = []
    for step in range(steps):
        w, basis = product(Q[step]), Q[: step + 1]
        alphas.append((w @ Q[step]).double())
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        beta = w.norm().double()
        if beta < 1e-6 * max(1.0, float(alphas[0].abs())):
            beta = torch.zeros_like(beta)  # what is left is rounding: the space is whole
            break
        if step + 1 == steps:
            beta = beta if steps < len(start) else torch.zeros_like(beta)
            break
        betas.append(beta)
        Q[step + 1] = w / beta.to(w)
    T = torch.diag(torch.stack(alphas))
    if betas:
        off = torch.stack(betas[: len(alphas) - 1])
        T = T + torch.diag(off, 1) + torch.diag(off, -1)
    return Krylov(Q[: len(alphas)], T, beta, start)


def _first_of_log(T: Float[Tensor, "k k"], lowest: float) -> float:
    """e₁ᵀ log(T) e₁."""
    theta, S = torch.linalg.eigh(T)
    return float((S[0].square() * theta.clamp(min=lowest).log()).sum())


def _with_node(T: Float[Tensor, "k k"], beta: Float[Tensor, ""], node: float) -> Float[Tensor, "k1 k1"]:
    """One more row, so that a number is among the eigenvalues: (T − a) d = β² e_k, and a + d_k on the diagonal."""
    k = len(T)
    last = torch.zeros(k, dtype=T.dtype)
    last[-1] = beta**2
    d = torch.linalg.solve(T - node * torch.eye(k, dtype=T.dtype), last)
    longer = torch.zeros(k + 1, k + 1, dtype=T.dtype)
    longer[:k, :k], longer[k, k] = T, node + d[-1]
    longer[k - 1, k] = longer[k, k - 1] = beta
    return longer


def _go_on(rules: Mapping[int, tuple[float, float]]) -> float:
    """What both rules come to, from those of the second half of the steps, by the number of steps."""
    steps = max(rules)
    quarter = steps // 4
    upper, lower = rules[steps]
    (first, _), (middle, _) = rules[steps - 2 * quarter], rules[steps - quarter]
    rate = min((middle - upper) / (first - middle), 0.5) if first > middle else 0.0
    left = (middle - upper) * rate / (1 - rate)
    return max(lower, upper - min(left, _along_line(list(rules.values()))))


def _along_line(rules: Sequence[tuple[float, float]]) -> float:
    """How much less than Gauss's rule both rules come to, along a line, from their last values.

    With weights of one over the distance, so that all steps count alike, the line G = value + f (G − R) is the line
    G / (G − R) = f + value / (G − R).
    """
    G, R = torch.tensor(rules, dtype=torch.float64).unbind(1)
    distance = G - R
    if len(G) < 2 or not distance.min() > 1e-12 * G.abs().max():
        return 0.0
    x, y = 1 / distance, G / distance
    spread = (x - x.mean()).square().sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / spread if spread > 0 else G[-1]
    share = (y.mean() - slope * x.mean()).clamp(0, 1)
    return float(share * distance[-1])
