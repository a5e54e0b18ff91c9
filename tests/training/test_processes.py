"""Several processes train to the numbers of one, in double precision: by gloo, on the CPU."""

import re
from itertools import chain

import pytest
import torch
from torch import multiprocessing
from torch.testing import assert_close

import symbayes as sb
from symbayes.processes import ALONE, Processes
from tests.training import shared


def trained(count, folder):
    multiprocessing.spawn(shared.work, (count, str(folder)), count)
    return [torch.load(folder / f"{rank}.pt") for rank in range(count)], folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return trained(2, tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return trained(4, tmp_path_factory.mktemp("four"))


@pytest.fixture(scope="module")
def one():
    known = {}

    def find(name):
        known[name] = known[name] if name in known else shared.figures(shared.CASES[name]())
        return known[name]

    return find


def check_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert_close(found[name], value, rtol=1e-10, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", shared.CASES)
def test_two_processes_train_to_the_numbers_of_one(two, one, case):
    for found in two[0]:
        check_same(found[case], one(case))


@pytest.mark.parametrize("case", shared.FOUR)
def test_four_processes_train_to_the_numbers_of_one(four, one, case):
    for found in four[0]:
        check_same(found[case], one(case))


@pytest.mark.parametrize("count", [2, 4])
def test_processes_share_decompositions_out_and_have_all_of_them(two, four, count):
    wanted, found = shared.decomposed(ALONE), [each["decomposed"] for each in (two if count == 2 else four)[0]]
    for each in found:
        check_same(each["found"], wanted["found"])
        for name, value in found[0]["found"].items():
            assert torch.equal(each["found"][name], value)
        assert re.match("NotFiniteError: (The curvature of 'w1.*' could not be|Another of the processes)", each["said"])
    work, *shares = (sum(n * d**3 for n, d, vectors in each["solved"] if vectors and d > 1) for each in (wanted, *found))
    assert sum(shares) == work  # each matrix by one of them
    assert max(shares) < 0.7 * work


def test_processes_resume_from_the_checkpoint_of_the_first_which_alone_writes(two, one):
    (found, other), folder = two
    check_same(found["interrupted"], one("exact"))
    check_same(other["interrupted"], one("exact"))
    loaded = sb.load_result(folder / "result", shared.network())
    assert_close(loaded.model.state_dict()["0.weight"].double(), one("exact")["0.weight"], rtol=1e-6, atol=1e-6)


def test_what_is_asked_for_after_training_may_be_asked_for_in_one_process(two):
    assert two[0][0]["alone"] == pytest.approx(3.0)  # classes of three data
    assert two[0][1]["alone"] is None


def test_objectives_that_are_not_shared_out_give_the_numbers_of_one_process(two):
    wanted = shared.figures(shared._fit(shared.network(), objective=sb.Elbo(), schedule=sb.Schedule(epochs=2, batch_size=20)))
    for found in two[0]:
        check_same(found["elbo"], wanted)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other data", "RuntimeError: All processes must have the same data"),
        ("not finite", "NotFiniteError"),
        ("loader", "ValueError: Data that 2 processes share .* the whole Dataset"),
        ("wrapped", "TypeError: The model must be the network itself.*DistributedDataParallel.*module"),
        ("small", "ValueError: 2 processes need at least 4 data in every batch"),
        ("norm", "ValueError: With a batch norm .'1'. the last batch must have at least 4 data"),
        ("drift", "RuntimeError: .*must have the same 'seen'"),
    ],
)
def test_what_processes_cannot_train_together_is_refused_in_all_of_them(two, name, words):
    for found in two[0]:
        said = found["refusals"][name]
        assert re.match(words, said), said


@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 11])
def test_shares_are_of_two_data_at_least_and_every_datum_is_in_one(count, size):
    shares = [list(range(size))[Processes(rank, count).share(size)] for rank in range(count)]
    assert list(chain(*shares)) == list(range(size))
    assert all(len(share) != 1 for share in shares) or size == 1
    assert ALONE.share(size) == slice(0, size)
