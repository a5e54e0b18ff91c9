"""Data as users have them: what `fit` takes, `evaluate` and `predict` take, too, and all kinds give the same."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    get_worker_info,
)

import symbayes as sb
from symbayes.data import source
from symbayes.data.source import TensorSource, as_source

CPU = torch.device("cpu")
N = 21
X = torch.randn(N, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Items(Dataset):
    """A datum as a function of its number gives it."""

    def __init__(self, item):
        self.item = item

    def __len__(self):
        return N

    def __getitem__(self, index):
        if index >= N:
            raise IndexError
        return self.item(index)


class Table:
    """Data by number that are no Dataset of torch, as those of `datasets`."""

    def __init__(self, item):
        self.items = Items(item)

    def __len__(self):
        return N

    def __getitem__(self, index):
        return self.items[index]


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class Long(Stream):
    """Says how long it is."""

    def __init__(self, items, length=N + 1):
        super().__init__(items)
        self.length = length

    def __len__(self):
        return self.length


def pair(index):
    return X[index], Y[index]


def named(index):
    return {"left": X[index, :1], "right": X[index, 1:], "labels": Y[index]}


KINDS = {
    "tensors": lambda: (X, Y),
    "double precision": lambda: (X.double(), Y),
    "arrays": lambda: (X.double().numpy(), Y.numpy().astype(np.uint8)),
    "a list": lambda: [X, Y],
    "tensors by number": lambda: TensorDataset(X, Y),
    "a data set": lambda: Items(pair),
    "arrays by number": lambda: Items(lambda i: (X[i].double().numpy(), int(Y[i]))),
    "a list by number": lambda: [pair(i) for i in range(N)],
    "by number, of another library": lambda: Table(pair),
    "a loader": lambda: DataLoader(Items(pair), 8),
    "a loader that gives arrays": lambda: DataLoader(TensorDataset(X, Y), 8, collate_fn=lambda some: arrays(some)),
    "a stream": lambda: Stream(map(pair, range(N))),
    "a stream by loader": lambda: DataLoader(Stream([pair(i) for i in range(N)]), 8),
    "a stream of batches": lambda: DataLoader(Stream([(X[:9], Y[:9]), (X[9:], Y[9:])]), batch_size=None),
    "as many batches as are said": lambda: DataLoader(Long([(X[:9], Y[:9]), (X[9:], Y[9:])], 2), batch_size=None),
    "a loader without batches": lambda: DataLoader(Items(lambda i: (X[i : i + 1], Y[i : i + 1])), batch_size=None),
    "a loader of batches in order": lambda: DataLoader(
        TensorDataset(X, Y), batch_sampler=BatchSampler(SequentialSampler(X), 5, drop_last=False)
    ),
}


def arrays(some):
    inputs, targets = zip(*some, strict=True)
    return np.stack(inputs), np.stack(targets)


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_are_taken_and_predicted_from(kind):
    torch.manual_seed(0)
    result = sb.fit(nn.Linear(4, 2), KINDS[kind](), epochs=1, progress=False)
    assert result.evaluate(KINDS[kind]()) == pytest.approx(result.evaluate((X, Y)))
    assert_close(result.predict(KINDS[kind]()).mean, result.predict(X).mean)


ALONE = {
    "an array": lambda: X.double().numpy(),
    "tensors by number": lambda: TensorDataset(X),
    "a data set": lambda: Items(lambda i: X[i]),
    "a loader": lambda: DataLoader(TensorDataset(X), 8),
    "a loader that gives tensors": lambda: DataLoader(Items(lambda i: X[i]), 8),
    "a stream": lambda: Stream(iter(X)),
}


@pytest.mark.parametrize("kind", ALONE)
def test_inputs_alone_are_predicted_from_and_not_learned_from(kind):
    torch.manual_seed(0)
    result = sb.fit(nn.Linear(4, 2), (X, Y), epochs=1, progress=False)
    assert_close(result.predict(ALONE[kind]()).mean, result.predict(X).mean)
    if kind != "an array":
        with pytest.raises(TypeError, match=r"A batch must be a pair of tensors \(inputs, targets\), got a"):
            result.evaluate(ALONE[kind]())


def test_inputs_of_frozen_whole_numbers_stay_real():
    """As those of quantised networks: the first parameter says nothing of the precision of the others."""

    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.coarse = nn.Parameter(torch.ones(4, dtype=torch.int8), requires_grad=False)
            self.layer = nn.Linear(4, 2)

        def forward(self, inputs):
            return self.layer(inputs * self.coarse)

    torch.manual_seed(0)
    result = sb.fit(Quantised(), (X.double(), Y), epochs=1, progress=False)
    assert result.examples.dtype == torch.float32
    assert_close(result.predict(X, by="plug-in").mean, result.model(X).softmax(1))
    assert result.predict(X).mean.dtype == torch.float32
    packed = sb.Packed(Quantised(), (X,))
    assert_close(packed.pack((X,)), X)


class Two(nn.Module):
    """A network of two inputs, which gives an object with logits."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, left, right):
        return SimpleNamespace(logits=self.layer(torch.cat([left, right], 1)))


