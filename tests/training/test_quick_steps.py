"""Steps that are quick: what is set for them is as it was after them, and what is off is not turned."""

import dataclasses

import torch

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layers.structure import weights
from symbayes.training.problem import Problem
from symbayes.training.weight_steps import WeightSteps
from tests.small import load_few


def weight_steps(**changes):
    task = load_few("placed-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(0))
    prior = sb.TensorwisePrior(model)
    source = as_source(task.train, torch.device("cpu"))
    objective = dataclasses.replace(sb.Laplace.amortised(), running=2, **changes)
    generator = torch.Generator().manual_seed(0)
    steps = WeightSteps(Problem(model, source, sb.Categorical(), prior), objective, sb.Schedule(4, 20), generator)
    steps.epoch(1.0, generator)
    return steps, prior, generator


def turned(steps):
    named = weights(steps.problem.model)
    return {name for name, rotation in zip(named, steps.optimiser.rotations, strict=True) if rotation is not None}


def test_settings_of_the_backends_are_as_before():
    def settings():
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        return cudnn.benchmark, matmul.fp32_precision, cudnn.conv.fp32_precision

    before = settings()
    steps, _, _ = weight_steps()
    assert settings() == before
    seen = []
    steps.problem.model.register_forward_hook(lambda *_: seen.append(settings()))
    steps.step(next(steps.problem.data.batches(20)))
    assert seen == [(True, before[2], before[2])]
    assert settings() == before
    assert torch.get_float32_matmul_precision() == "highest"  # the older way to ask is not confused


def test_what_is_faint_is_turned_when_it_is_not_any_more():
    steps, prior, generator = weight_steps()
    off = {name for name in weights(steps.problem.model) if ".factored." in name}
    learned = prior.log_precision.detach().clone()
    with torch.no_grad():
        for name in off:
            prior.log_precision[prior.groups.index(prior.group_of[name])] = 20.0
            steps.problem.model.get_parameter(name).mul_(1e-4)
    steps.running = None
    forgotten = []
    steps.steps.forget = lambda: forgotten.append(len(forgotten))
    steps.turn(steps.curvature(False, generator))
    assert turned(steps)
    assert not turned(steps) & off
    assert len(forgotten) == 1
    steps.turn(steps.curvature(False, generator))
    assert len(forgotten) == 1  # the same tensors are turned, in the same memory
    with torch.no_grad():
        prior.log_precision.copy_(learned)
        for name in off:
            steps.problem.model.get_parameter(name).mul_(1e4)
    steps.turn(steps.curvature(False, generator))
    assert turned(steps) >= {name for name in off if "weight" in name}
    assert len(forgotten) == 2
