"""What is asked of a model that several processes hold in shards, and of a whole one; and what each of them does."""

import math
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes import sharded as library
from symbayes.curvature import decompositions
from symbayes.curvature.rule import MonteCarloFisher
from symbayes.data.source import source_for
from symbayes.layout import hyperparameters
from symbayes.sharded import gathered
from symbayes.training.hyper import update_precisions
from tests.training.shared import Smoothed, network, points

#: By name; those that draw are given a generator.
RULES = {
    "sampled": sb.Kfac(MonteCarloFisher(2)),
    "ekfac": sb.curvature.Ekfac(),
    "diagonal": sb.curvature.Diagonal(),
    "ggn": sb.curvature.Ggn(),
    "lanczos": sb.curvature.Lanczos(probes=2),
    "kernel": sb.curvature.TangentKernel(subset=10, subsets=2),
    "subsets": sb.curvature.Subsets(size=20, subsets=2),
}


class Mixed(nn.Module):
    """Attention, a norm, a weight that two modules share, and one that is frozen."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.random.manual_seed(4)
            self.first, self.attention = nn.Linear(4, 6), nn.MultiheadAttention(6, 2, batch_first=True)
            self.norm, self.inner, self.last = nn.LayerNorm(6), nn.Linear(6, 6, bias=False), nn.Linear(6, 3)
            self.steps = nn.GRU(6, 6, batch_first=True)
        self.again = nn.Linear(6, 6, bias=False)
        self.again.weight = self.inner.weight
        self.first.bias.requires_grad_(False)

    def forward(self, x):
        h = torch.tanh(self.first(x.flatten(1, 2)))
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        return self.last(self.steps(torch.tanh(self.again(torch.tanh(self.inner(h)))))[0].mean(1))


def _whole(model, **settings):
    return model


def _sharded(model, **settings):
    """A layer on its own, two together, and the rest."""
    from torch.distributed.fsdp import fully_shard

    kinds = (nn.Linear, nn.Conv2d, nn.LayerNorm)
    first, *others = (module for module in model.modules() if type(module) in kinds and module.bias is not None)
    fully_shard(first, **settings)
    if others:
        fully_shard(others, **settings)
    return fully_shard(model, **settings)


def _trained(model, share, steps):
    """A few steps of a user's own, by the mean gradient of all data."""
    x, y = (values[:60][share] for values in points())
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        adam.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        adam.step()


def _weights(model):
    full = {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in model.named_parameters()}
    return {name: value.detach().clone() for name, value in full.items()}


def _figures(evidence):
    return {"evidence": evidence.total.detach(), **{f"γ {name}": value for name, value in evidence.effective.items()}}


def rounds(shard, share):
    """Steps of weights, and hyper-steps both ways: by the gradient of the evidence, and MacKay's."""
    model, likelihood = shard(network()), sb.Categorical()
    prior, found = sb.TensorwisePrior(model), {}
    climb = torch.optim.Adam(prior.parameters(), lr=0.3)
    for turn in range(2):
        _trained(model, share, 3)
        climb.zero_grad()
        evidence = sb.laplace_evidence(model, points(), likelihood, prior)
        (-evidence.total).backward()
        climb.step()
        source = source_for(model, points())
        with gathered(model, source), torch.no_grad():
            update_precisions(sb.Kfac().curvature(model, source, likelihood), model, prior, 0.7)
        found |= {f"{turn} {name}": value for name, value in _figures(evidence).items()}
        found |= {f"{turn} precisions": prior.log_precision.detach().clone()}
    _trained(model, share, 1)
    return found | _weights(model)


def by_rules(shard, share):
    model, found = shard(network()), {}
    prior = sb.TensorwisePrior(model)
    for name, rule in RULES.items():
        with torch.no_grad():
            generator = torch.Generator().manual_seed(7)
            evidence = sb.laplace_evidence(model, points(), sb.Categorical(), prior, rule=rule, generator=generator)
        found |= {f"{name} {what}": value for what, value in _figures(evidence).items()}
        found |= {f"{name} drawn": generator.get_state()}
    _trained(model, share, 1)  # the first of its forward passes
    return found | _weights(model)


def mixed(shard, share):
    """Of modules of many kinds; and predictions."""
    model = shard(Mixed().double())
    prior, likelihood = sb.PathwisePrior(model, 3.0), sb.Categorical()
    _trained(model, share, 2)
    data, generator = points(), torch.Generator().manual_seed(2)
    with torch.no_grad():
        model(data[0])  # after which FSDP2 leaves some tensors whole
    found = _figures(sb.laplace_evidence(model, data, likelihood, prior))
    source = source_for(model, data)
    with gathered(model, source, prior), torch.no_grad():
        posterior = sb.laplace_posterior(sb.Kfac().curvature(model, source, likelihood), model, prior)
        said = sb.predict(model, posterior, likelihood, data[0][:5], generator=generator)
    return found | {"said": said.mean} | _weights(model)


