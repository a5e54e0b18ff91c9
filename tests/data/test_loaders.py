"""Every datum comes once in a pass, and none alone; a loader that leaves data out or repeats them is refused."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import symbayes as sb
from symbayes.curvature import Ggn, Lanczos, TangentKernel
from symbayes.data.source import as_source

CPU = torch.device("cpu")
N = 11
DATA = TensorDataset(torch.randn(N, 3, generator=torch.Generator().manual_seed(0)), torch.arange(N) % 2)


class Longer(Sampler):
    """Says that it is as long as the data, and goes on."""

    def __len__(self):
        return N

    def __iter__(self):
        return iter([*range(N), 0])


LOSSY = {
    "batches dropped": lambda: DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, drop_last=True)),
    "with replacement": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True)),
    "weighted": lambda: DataLoader(DATA, 4, sampler=WeightedRandomSampler([1.0] * N, N)),
    "more than there are": lambda: DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=2 * N)),
    "an index twice": lambda: DataLoader(DATA, 4, sampler=SubsetRandomSampler([0, 1, 1, 2])),
    "another length": lambda: DataLoader(DATA, 4, sampler=Longer()),
}


@pytest.mark.parametrize("name", LOSSY)
def test_a_loader_that_leaves_data_out_or_repeats_them_is_refused(name):
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"must give each of its \d+ data once in a pass; this one draws .* without drop_last"):
        sb.laplace_evidence(model, LOSSY[name](), sb.Categorical(), sb.TensorwisePrior(model))
    with pytest.raises(ValueError, match="must give each of its"):
        sb.fit(model, LOSSY[name](), epochs=1, progress=False)


def test_evaluation_counts_what_came():
    result = sb.fit(nn.Linear(3, 2), DATA, epochs=1, progress=False)
    with pytest.raises(ValueError, match="must give each of its 11 data once"):
        result.evaluate(LOSSY["batches dropped"]())


def test_a_loader_that_draws_other_data_in_every_pass_is_refused():
    loader = DataLoader(DATA, 4, sampler=RandomSampler(DATA, num_samples=6, generator=torch.Generator().manual_seed(0)))
    with pytest.raises(ValueError, match=r"must give the same data in every pass; this one draws 6 others each time.*Subset"):
        as_source(loader, CPU)


def test_a_data_set_that_gives_fewer_than_it_says_is_refused():
    class Short(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return DATA[index]

        def __getitems__(self, indices):
            return [DATA[index] for index in indices if index != 3]

    with pytest.raises(ValueError, match="must give each of the 11 data once; got 10"):
        list(as_source(Short(), CPU).batches(4))


def test_looking_at_a_loader_leaves_random_numbers_where_they_were():
    class Shuffled(Sampler):
        def __len__(self):
            return N

        def __iter__(self):
            np.random.rand()  # noqa: NPY002
            return iter(torch.randperm(N).tolist())

    own = torch.Generator().manual_seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), own.get_state()  # noqa: NPY002
    as_source(DataLoader(DATA, 4, sampler=Shuffled()), CPU)
    as_source(DataLoader(DATA, 4, sampler=RandomSampler(DATA, generator=own)), CPU)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), own.get_state()  # noqa: NPY002
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old, new) if isinstance(old, torch.Tensor) else old == new


@pytest.mark.parametrize("batch", [1, 2, 5, 10])
@pytest.mark.parametrize("kind", ["tensors", "data set", "loader"])
def test_no_datum_is_alone_in_a_batch(kind, batch):
    class Same(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return DATA[index]

    data = {"tensors": DATA.tensors, "data set": Same(), "loader": DataLoader(DATA, batch)}[kind]
    source = as_source(data, CPU)
    found = list(source.batches(batch))
    assert min(len(inputs) for inputs, _ in found) >= 2
    assert max(len(inputs) for inputs, _ in found) <= max(batch + 1, 3)
    assert_close(torch.cat([inputs for inputs, _ in found]), DATA.tensors[0])
    if kind == "loader":
        assert len(found) == source.count
    steps = list(source.training_batches(batch, torch.Generator().manual_seed(0)))
    assert sum(len(inputs) for inputs, _ in steps) == N
    assert (min(len(inputs) for inputs, _ in steps) == 1) == (batch == 1)  # steps of one datum are for who asks for them


def test_a_share_of_a_loader_s_batches_is_right_on_average():
    """Also where the last datum comes with the batch before it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    model.register_forward_pre_hook(lambda module, inputs: (inputs[0] * scale,))
    loader = DataLoader(TensorDataset(DATA.tensors[0].double(), DATA.tensors[1]), 5)
    prior = sb.TensorwisePrior(model)

    def gradient(share, seed=0):
        generator = torch.Generator().manual_seed(seed)
        found = sb.evidence_gradient(model, loader, sb.Categorical(), prior, [scale], share=share, generator=generator)
        return float(found[0])

    assert_close(sum(gradient(0.5, seed) for seed in range(40)) / 40, gradient(1.0), rtol=0.35, atol=0)


def test_arrays_are_data():
    arrays = DATA.tensors[0].numpy(), DATA.tensors[1].numpy()
    (inputs, targets) = next(as_source(arrays, CPU).batches(N))
    assert_close(inputs, DATA.tensors[0])
    assert_close(targets, DATA.tensors[1])


@pytest.mark.parametrize("rule", [sb.Kfac(batch_size=4), Ggn(batch_size=4), Lanczos(1, 1, batch_size=4)], ids=str)
def test_messages_number_a_datum_as_the_data_have_it(rule):
    inputs, targets = DATA.tensors[0].clone(), DATA.tensors[1]
    inputs[9, 1] = torch.nan
    model = nn.Linear(3, 2)
    with pytest.raises(sb.NotFiniteError, match=r"NaN or infinity in 1 of 3 data of a batch, first in datum 9\. Clean"):
        sb.laplace_evidence(model, (inputs, targets), sb.Categorical(), sb.TensorwisePrior(model), rule=rule)


def test_messages_do_not_number_data_that_were_shuffled():
    inputs, targets = DATA.tensors[0].clone(), DATA.tensors[1]
    inputs[9, 1] = torch.nan
    model = nn.Linear(3, 2)
    for data, rule in (
        ((inputs, targets), TangentKernel(N)),
        (DataLoader(TensorDataset(inputs, targets), N, shuffle=True), sb.Kfac()),
    ):
        with pytest.raises(sb.NotFiniteError, match=r"NaN or infinity in 1 of \d+ data of a batch\. Clean"):
            sb.laplace_evidence(model, data, sb.Categorical(), sb.TensorwisePrior(model), rule=rule)


def test_the_log_likelihood_of_a_datum_that_overflows_is_numbered():
    inputs, targets = DATA.tensors[0].clone(), DATA.tensors[1]
    inputs[6] = 3e38
    model = nn.Linear(3, 2)
    nn.init.ones_(model.weight)
    with pytest.raises(sb.NotFiniteError, match=r"log-likelihood must be finite.* of 4 data of a batch, first in datum 6"):
        sb.laplace_evidence(model, (inputs, targets), sb.Categorical(), sb.TensorwisePrior(model), rule=sb.Kfac(batch_size=4))
