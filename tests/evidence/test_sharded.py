"""Models that FSDP2 shards over processes have the evidence of one process, and train on: by gloo, on the CPU."""

import re

import pytest
import torch
from torch import multiprocessing
from torch.testing import assert_close

from tests.evidence import sharded


def asked(count, folder):
    multiprocessing.spawn(sharded.work, (count, str(folder)), count)
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return asked(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return asked(4, tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def one():
    known = {}

    def find(name):
        known[name] = known[name] if name in known else sharded.of_one(name)
        return known[name]

    return find


def check_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", sharded.CASES)
def test_two_processes_find_the_numbers_of_one(two, one, case):
    for found in two:
        check_same(found[case], one(case))


@pytest.mark.parametrize("case", sharded.FOUR)
def test_four_processes_find_the_numbers_of_one(four, one, case):
    for found in four:
        check_same(found[case], one(case))


@pytest.mark.parametrize("case", sharded.FOUR)
def test_all_processes_have_the_same_numbers(four, case):
    for found in four:
        assert all(torch.equal(found[case][name], value) for name, value in four[0][case].items())


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fit", "TypeError: The model must have whole tensors; this FSDPSequential is sharded .* before fully_shard"),
        ("curvature", "TypeError: The model must have whole tensors"),
        ("loader", "ValueError: Data that 2 processes share .* the whole Dataset"),
        ("other order", "RuntimeError: All processes must have the same data"),
        ("other prior", "RuntimeError: All processes must have the same 'log_precision' of TensorwisePrior"),
        ("other buffers", "RuntimeError: All processes must have the same '1.running_mean' of Sequential"),
        ("not finite", "NotFiniteError"),
        ("own tensor", "RuntimeError: Sums over processes must not depend on what asks for gradients"),
        ("changed", "RuntimeError: Weights of a sharded model are only lent .*; '0.weight' was changed"),
        ("failed", "ArithmeticError: on purpose"),
        ("another torch", "RuntimeError: Hooks of fully_shard must be known"),
        ("extents", "TypeError: Extents and probabilities must be hyperparameters.*'orbit' are a DTensor"),
        ("parallel", "TypeError: Models may be sharded by fully_shard .FSDP2. alone"),
        ("partly", "TypeError: A model must be sharded over all 2 processes"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_all_processes_and_leaves_the_model_sharded(two, name, words):
    for found in two:
        said = found["refusals"][name]
        assert re.match(words, said), said
