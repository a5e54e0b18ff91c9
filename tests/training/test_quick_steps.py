"""Steps that are quick: in TF32 where nobody chose otherwise, and in no eigenbasis where curvature is negligible."""

import pytest
import torch

import symbayes as sb
from symbayes.data.source import as_source
from symbayes.layout import weights
from symbayes.precision import tensor_cores
from symbayes.training.trainer import Problem
from tests.small import load_few


def training():
    task = load_few("placed-digits")
    model = sb.allconv(task, ("factored", "conv"), 1, generator=torch.Generator().manual_seed(0))
    problem = Problem(model, as_source(task.train, torch.device("cpu")), sb.Categorical(), sb.TensorwisePrior(model))
    trainer = sb.Laplace().trainer(problem, sb.Schedule(4, 20, 3e-3, 0.0), sb.Optimiser(2))
    state = trainer.init(torch.Generator().manual_seed(0))
    trainer.move_weights(state)
    return trainer, state


def rotated(state):
    named = weights(state.problem.model)
    return {name for name, rotation in zip(named, state.descent.rotations, strict=True) if rotation is not None}


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
        with tensor_cores(torch.device("cuda")):
            assert precision(matmul) == ("tf32", True, "high")
            with tensor_cores(torch.device("cuda")):
                assert precision(matmul) == ("tf32", True, "high")
    with tensor_cores(torch.device("cpu")):
        assert precision(matmul) == unset
    with pytest.raises(ZeroDivisionError), tensor_cores(torch.device("cuda")):
        raise ZeroDivisionError
    assert precision(matmul) == unset


@needs_precisions
def test_what_a_user_has_chosen_stays(matmul):
    torch.set_float32_matmul_precision("highest")
    with tensor_cores(torch.device("cuda")):
        assert precision(matmul) == ("ieee", False, "highest")
    matmul.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    try:
        with tensor_cores(torch.device("cuda")):
            assert matmul.fp32_precision == "none"
    finally:
        torch.backends.cudnn.conv.fp32_precision = "tf32"


def test_what_is_negligible_is_rotated_when_it_is_not_any_more():
    trainer, state = training()
    model, prior = state.problem.model, state.problem.prior
    off = {name for name in weights(model) if ".factored." in name}
    learned = prior.log_precision.detach().clone()
    with torch.no_grad():
        for name in off:
            prior.log_precision[prior.groups.index(prior.group_of[name])] = 20.0
            model.get_parameter(name).mul_(1e-4)
    state.running = None
    forgotten = []
    state.steps.forget = lambda: forgotten.append(len(forgotten))
    trainer.rotate(state, trainer.curvature(state))
    assert rotated(state)
    assert not rotated(state) & off
    assert len(forgotten) == 1
    trainer.rotate(state, trainer.curvature(state))
    assert len(forgotten) == 1  # the same tensors are rotated, in the same memory
    with torch.no_grad():
        prior.log_precision.copy_(learned)
        for name in off:
            model.get_parameter(name).mul_(1e4)
    trainer.rotate(state, trainer.curvature(state))
    assert rotated(state) >= {name for name in off if "weight" in name}
    assert len(forgotten) == 2