def gradients(shard, share):
    """In a hyperparameter, which is no weight to be sharded, and in a noise."""
    smoothed, found = Smoothed(), {}
    model = shard(smoothed, ignored_params=set(hyperparameters(smoothed).values())) if shard is _sharded else smoothed
    prior, likelihood = sb.TensorwisePrior(model), sb.Categorical()
    # A second pass draws columns for shares of the data.
    rules = {name: rule for name, rule in RULES.items() if name != "sampled"}
    for name, rule in {"kfac": sb.Kfac(), **rules}.items():
        generator = torch.Generator().manual_seed(3)
        settings = {"rule": rule, "generator": generator, "share": 0.5 if name == "kfac" else 1.0}
        (found[name],) = sb.evidence_gradient(model, points(), likelihood, prior, **settings)
        found[f"{name} drawn"] = generator.get_state()
    source = source_for(model, points())
    with gathered(model, source):
        (found["gathered before"],) = sb.evidence_gradient(model, source, likelihood, prior)
    sb.laplace_evidence(model, points(), likelihood, prior).total.backward()
    found |= {"whole": model.share.grad, "precisions": prior.log_precision.grad}

    net = shard(nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 1)).double())
    with torch.no_grad():
        for value in net.parameters():  # sharded or not
            value.copy_(torch.ones_like(value) / 3)
    noisy = sb.Gaussian()
    x, y = points()
    sb.laplace_evidence(net, (x, y[:, None].double()), noisy, sb.TensorwisePrior(net)).total.backward()
    return found | {f"noise {name}": value.grad for name, value in noisy.named_parameters()}


CASES = {"rounds": rounds, "rules": by_rules, "mixed": mixed, "gradients": gradients}
#: Those that four processes compute, too.
FOUR = ("rounds", "mixed")


def of_one(name):
    """The numbers of one process, with whole models."""
    return CASES[name](_whole, slice(None))


def _said(attempt):
    try:
        attempt()
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def _state(model):
    """What FSDP2 changes of modules, and what a context has to leave as it was."""
    return [
        (type(module), *map(list, (module._forward_hooks, module._forward_pre_hooks, map(type, module._parameters.values()))))
        for module in model.modules()
    ]


def refusals(rank, count):
    """What is said to what cannot be, by name; and whether the model is as before, and gives the same after each."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model, likelihood, (x, y) = _sharded(network()), sb.Categorical(), points()
    prior = sb.TensorwisePrior(model)
    evidence = partial(sb.laplace_evidence, model, likelihood=likelihood, prior=prior)
    state, before = _state(model), _figures(evidence((x, y)))
    apart = x.clone()
    apart[5, 0, 0, 0] = math.inf  # in the share of one

    def changing():
        with gathered(model), torch.no_grad():
            next(model.parameters()).mul_(2)

    def failing():
        with gathered(model):
            raise ArithmeticError("on purpose")

    def of_another_torch():
        known, library._FSDP = library._FSDP, "elsewhere"
        try:
            evidence((x, y))
        finally:
            library._FSDP = known

    def extents():
        average = sb.OrbitAverage(network(), sb.affine2d("rotation"), samples=2).double()
        net = _sharded(average)
        sb.laplace_evidence(net, (x, y), likelihood, sb.TensorwisePrior(net))

    def own_tensor():
        factor = torch.ones((), dtype=torch.float64, requires_grad=True)
        handle = model[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] * factor,))
        try:
            evidence((x, y))
        finally:
            handle.remove()

    def unlike(change):
        other = sb.TensorwisePrior(model)
        with torch.no_grad():
            other.log_precision.add_(change)
        sb.laplace_evidence(model, (x, y), likelihood, other)

    def partly():
        mesh = init_device_mesh("cpu", (count, 1), mesh_dim_names=("all", "one"))["one"]
        net = fully_shard(network(), mesh=mesh)
        sb.laplace_evidence(net, (x, y), likelihood, sb.TensorwisePrior(net))

    def parallel():
        net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4)).double()
        parallelize_module(net[1], init_device_mesh("cpu", (count,)), ColwiseParallel())
        sb.laplace_evidence(net, (x, y), likelihood, sb.TensorwisePrior(net))

    order = torch.arange(61) if rank == 0 else torch.arange(61).flip(0)
    buffered = _sharded(network(norm=True))
    buffered[1].running_mean.fill_(rank)
    tries = {
        "fit": lambda: sb.fit(model, (x, y), epochs=1, progress=False),
        "curvature": lambda: sb.Kfac().curvature(model, source_for(model, (x, y)), likelihood),
        "loader": lambda: evidence(DataLoader(TensorDataset(x, y), 20)),
        "other order": lambda: evidence((x[order], y[order])),
        "other prior": lambda: unlike(float(rank)),
        "other buffers": lambda: sb.laplace_evidence(buffered, (x, y), likelihood, sb.TensorwisePrior(buffered)),
        "not finite": lambda: evidence((apart, y)),
        "own tensor": own_tensor,
        "changed": changing,
        "failed": failing,
        "another torch": of_another_torch,
        "extents": extents,
        "parallel": parallel,
        "partly": partly,
    }
    found = {}
    for name, attempt in tries.items():
        found[name] = _said(attempt)
        assert _state(model) == state, name
    after = _figures(evidence((x, y)))
    assert all(torch.equal(after[name], value) for name, value in before.items())
    return found


def work(rank, count, folder):
    """All cases, in one of several processes."""
    torch.set_num_threads(1)
    folder = Path(folder)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    decompositions._WORTH_SENDING = 2  # in these processes alone
    share = slice(60 // count * rank, 60 // count * (rank + 1))
    found = {name: CASES[name](_sharded, share) for name in (FOUR if count == 4 else CASES)}
    if count == 2:
        found["refusals"] = refusals(rank, count)
    torch.save(found, folder / f"{rank}.pt")
    distributed.barrier()
    distributed.destroy_process_group()