LEFT, RIGHT = X[:, :1], X[:, 1:]
BY_NAME, IN_ORDER = {"left": LEFT, "right": RIGHT}, (LEFT, RIGHT)
SEVERAL = {
    "dictionaries by number": (lambda: Items(named), BY_NAME),
    "of another library": (lambda: Table(named), BY_NAME),
    "dictionaries by loader": (lambda: DataLoader(Items(named), 8), BY_NAME),
    "one after the other": (lambda: Stream([named(i) for i in range(N)]), BY_NAME),
    "a dictionary": (lambda: {**BY_NAME, "labels": Y}, BY_NAME),
    "a dictionary of arrays": (lambda: {"left": LEFT.numpy(), "right": RIGHT.numpy(), "labels": Y.numpy()}, BY_NAME),
    "a dictionary and targets": (lambda: (BY_NAME, Y), BY_NAME),
    "pairs of these by number": (lambda: Items(lambda i: ({"left": LEFT[i], "right": RIGHT[i]}, Y[i])), BY_NAME),
    "tuples with targets last": (lambda: Items(lambda i: (LEFT[i], RIGHT[i], Y[i])), IN_ORDER),
    "tensors by number": (lambda: TensorDataset(LEFT, RIGHT, Y), IN_ORDER),
    "tensors with targets last": (lambda: (LEFT, RIGHT, Y), IN_ORDER),
    "a tuple and targets": (lambda: (IN_ORDER, Y), IN_ORDER),
    "tuples by loader": (lambda: DataLoader(Items(lambda i: ((LEFT[i], RIGHT[i]), Y[i])), 8), IN_ORDER),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_inputs_are_taken_as_they_are(kind):
    make, inputs = SEVERAL[kind]
    torch.manual_seed(0)
    model = sb.Packed(Two(), make() if not isinstance(make(), dict | tuple) else inputs)
    result = sb.fit(model, make(), epochs=1, progress=False)
    packed = model.pack(inputs)
    assert_close(packed, X)
    assert result.evaluate(make()) == pytest.approx(result.evaluate((packed, Y)))
    for given in (make(), inputs, (packed, Y), TensorDataset(packed)):
        assert_close(result.predict(given).mean, result.predict(packed).mean)


def test_tensors_of_several_inputs_are_learned_from_as_one():
    model = sb.Packed(Two(), BY_NAME)
    assert isinstance(source.source_for(model, (BY_NAME, Y)), TensorSource)
    assert isinstance(source.source_for(nn.Sequential(model), {**BY_NAME, "labels": Y}), TensorSource)
    prior = sb.TensorwisePrior(model)
    wanted = sb.laplace_evidence(model, (model.pack(BY_NAME), Y), sb.Categorical(), prior).total
    assert_close(sb.laplace_evidence(model, (BY_NAME, Y), sb.Categorical(), prior).total, wanted)


def test_several_inputs_alone_are_predicted_from():
    by_name = [{"left": left, "right": right} for left, right in zip(LEFT, RIGHT, strict=True)]
    torch.manual_seed(0)
    result = sb.fit(sb.Packed(Two(), BY_NAME), (BY_NAME, Y), epochs=1, progress=False)
    for given in (by_name, DataLoader(by_name, 8), Stream(iter(by_name))):
        assert_close(result.predict(given).mean, result.predict(BY_NAME).mean)
    assert_close(result.predict(by_name[:2]).mean, result.predict(BY_NAME).mean[:2])
    result = sb.fit(sb.Packed(Two(), IN_ORDER), (IN_ORDER, Y), epochs=1, progress=False)
    for given in (TensorDataset(*IN_ORDER), DataLoader(TensorDataset(*IN_ORDER), 8)):
        assert_close(result.predict(given).mean, result.predict(IN_ORDER).mean)
    with pytest.raises(TypeError, match=r"must be tuples with targets last, or pairs \(inputs, targets\); got a tuple of 2"):
        result.evaluate(IN_ORDER)


@pytest.mark.parametrize("count", [2, 3])
def test_a_list_of_dictionaries_is_data_by_number(count):
    some = [named(i) for i in range(count)]
    model = sb.Packed(Two(), some)
    assert model.names == ("left", "right")
    assert source.source_for(model, some).size == count


def test_a_packed_network_may_have_a_single_input():
    images = X.reshape(N, 2, 2)
    data = TensorDataset(images, Y)
    model = sb.Packed(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), data)
    result = sb.fit(model, data, epochs=1, progress=False)
    for given in (data, images, (images,), (images, Y), DataLoader(data, 8)):
        assert_close(result.predict(given).mean, result.predict(X).mean)
    with pytest.raises(TypeError, match=r"or data that are made of such; got a list. A network of a single input needs no"):
        sb.Packed(nn.Flatten(), TensorDataset(images))


