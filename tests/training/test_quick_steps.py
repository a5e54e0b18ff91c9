"""Steps that are quick: in TF32 where nobody chose otherwise, and not turned where there is nothing to turn."""

import dataclasses

import pytest
import torch
from symbayes.training.weight_steps import WeightSteps, _tensor_cores

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layers.structure import weights
from symbayes.training.problem import Problem
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


@pytest.fixture
def matmul():
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.matmul.fp32_precision = "none"


needs_precisions = pytest.mark.skipif(
    not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch tells what was chosen since 2.9"
)


def precision(matmul):
    """By all the ways to ask, none of which may be confused by another."""
    return matmul.fp32_precision, matmul.allow_tf32, torch.get_float32_matmul_precision()


@needs_precisions
def test_products_on_a_gpu_are_as_precise_as_convolutions_meanwhile(matmul):
    unset = ("none", False, "highest")
    for _ in range(2):
        assert precision(matmul) == unset
        with _tensor_cores(torch.device("cuda")):
            assert precision(matmul) == ("tf32", True, "high")
            with _tensor_cores(torch.device("cuda")):
                assert precision(matmul) == ("tf32", True, "high")
    with _tensor_cores(torch.device("cpu")):
        assert precision(matmul) == unset
    with pytest.raises(ZeroDivisionError), _tensor_cores(torch.device("cuda")):
        raise ZeroDivisionError
    assert precision(matmul) == unset


@needs_precisions
def test_what_a_user_has_chosen_stays(matmul):
    torch.set_float32_matmul_precision("highest")
    with _tensor_cores(torch.device("cuda")):
        assert precision(matmul) == ("ieee", False, "highest")
    matmul.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with _tensor_cores(torch.device("cuda")):
            assert matmul.fp32_precision == "none"
    finally:
        torch.backends.cudnn.conv.fp32_precision = "tf32"


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
