"""A model under many weights at once, without rewriting it; with noise on what its maps give, where that does the same.

**Local reparameterisation** (Kingma, Salimans and Welling 2015). Where a weight meets a datum once, in one row a, W a is
normal with known mean and variance, and noise can be drawn for every datum on its own rather than once for a batch. Averages
of sums over data are the same, gradients have far less variance. Where weights are shared, over the positions of a convolution
or the copies of an orbit average, what they give is correlated, and weights are drawn.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import vmap

from symbayes.adapters import has_convolution, mixes_data
from symbayes.curvature.capture import first_of
from symbayes.curvature.evaluate import evaluating
from symbayes.layout import Layout, Site, call_with
from symbayes.posterior.posterior import Members, Posterior, Weights
from symbayes.posterior.spread import FullSpread, MatrixSpread, Spread

Outputs = Float[Tensor, "m n c"]
#: Data by which it is seen which maps meet a datum once.
_LOOKED_AT = 8


def outputs_under(model: nn.Module, weights: Weights, inputs: Tensor, *, together: bool | None = None) -> Outputs:
    """The outputs of a model for the same inputs under m weights.

    Args:
        model: In the mode it is to be used in.
        weights: By tensor, [m, *shape]; others are as they are in the model.
        inputs: A batch.
        together: Whether to batch over weights; otherwise, and where torch cannot, one follows the other. When None, as is
            faster.
    """
    chosen = _faster_together(model, inputs) if together is None else together
    return _passes(lambda of_weights: call_with(model, of_weights, inputs), dict(weights), model, chosen)


def sampled_outputs(
    model: nn.Module,
    posterior: Posterior,
    inputs: Tensor,
    count: int,
    *,
    local: Mapping[int, Site] | None = None,
    antithetic: bool = False,
    generator: Generator | None = None,
) -> Outputs:
    """Outputs under draws from the posterior.

    Args:
        model: In the mode it is to be used in; its own weights are the means.
        posterior: Of its weights.
        inputs: A batch.
        count: Draws m.
        local: Parts of the posterior for which noise is drawn behind their map, from `local_maps`.
        antithetic: Whether the second half of the draws lies opposite to the first.
        generator: For the draws.
    """
    mixed = mixes_data(model)
    local = {} if mixed else {i: s for i, s in (local or {}).items() if not isinstance(posterior.parts[i][1], FullSpread)}
    drawn = Posterior(posterior.mean, tuple(part for i, part in enumerate(posterior.parts) if i not in local), posterior.kind)
    placed = drawn.sample(count, generator=generator, antithetic=antithetic)
    weights = {name: placed[name] for members, _ in drawn.parts for name in members.shapes}
    noise = {}
    for index, site in local.items():
        blocks, d_out, _ = _form(*posterior.parts[index], site)
        shape = (count // 2 if antithetic else count, len(inputs), blocks, d_out)
        like = posterior.mean[str(site.weight)]  # inputs may be whole numbers
        device = generator.device if generator is not None else like.device
        part = torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)
        noise[site.module] = torch.cat([part, -part]) if antithetic else part
    spreads = {site.module: (site, *posterior.parts[index]) for index, site in local.items()}
    return _with_noise(model, inputs, weights, noise, spreads)


def local_maps(model: nn.Module, inputs: Tensor, parts: Sequence[Members]) -> dict[int, Site]:
    """The parts of a posterior whose weights meet each datum once: index of the part, and the map.

    Args:
        model: To be looked at as it evaluates, and in the mode it is in.
        inputs: A batch.
        parts: What each part is over.
    """
    module_hooks = torch.nn.modules.module
    if module_hooks._global_forward_hooks:  # they come before noise, which belongs to what a weight gives
        return {}
    layout = Layout.of(model)
    sites = [site for site in layout.sites.values() if site.weight and site.copies == 1 and site.may_meet_once]
    own = layout.unshared
    indices = {next(iter(members.shapes)): index for index, members in enumerate(parts) if members.shapes.keys() <= own}
    found = {indices[site.weight]: site for site in sites if site.weight in indices}
    looks: list[tuple[nn.Module, AbstractContextManager[None]]] = [(model, evaluating(model))]
    if model.training:
        try:
            looks.append((deepcopy(model), nullcontext()))  # a pass of training may change what a model keeps
        except RuntimeError:  # torch does not copy tensors that were computed
            return {}
    few = inputs[:_LOOKED_AT] if len(inputs) > 2 else inputs[:1].repeat(3, *(1,) * (inputs.ndim - 1))
    with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
        for looked_at, mode in looks:
            with mode:
                for data in (few, few[:-1]):  # as many positions as data may look like data, but not twice
                    once = _met_once(looked_at, data, found, parts)
                    found = {index: site for index, site in found.items() if index in once}
    return found


def _met_once(model: nn.Module, inputs: Tensor, sites: Mapping[int, Site], parts: Sequence[Members]) -> set[int]:
    """Those parts whose map sees one row for each of these inputs, and whose tensors are not used anywhere else."""
    seen: dict[int, list[Tensor]] = {index: [] for index in sites}
    with ExitStack() as undo, torch.enable_grad():
        for index, site in sites.items():
            module = model.get_submodule(site.module)
            hook = module.register_forward_hook(partial(_cut_off, seen[index]), prepend=True, with_kwargs=True)
            undo.callback(hook.remove)
        outputs: Tensor = model(inputs)
        # With maps cut off, outputs, and what other maps see, depend on their tensors only where these are used otherwise.
        ends = [end.sum() for of_one in ([outputs], *seen.values()) for end in of_one if end.requires_grad]
        found = set()
        for index, rows in seen.items():
            tensors = [model.get_parameter(name) for name in parts[index].shapes]
            used = torch.autograd.grad(ends, tensors, allow_unused=True, retain_graph=True) if ends else ()
            once = [len(row) for row in rows] == [len(inputs)] and sites[index].form.meets_once(rows[0])
            if once and all(each is None for each in used):
                found.add(index)
    return found


def _with_noise(
    model: nn.Module,
    inputs: Tensor,
    weights: dict[str, Tensor],
    noise: dict[str, Tensor],
    spreads: Mapping[str, tuple[Site, Members, Spread]],
) -> Outputs:
    """Outputs under weights, with noise behind the maps that spreads are given for."""
    current: dict[str, Tensor] = {}

    def one(of_weights: dict[str, Tensor], of_noise: dict[str, Tensor]) -> Tensor:
        current.update(of_noise)
        outputs: Tensor = call_with(model, of_weights, inputs)
        return outputs

    def add_noise(name: str, _: nn.Module, seen: tuple[Tensor, ...], by_name: dict[str, Tensor], outputs: Tensor) -> Tensor:
        site, members, spread = spreads[name]
        rows = site.rows(first_of(seen, by_name)).values[:, 0]
        if members.column is not None:
            rows = torch.cat([rows, torch.ones_like(rows[..., :1])], -1)
        return outputs + _local(spread, _form(members, spread, site), rows, current[name]).reshape(outputs.shape)

    with ExitStack() as undo:
        for name in spreads:
            # Before the hooks of a user, which see what a drawn weight would give.
            hook = model.get_submodule(name).register_forward_hook(partial(add_noise, name), prepend=True, with_kwargs=True)
            undo.callback(hook.remove)
        return _passes(one, (weights, noise), model, _faster_together(model, inputs))


def _passes(one: Callable[..., Tensor], given: Any, model: nn.Module, together: bool) -> Outputs:
    """What a function gives for each of m arguments, which are tensors [m, ...] in dictionaries."""
    outputs = _each(one, given, model, together)
    if outputs.ndim != 3:
        raise ValueError(f"The model must give outputs [n, c], a row for each input; got shape {tuple(outputs.shape[1:])}.")
    return outputs


def _each(one: Callable[..., Tensor], given: Any, model: nn.Module, together: bool) -> Tensor:
    arguments = given if isinstance(given, tuple) else (given,)
    if together and not mixes_data(model):  # running means cannot be updated by many at once
        try:
            return vmap(one, randomness="different")(*arguments)
        except RuntimeError:
            # Recurrent layers (nn.LSTM, nn.GRU) have no rule for it, and modules cannot branch on the values of a batch. What
            # is wrong with a model for other reasons is raised below.
            pass
    count = len(next(value for part in arguments for value in part.values()))
    return torch.stack([one(*({name: v[index] for name, v in part.items()} for part in arguments)) for index in range(count)])


def _faster_together(model: nn.Module, inputs: Tensor) -> bool:
    """Whether to batch over weights: on a CPU, a convolution under many weights is one with groups, and slower than several."""
    return inputs.device.type != "cpu" or not has_convolution(model)


def _local(
    spread: Spread, form: tuple[int, int, int], rows: Float[Tensor, "n block d_in"], noise: Float[Tensor, "n block d_out"]
) -> Float[Tensor, "n block d_out"]:
    """(W − mean) a for every row a, with noise of its own."""
    if isinstance(spread, MatrixSpread):
        lengths = torch.einsum("nbi,bij->nbj", rows, spread.right).square().sum(-1, keepdim=True)
        return _root(lengths) * torch.einsum("boj,nbj->nbo", spread.left, noise)
    return _root(torch.einsum("nbi,boi->nbo", rows.square(), spread.variances().unflatten(0, form))) * noise


def _form(members: Members, spread: Spread, site: Site) -> tuple[int, int, int]:
    """Blocks, d_out and d_in of what a spread is over."""
    if isinstance(spread, MatrixSpread):
        return len(spread.left), spread.left.shape[1], spread.right.shape[1]
    shape = members.shapes[str(site.weight)]
    blocks, d_out = members.column or ((1, shape[0]) if len(shape) == 2 else (shape[0], shape[1]))
    return blocks, d_out, members.size // (blocks * d_out)


def _root(variances: Tensor) -> Tensor:
    """A square root with a slope at zero."""
    return variances.clamp(min=torch.finfo(variances.dtype).tiny ** 0.5).sqrt()


def _cut_off(
    seen: list[Tensor], _: nn.Module, inputs: tuple[Tensor, ...], by_name: dict[str, Tensor], outputs: Tensor
) -> Tensor:
    """Note what a map sees, and cut what it gives off from its weights."""
    seen.append(first_of(inputs, by_name))
    return outputs.detach()