def test_tokens_may_be_a_single_input_of_a_packed_network():
    tokens = torch.arange(N * 3).reshape(N, 3) % 5
    model = sb.Packed(nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)), (tokens,))
    result = sb.fit(model, (tokens, Y), epochs=1, progress=False)
    assert result.examples.is_floating_point()
    assert result.evaluate((tokens, Y)) == pytest.approx(result.evaluate((model.pack((tokens,)), Y)))


def test_an_example_is_not_taken_out_of_a_stream_that_can_be_read_once():
    for make in (lambda stream: stream, lambda stream: DataLoader(stream, 8)):
        stream = Stream(map(named, range(N)))
        with pytest.raises(ValueError, match=r"this Stream can be read once. Give an example of inputs"):
            sb.Packed(Two(), make(stream))
        assert source.source_for(sb.Packed(Two(), BY_NAME), make(stream)).size == N


def test_targets_may_have_another_name():
    model = sb.Packed(Two(), {**BY_NAME, "kind": Y}, targets="kind")
    assert model.names == ("left", "right")
    assert source.source_for(model, {**BY_NAME, "kind": Y}).size == N
    with pytest.raises(ValueError, match=r"must have their targets as 'kind'; got left, right, labels. Name them by sb.Packed"):
        source.source_for(model, {**BY_NAME, "labels": Y})


def test_looking_at_a_loader_draws_no_random_numbers():
    own = torch.Generator().manual_seed(3)
    network, before = Two(), (torch.get_rng_state(), own.get_state())
    sb.Packed(network, DataLoader(Items(named), 8, shuffle=True, generator=own))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            Items(lambda i: {**named(i), "text": "a"}),
            r"a dictionary of left, right, as in the example; got one of left, right, text",
        ),
        (Items(lambda i: {"left": "a", "right": X[i], "labels": Y[i]}), "'left' is a list. Let a tokenizer give tensors"),
        (
            Items(lambda i: (LEFT[i], RIGHT[i], Y[i])),
            r"dictionaries with 'labels', or pairs \(inputs, targets\); got a list of 3",
        ),
        (Items(lambda i: {**named(i), "right": X[i]}), r"must be as in the example.*Pad what differs in length"),
        (Items(lambda i: {**named(i), "labels": "a"}), "Targets must be a tensor or an array, got a list"),
        (DataLoader([(BY_NAME, None)], batch_size=None), "Targets must be a tensor or an array, got a NoneType"),
    ],
)
def test_data_that_a_packed_network_does_not_take_are_refused(data, message):
    with pytest.raises((TypeError, ValueError), match=message):
        sb.fit(sb.Packed(Two(), BY_NAME), data, progress=False)


def test_several_inputs_of_a_plain_network_and_a_single_one_of_a_packed_are_refused():
    with pytest.raises(TypeError, match=r"got a dict. A network of several inputs stands in sb.Packed\(network, data\)"):
        sb.fit(Two(), DataLoader(Items(named), 8), progress=False)
    with pytest.raises(
        TypeError, match=r"An example must be a dictionary or a tuple of inputs.*got a Tensor. A network of a sing"
    ):
        sb.Packed(nn.Linear(4, 2), TensorDataset(X, Y)[:][0])


