"""Kronecker factors: of all the data, or running while a model trains; and their eigenbasis with exact curvature along it.

The one owner of the scale of Kronecker factors. With n data and s positions,

    expand   A = mean_{n,s} a aᵀ                        G = Σ_{n,s} g gᵀ
    reduce   A = mean_n ā āᵀ,  ā = mean_s a             G = Σ_n ĝ ĝᵀ,  ĝ = Σ_s g

(Martens and Grosse 2015; Grosse and Martens 2016; Eschenhagen et al. 2023; ELLA, section 5.) A is averaged and G summed,
so factors of two batches must not be added as they are: A is kept as a sum until the end. A bias has the exact block
Σ_n (Σ_s g)(Σ_s g)ᵀ, or the diagonal of that where it is wide. Factors and block are exact for a single datum without sharing,
and for linear networks.

Inside an orbit average every datum comes in copies, whose outputs are averaged. They are reduced, whatever is done with other
positions: ā is the mean and ĝ the sum over copies (LILA). So the curvature falls as invariance smooths what a map sees, from
which the evidence learns invariance; and it is that of the plain network where all copies are the same.

A batch costs a forward pass, one backward pass per column without weight gradients, and second moments: with one column about
two steps of training, so that every tenth batch adds a fifth to its price, and every twentieth a tenth. Sums of a batch, times
N / batch, are those of the data on average, and weights move little while the mean remembers: so hyper-steps may use it at any
time.

EKFAC keeps KFAC's eigenbasis and takes the exact curvature along it (George et al. 2018), in a second pass over the data.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from symbayes.curvature.blocks import (
    Block,
    DenseBlock,
    DiagonalBlock,
    EigenBlock,
    Factor,
    KroneckerBlock,
    SecondMoment,
)
from symbayes.curvature.capture import Capture
from symbayes.curvature.check import check_capture, follow_check
from symbayes.curvature.decompositions import decompose
from symbayes.curvature.diagonal import DiagonalAccumulator
from symbayes.curvature.evaluate import depends_on_more
from symbayes.curvature.gradients import squared_products
from symbayes.curvature.memory import LARGEST_BIAS, LARGEST_SIDE, ROW_BUDGET, ROW_BUDGET_CPU, bytes_held, has_factors
from symbayes.curvature.rule import BlockCurvature, ExactFisher, Fisher, Rule
from symbayes.curvature.sums import Accumulator, add_up, collect, collected, make_blocks, swept_curvature
from symbayes.data.source import Batch, DataSource, TensorSource
from symbayes.layout import Layout, Site, weights
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.precision import tensor_cores
from symbayes.processes import ALONE, Processes

Sharing = Literal["expand", "reduce"]

#: Data in a forward pass where nothing else is asked for; on a GPU, as long as what a pass holds of them is no more than one in
#: so many bytes of its memory, and on other devices, than so many bytes.
_DATA, _DATA_GPU, _SHARE, _BYTES = 250, 5000, 8, 2**33


@dataclass(frozen=True)
class Kfac(Rule):
    """Kronecker-factored curvature, with exact diagonal blocks where there are no rows (norm layers, free parameters).

    And where a side has more than 16,384 features, so that its factor could not be decomposed, as the head of a language model
    has; and for biases of more than 2,048 that positions share, which otherwise have their exact block.

    Args:
        fisher: Its square root, exact or sampled.
        sharing: Whether positions that share weights are treated as data ("expand") or summed first ("reduce").
        pool_blocks: Whether blocks of weights share the mean of their G, as ELLA does for factored paths. Keeping them
            apart costs the same and is closer to the exact curvature.
        diagonal: Name patterns of weights that get diagonal blocks instead, such as ("head.*",).
        batch_size: Data in a forward pass; when None, 250, and on a GPU, which is bound by the launch of kernels, more.
    """

    fisher: Fisher = field(default_factory=ExactFisher)
    sharing: Sharing = "expand"
    pool_blocks: bool = False
    diagonal: tuple[str, ...] = ()
    batch_size: int | None = None

    @property
    def in_blocks(self) -> bool:
        return True

    def __post_init__(self) -> None:
        if self.sharing not in ("expand", "reduce"):
            raise ValueError(f"sharing must be 'expand' or 'reduce', got {self.sharing!r}.")

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> BlockCurvature:
        layout = Layout.of(model)
        sites = layout.sites
        for pattern in self.diagonal:
            if not any(fnmatch(site.weight or "", pattern) for site in sites.values()):
                known = ", ".join(site.weight for site in sites.values() if site.weight)
                raise ValueError(f"diagonal must name weights of the model; {pattern!r} matches none of {known}.")

        def accumulators() -> dict[str, Accumulator]:
            return {name: self.accumulator(site) for name, site in sites.items()}

        size = self.batch_size
        if size is None:
            own, capture = weights(model), Capture(model)
            follow_check(capture)
            # Others have an axis for the data, or are known to come with those of maps.
            has_free = any(own[name].shape[:1] != (1,) for name in capture.free)
            # Of gradients of single data, and of rows for a diagonal, there are more than was counted.
            has_rows = any(isinstance(one, DiagonalAccumulator) and one.holds_rows for one in accumulators().values())
            size = data_at_once(model, data)
            size = min(_DATA, size) if has_free or has_rows else size
        return swept_curvature(
            model, data, likelihood, self.fisher, accumulators, batch_size=size, generator=generator,
            estimator=_named(self, sites.values()),
        )  # fmt: skip

    def accumulator(self, site: Site) -> Accumulator:
        """What collects the curvature of a map under these settings."""
        if not has_factors(site) or any(fnmatch(site.weight or "", pattern) for pattern in self.diagonal):
            return DiagonalAccumulator(site)
        return KroneckerAccumulator(site, self.sharing, self.pool_blocks)

    def __str__(self) -> str:
        return f"KFAC ({self.sharing}{', blocks pooled' if self.pool_blocks else ''}, {self.fisher})"


def _named(rule: Rule, sites: Iterable[Site]) -> str:
    """A rule in words, with the weights that are too large for factors."""
    large = [str(site.weight) for site in sites if site.matrix is not None and not has_factors(site)]
    return f"{rule}, the diagonal of {', '.join(large)} (more than {LARGEST_SIDE:,} features)" if large else str(rule)


def data_at_once(model: nn.Module, data: DataSource) -> int:
    """How many data make a batch that suits the device: few where they are to stay in a cache, or where graphs may be kept."""
    if not isinstance(data, TensorSource) or data.inputs.device.type == "cpu":
        return _DATA
    few = data.inputs[:2]
    if depends_on_more(model, few, hyperparameters=True):
        return _DATA
    budget = _BYTES
    if data.inputs.is_cuda:
        budget = torch.cuda.get_device_properties(data.inputs.device).total_memory // _SHARE
    return min(_DATA_GPU, max(1, budget // max(1, bytes_held(model, few))))


class KroneckerAccumulator(Accumulator):
    """Sums of a aᵀ and of g gᵀ over batches, for one map."""

    def __init__(self, site: Site, sharing: Sharing, pool_blocks: bool) -> None:
        self.site, self.reduce, self.pool = site, sharing == "reduce", pool_blocks
        self.A = SecondMoment()
        #: Σ a where input rows are one-hot, so that A is diagonal.
        self.counts: Tensor | None = None
        self.G: dict[int, SecondMoment] = defaultdict(SecondMoment)
        self.bias: dict[int, SecondMoment] = defaultdict(SecondMoment)

    def begin(self, inputs: Tensor) -> None:
        if self.site.weight is None:
            return
        # In chunks, so that rows stay in the cache.
        budget = ROW_BUDGET_CPU if inputs.device.type == "cpu" else ROW_BUDGET
        whole = None
        if not self.reduce and self.site.form.arrangements is None:
            with tensor_cores(inputs.device):
                whole = self.site.row_moment(inputs, budget)
        if whole is not None:
            self.A.add_moment(whole[0])
            self.rows_seen += whole[1]
            return
        for rows in self.site.mean_rows(inputs, budget, distinct=not self.reduce):
            rows = rows.mean_over_positions() if self.reduce else rows
            self.rows_seen += rows.values.shape[0] * rows.values.shape[1]
            if rows.structure == "one-hot":
                counts = rows.values.sum((0, 1))
                self.counts = counts if self.counts is None else self.counts + counts
            else:
                self.A.add(rows.evened().values)

    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        rows = self.site.summed_gradient_rows(gradients)
        if self.reduce and rows.shape[1] > 1:
            rows = rows.sum(1, keepdim=True)
        # Without sharing the exact block of the bias is G itself; then it is not collected twice, and not for a wide one alone.
        bias_is_output = rows.shape[1] == 1 and rows.shape[2] == 1 and part not in self.bias
        bias_is_output &= self.site.weight is not None or rows.shape[3] <= LARGEST_BIAS
        if self.site.bias is not None and not bias_is_output:
            if part not in self.bias and part in self.G:  # until now there was a row for each datum
                self.bias[part].add_moment(_of_bias(self.G[part].sum).clone())
            each = self.site.form.bias_from_rows(rows.sum(1))
            self.bias[part].add(each[:, None, :, None] if each.shape[1] > LARGEST_BIAS else each[:, None, None])
        if self.site.weight is not None or bias_is_output:
            self.G[part].add(rows)

    def sums(self) -> dict[str, Tensor]:
        found = {f"G{part}": moment.sum for part, moment in self.G.items()}
        found |= {f"bias{part}": moment.sum for part, moment in self.bias.items()}
        if self.counts is not None:
            return {**found, "counts": self.counts}
        return {**found, "A": self.A.sum} if self.rows_seen else found

    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        found: dict[str, Block] = {}
        site = self.site
        G, bias = _scale("G", sums, scales), _scale("bias", sums, scales)
        output = Factor(G, False, site.weight or str(site.bias)) if G is not None else None
        if site.weight is not None and output is not None:
            pooled = Factor(output.matrices.mean(0, keepdim=True), False, output.name) if self.pool else output
            total = sums["counts"] if "counts" in sums else self._arrange(sums["A"])
            A = Factor(_times(total, 1 / self.rows_seen), "counts" in sums, site.weight)
            found[site.weight] = KroneckerBlock(pooled, A, transposed=site.form.transposed)
        if site.bias is not None:
            own = Factor(bias, False, site.bias) if bias is not None else output
            if own is not None:
                wide = len(own.matrices) > LARGEST_BIAS
                found[site.bias] = DiagonalBlock(own.matrices.flatten()) if wide else DenseBlock(own)
        return found

    def _arrange(self, moment: Float[Tensor, "block d d"]) -> Float[Tensor, "block d_in d_in"]:
        """The second moment of input rows from that of distinct rows: its mean over arrangements."""
        ways = self.site.form.arrangements
        if ways is None or self.reduce:
            return moment
        total = torch.zeros((), dtype=moment.dtype, device=moment.device)
        for way in ways:
            total = total + moment[:, way[:, None], way]
        return total / len(ways)


def _of_bias(moment: Float[Tensor, "1 d d"]) -> Float[Tensor, "block _ _"]:
    """What is collected for a bias, where G is that: of a wide one the diagonal, in blocks of one number."""
    return moment if moment.shape[1] <= LARGEST_BIAS else moment.diagonal(dim1=1, dim2=2).reshape(-1, 1, 1)


def _times(sums: Tensor, factor: float | Tensor) -> Tensor:
    """Sums times a factor, in their place where nothing is to be differentiated."""
    has_graph = sums.requires_grad or (isinstance(factor, Tensor) and factor.requires_grad)
    return sums * factor if has_graph else sums.mul_(factor)


def _scale(name: str, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> Tensor | None:
    """The parts of a factor, each times its scale; None where nothing was collected."""
    parts = [sums[f"{name}{part}"] for part in range(len(scales)) if f"{name}{part}" in sums]
    if not parts:
        return None
    if len(parts) == 1:
        return _times(parts[0], scales[0].to(parts[0]))
    stacked = torch.stack(parts)
    return torch.einsum("k,k...->...", scales.to(stacked), stacked)


@dataclass(frozen=True)
class Ekfac(Rule):
    """λ_ij = Σ_n Σ_v ((U_Gᵀ ∇W U_A)_ij)² in the eigenbasis of KFAC's factors: its trace is the exact one.

    Gradients through the curvature, in extents of invariance and the like, are those of λ with the basis held.

    Args:
        fisher: Its square root, in both passes.
        batch_size: Data in a forward pass; gradients of single data are formed, so keep it small for wide layers.
    """

    fisher: Fisher = field(default_factory=ExactFisher)
    batch_size: int = 100

    @property
    def in_blocks(self) -> bool:
        return True

    def curvature(
        self, model: nn.Module, data: DataSource, likelihood: Likelihood, *, generator: Generator | None = None
    ) -> BlockCurvature:
        base = Kfac(self.fisher, batch_size=self.batch_size)
        with torch.no_grad():
            basis = base.curvature(model, data, likelihood, generator=generator).blocks
            # Of biases only the curvature is wanted, not a basis.
            decompose((b for b in basis.values() if isinstance(b, KroneckerBlock)), vectors=True, dtype=torch.float64)
        sites = Layout.of(model).sites

        def accumulator(site: Site) -> Accumulator:
            block = basis.get(site.weight or "")
            if not isinstance(block, KroneckerBlock):
                return base.accumulator(site)
            bias = base.accumulator(replace(site, weight=None)) if site.bias is not None else None
            return EigenAccumulator(site, block, bias)

        return swept_curvature(
            model, data, likelihood, self.fisher, lambda: {name: accumulator(site) for name, site in sites.items()},
            batch_size=self.batch_size, generator=generator, estimator=_named(self, sites.values()),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"EKFAC ({self.fisher})"


class EigenAccumulator(Accumulator):
    """Squared gradients of each datum, in the eigenbasis of a Kronecker block; a bias is collected by KFAC."""

    def __init__(self, site: Site, basis: KroneckerBlock, bias: Accumulator | None) -> None:
        self.site, self.basis, self.bias = site, basis, bias
        self.rows = torch.empty(0)
        self.squares: dict[str, Tensor] = {}

    def begin(self, inputs: Tensor) -> None:
        self.rows = torch.einsum("nsbi,bij->nsbj", self.site.rows(inputs).values, self.basis.A.eigenvectors)
        if self.bias is not None:
            self.bias.see(inputs, self.site.parts)

    def add(self, part: int, gradients: Float[Tensor, "v m *rest"]) -> None:
        U_G, key = self.basis.G.eigenvectors, f"square{part}"
        for column in self.site.gradient_rows(gradients):
            rotated = torch.einsum("nsbo,bop->nsbp", column, U_G.expand(column.shape[2], -1, -1))
            squares = squared_products(rotated, self.rows)
            self.squares[key] = self.squares[key] + squares if key in self.squares else squares
        if self.bias is not None:
            self.bias.add(part, gradients)

    def sums(self) -> dict[str, Tensor]:
        return {**self.squares, **(self.bias.sums() if self.bias is not None else {})}

    def blocks(self, sums: Mapping[str, Tensor], scales: Float[Tensor, " k"]) -> dict[str, Block]:
        stacked = torch.stack([sums[f"square{part}"] for part in range(len(scales))])
        values = torch.einsum("k,kboi->boi", scales.to(stacked), stacked)
        rest = self.bias.blocks(sums, scales) if self.bias is not None else {}
        return {str(self.site.weight): EigenBlock(values, self.basis), **rest}


#: Where means of log p(D | W) and of weights are kept: names of no map.
_LOG_LIKELIHOOD, _WEIGHTS = ("log p(D | W)", ""), "W"


class RunningCurvature:
    """KFAC of the batches that were seen last.

    Args:
        model: Whose curvature it is; it may be trained meanwhile.
        likelihood: Of targets given outputs.
        rule: What is collected.
        memory: Batches that count: the mean is over all at first, then decays at a rate of 1 / memory.
        generator: For sampled columns; on the device of the model.
        processes: Those that share every batch.
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Likelihood,
        rule: Kfac,
        memory: int,
        generator: Generator,
        processes: Processes = ALONE,
    ) -> None:
        if memory < 1:
            raise ValueError(f"memory must be at least one batch, got {memory}.")
        self.likelihood, self.rule, self.memory, self.generator = likelihood, rule, memory, generator
        self.processes = processes
        self._capture = Capture(model)
        self._capture.coarse = likelihood.bears_rounding
        self._accumulators: Mapping[str, Accumulator] = {}
        self._means: dict[tuple[str, str], Tensor] = {}
        self._batches = torch.zeros((), dtype=torch.float64, device=generator.device)
        #: Input rows of a batch in the mean, by map; and batches, but for those that a captured step adds, which are all alike.
        self._rows: dict[str, float] = {}
        self._count = self._size = 0
        self._checked = False

    @torch.no_grad()
    def add(self, batch: Batch) -> None:
        """See a batch, of the same size as all others; nothing waits for the device.

        Raises:
            ValueError: If it is of another size.
        """
        inputs, targets = batch
        if self._size not in (0, len(inputs)):
            raise ValueError(f"All batches must be of one size, so that they count alike: {self._size}, got {len(inputs)}.")
        self._size = len(inputs)
        mine = self.processes.share(len(inputs))
        inputs = inputs[mine]
        if not self._checked and len(inputs):
            check_capture(self._capture, inputs)
            self._checked = True
        accumulators = {name: self.rule.accumulator(site) for name, site in self._capture.layout.sites.items()}
        free: dict[str, Tensor] = {}
        with self._capture as capture:
            outputs = capture.forward(inputs)
            predicted = outputs.detach()
            columns = self.rule.fisher.columns_of(mine, self.likelihood, predicted, targets, self.generator)
            collect(capture, accumulators, free, inputs, outputs, columns)
        log_likelihood = self.likelihood.log_prob(predicted, targets[mine]).sum()
        sums, log_likelihood = add_up(self.processes, accumulators, collected(accumulators, free), log_likelihood)
        self._batches += 1
        share = self._batches.reciprocal().clamp(min=1 / self.memory)
        found = {**sums, _LOG_LIKELIHOOD: log_likelihood}
        self._count += 1
        for name, accumulator in accumulators.items():
            before = self._rows.get(name, float(accumulator.rows_seen))
            self._rows[name] = before + (accumulator.rows_seen - before) * max(1 / self._count, 1 / self.memory)
        self._match_biases(found)
        for name, weight in weights(capture.model).items():
            found[_WEIGHTS, name] = weight.detach()
        for key, value in found.items():
            if key not in self._means:
                self._means[key] = torch.zeros_like(value)
            self._means[key].lerp_(value, share.to(value.dtype))
        self._accumulators = accumulators

    def _match_biases(self, found: dict[tuple[str, str], Tensor]) -> None:
        """Where some batches have a row for each datum and others several, the block of a bias is that of G in the first."""
        for name, what in [key for key in found if key[0] in self._rows and key[1].startswith("bias")]:
            if (name, what) not in self._means and (before := self._means.get((name, what.replace("bias", "G")))) is not None:
                self._means[name, what] = _of_bias(before).clone()
        known = [key for key in self._means if key[0] in self._rows and key[1].startswith("bias")]
        for name, what in [key for key in known if key not in found]:
            found[name, what] = _of_bias(found[name, what.replace("bias", "G")])

    @property
    def is_known(self) -> bool:
        """Whether a batch was seen."""
        return self._size > 0

    @torch.no_grad()
    def squares(self) -> dict[str, Float[Tensor, ""]]:
        """‖W‖² by tensor, of the weights or of their mean, whichever is less.

        MacKay's update is about the mode. Weights jitter around it by the noise of their steps, and in a large tensor that is
        off, where the mode is next to nothing, their squares are those of noise; the mean of weights that fall lags behind.
        """
        named = weights(self._capture.model)
        means = {name: mean for (what, name), mean in self._means.items() if what == _WEIGHTS}
        return {name: torch.minimum(mean.square().sum(), named[name].square().sum()) for name, mean in means.items()}

    @torch.no_grad()
    def curvature(self, num_data: int) -> BlockCurvature:
        """H of all the data, as the batches that were seen say.

        Raises:
            RuntimeError: If none was seen.
        """
        if not self.is_known:
            raise RuntimeError("No batch was seen yet, so there is no curvature. Add batches first.")
        scale = num_data / self._size
        # A is a mean over rows and needs no scale; all else is multiplied by those of the parts.
        sums = {key: value.clone() for key, value in self._means.items() if key[0] != _WEIGHTS}
        log_likelihood = sums.pop(_LOG_LIKELIHOOD) * scale
        for name, accumulator in self._accumulators.items():
            accumulator.rows_seen = self._rows[name]
        blocks = make_blocks(dict(self._accumulators), sums, self.rule.fisher.scales(self.likelihood) * scale)
        named = _named(self.rule, self._capture.layout.sites.values())
        return BlockCurvature(blocks, log_likelihood, f"{named}, running mean", None)

    def state_dict(self) -> dict[str, Any]:
        """The running means, as tensors and plain values by name."""
        found: dict[str, Any] = {"batches": self._batches, "size": self._size, "keys": [list(key) for key in self._means]}
        found |= {"rows": dict(self._rows), "count": self._count}
        return found | {f"mean.{index}": mean for index, mean in enumerate(self._means.values())}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what `state_dict` gave."""
        self._batches.copy_(state["batches"])
        self._size = int(state["size"])
        device = self._batches.device
        self._means = {(what, name): state[f"mean.{i}"].to(device) for i, (what, name) in enumerate(state["keys"])}
        sites = self._capture.layout.sites
        self._accumulators = {name: self.rule.accumulator(sites[name]) for name in state["rows"]}
        self._rows = {name: float(rows) for name, rows in state["rows"].items()}
        self._count = int(state.get("count", self.memory))
