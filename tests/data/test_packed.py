"""Networks of several inputs: they learn and predict as they do from a single tensor."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb


class Tokens(nn.Module):
    """As a classifier of transformers: called by name, with a mask, and giving an object with logits."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask, age):
        kept = attention_mask[:, :, None]
        mean = (self.embedding(input_ids) * kept).sum(1) / kept.sum(1)
        return SimpleNamespace(logits=self.head(torch.cat([mean, age[:, None]], 1)))


@pytest.fixture
def inputs(generator):
    mask = torch.rand(20, 6, generator=generator) > 0.3
    mask[:, 0] = True
    ids = torch.randint(0, 9, (20, 6), generator=generator)
    return {"input_ids": ids, "attention_mask": mask, "age": torch.randn(20, generator=generator)}


def test_a_packed_network_gives_what_it_gives(inputs):
    network = Tokens()
    model = sb.Packed(network, inputs)
    packed = model.pack(inputs)
    assert packed.shape == (20, 13)
    assert_close(model(packed), network(**inputs).logits)
    swapped = dict(reversed(inputs.items()))
    assert torch.equal(model.pack(swapped), packed)


def test_it_learns_and_predicts(inputs):
    model = sb.Packed(Tokens(), inputs)
    targets = inputs["input_ids"][:, 0] % 3
    result = sb.fit(model, (model.pack(inputs), targets), epochs=3, progress=False)
    few = {name: part[:4] for name, part in inputs.items()}
    assert_close(result.predict(model.pack(few)).mean, result.predict(model.pack(inputs)).mean[:4])


def test_whole_numbers_keep_the_precision_of_the_weights(inputs):
    model = sb.Packed(Tokens().double(), inputs)
    large = {**inputs, "input_ids": torch.full_like(inputs["input_ids"], 2**24 + 1)}
    assert int(model.pack(large)[0, 0]) == 2**24 + 1


def test_inputs_may_be_a_tuple():
    network = nn.Bilinear(2, 3, 1)
    pair = torch.randn(5, 2), torch.randn(5, 3)
    model = sb.Packed(network, pair)
    assert_close(model(model.pack(pair)), network(*pair))


def test_other_inputs_are_refused(inputs):
    model = sb.Packed(Tokens(), inputs)
    with pytest.raises(ValueError, match="a dictionary of input_ids, attention_mask, age, as in the example; got one of age"):
        model.pack({"age": inputs["age"]})
    for age in (inputs["age"][:3], inputs["age"][0]):
        with pytest.raises(ValueError, match=r"must be of as many data each, got shapes \[20, 6\], \[20, 6\], \[(3)?\]"):
            model.pack({**inputs, "age": age})
    with pytest.raises(ValueError, match="a dictionary of input_ids, attention_mask, age, as in the example; got a NoneType"):
        model.pack(None)
    with pytest.raises(ValueError, match="a tuple of tensors, as in the example; got a NoneType"):
        sb.Packed(nn.Bilinear(2, 3, 1), (torch.randn(5, 2), torch.randn(5, 3))).pack(None)
    with pytest.raises(ValueError, match="got a tuple"):
        model.pack(tuple(inputs.values()))
    with pytest.raises(ValueError, match="a tuple of tensors, as in the example; got one of input_ids"):
        sb.Packed(nn.Bilinear(2, 3, 1), (torch.randn(5, 2), torch.randn(5, 3))).pack(inputs)
    with pytest.raises(ValueError, match="must be as in the example"):
        model.pack({**inputs, "age": inputs["input_ids"]})
    with pytest.raises(ValueError, match=r"must be \[n, 13\], as model.pack"):
        model(torch.zeros(2, 12))
    with pytest.raises(ValueError, match=r"must fit into torch.float32; the largest is 16777217"):
        model.pack({**inputs, "input_ids": inputs["input_ids"] + 2**24 + 1 - inputs["input_ids"]})