def test_predictions_from_a_loader_that_shuffles_are_refused():
    result = sb.fit(nn.Linear(4, 2), (X, Y), epochs=1, progress=False)
    for loader in (
        DataLoader(Items(pair), 8, shuffle=True),
        DataLoader(Items(pair), batch_sampler=BatchSampler(RandomSampler(X), 5, drop_last=False)),
        DataLoader(Items(pair), batch_sampler=[[1, 0], [*range(2, N)]]),
    ):
        with pytest.raises(ValueError, match=r"must come in the order of the data.* Give one without shuffle"):
            result.predict(loader)


def test_a_loader_that_shuffles_in_a_batch_sampler_is_shuffled_by_the_generator():
    own = torch.Generator().manual_seed(3)
    before = own.get_state()
    loader = DataLoader(Items(pair), batch_sampler=BatchSampler(RandomSampler(X, generator=own), 5, drop_last=False))
    assert as_source(loader, CPU).generators() == (own,)
    assert torch.equal(own.get_state(), before)
    found = as_source(DataLoader(Items(pair), batch_sampler=BatchSampler(RandomSampler(X), 5, drop_last=False)), CPU)
    first, again = (
        torch.cat([inputs for inputs, _ in found.batches(5, generator=torch.Generator().manual_seed(0))]) for _ in range(2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, X)


def test_a_stream_is_read_once_and_said_so(caplog):
    with caplog.at_level(logging.INFO, "symbayes"):
        found = as_source(Stream(map(pair, range(N))), CPU)
    assert isinstance(found, TensorSource)
    assert found.size == N
    assert "Read 21 data of a Stream once; they are kept" in caplog.text
    assert_close(torch.cat([inputs for inputs, _ in found.batches(4)]), X)


def test_workers_do_not_repeat_a_stream():
    assert as_source(DataLoader(Stream([pair(i) for i in range(N)]), 8, num_workers=2), CPU).size == N

    class Split(Stream):
        def __iter__(self):
            worker = get_worker_info()
            return iter(self.items if worker is None else self.items[worker.id :: worker.num_workers])

    assert as_source(DataLoader(Split([pair(i) for i in range(N)]), 8, num_workers=2), CPU).size == N


def test_a_loader_of_a_stream_with_batches_of_its_own_keeps_them():
    class Doubled(DataLoader):
        def __iter__(self):
            return ((2 * inputs, targets) for inputs, targets in super().__iter__())

    found = as_source(Doubled(Stream([pair(i) for i in range(N)]), 8), CPU)
    assert_close(found.inputs, 2 * X)
    with pytest.raises(ValueError, match=r"must be read without workers.*this Doubled has 2. Make it with num_workers=0"):
        as_source(Doubled(Stream([pair(i) for i in range(N)]), 8, num_workers=2), CPU)


def test_data_of_several_shapes_are_refused():
    ragged = [pair(0), (X[0, :2], Y[0])]
    for data in (Stream(ragged), DataLoader(Stream(ragged), 2), ragged):
        with pytest.raises(
            ValueError, match=r"All data must have one shape, so that they can be a tensor \(stack expects.*Pad"
        ):
            list(as_source(data, CPU).batches(2))


def endless():
    while True:
        yield X[0], Y[0]


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (
            lambda: Stream(endless()),
            r"Data must end.* is read once and kept, up to 1,000 data and 4 GiB, and this one goes on. Cut",
        ),
        (lambda: Long([pair(i) for i in range(N)]), "must give as many data as its length says, 22; got 21"),
        (lambda: DataLoader(Long([(X, Y)], 2), batch_size=None), "must give as many batches as its length says, 2; got 1"),
        (lambda: Stream([]), "The data set is empty"),
        (lambda: DataLoader(Stream([pair(0)]), 8, drop_last=True), "must have drop_last=False"),
        (lambda: DataLoader(Stream([pair(0), (X[0, :2], Y[0])]), 1), "of an IterableDataset must have one shape"),
    ],
)
def test_streams_that_cannot_be_kept_are_refused(stream, message, monkeypatch):
    monkeypatch.setattr(source, "MOST_DATA", 1000)
    with pytest.raises(ValueError, match=message):
        as_source(stream(), CPU)


def test_streams_of_too_many_bytes_are_refused(monkeypatch):
    monkeypatch.setattr(source, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match=r"up to 1,048,576 data and 0\.000977 GiB"):
        as_source(Stream((torch.zeros(1000), Y[0]) for _ in range(10_000)), CPU)
