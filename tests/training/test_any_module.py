"""Results of any module: pickled, saved and loaded, with its constructor where it is known; and shown in notebooks."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.training import loading
from symbayes.training.rebuild import build_layers, describe_layers, refuse_large
from tests.small import load_few

LAYERS = [
    nn.Linear(3, 4, bias=False),
    nn.Conv1d(2, 4, 3, padding="same", padding_mode="circular"),
    nn.Conv2d(4, 8, (3, 5), stride=(1, 2), padding=1, groups=2),
    nn.ConvTranspose2d(4, 2, 3, output_padding=1, stride=2),
    nn.BatchNorm2d(4, momentum=None, affine=False),
    nn.LayerNorm((3, 4), bias=False),
    nn.GroupNorm(2, 4),
    nn.MaxPool2d(2, padding=1),
    nn.AvgPool2d((2, 1)),
    nn.AdaptiveAvgPool2d((None, 4)),
    nn.Flatten(2),
    nn.Dropout(0.3),
    nn.LeakyReLU(0.2),
    nn.GELU("tanh"),
    nn.Softplus(2),
    nn.Embedding(5, 3, padding_idx=1),
    nn.Identity(),
    nn.Tanh(),
    nn.Upsample(scale_factor=2.0),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_of_torch_are_built_again_from_plain_values(layer):
    described = describe_layers(layer)
    assert described is not None
    built = build_layers(json.loads(json.dumps(described)))
    assert repr(built) == repr(layer)
    assert {n: v.shape for n, v in built.state_dict().items()} == {n: v.shape for n, v in layer.state_dict().items()}


class Own(nn.Linear):
    pass


@pytest.mark.parametrize("make", [lambda: Own(2, 2), lambda: nn.Sequential(Own(2, 2)), lambda: nn.ModuleList([nn.ReLU()])])
def test_other_modules_are_not(make):
    assert describe_layers(make()) is None


def test_a_layer_with_hooks_is_not():
    layer = nn.Linear(2, 2)
    layer.register_forward_hook(lambda *_: None)
    assert describe_layers(layer) is None


@pytest.mark.parametrize(
    "described",
    [
        {"kind": "load"},
        {"kind": "Transformer", "settings": {}},
        {"kind": "Sequential"},
        {"kind": "Linear", "settings": {"in_features": {}}},
        {},
    ],
)
def test_what_describes_no_network_is_refused(described):
    with pytest.raises(ValueError, match="must"):
        build_layers(described)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(256, 256), nn.Linear(256, 10)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.head(flat + self.inner(flat).relu())


@pytest.fixture(scope="module")
def results():
    task = load_few("upright-digits")
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(98, 10))
    fitted = [sb.fit(model, task.train, epochs=2, objective=sb.Laplace(), progress=False) for model in (plain, Residual())]
    return task, *fitted


def test_results_are_pickled_with_their_posteriors(results):
    task, *fitted = results
    inputs = task.test[0][:4]
    for result in fitted:
        again = pickle.loads(pickle.dumps(result))
        assert again.history == result.history
        assert str(again.symmetries) == str(result.symmetries)
        assert torch.equal(again.predict(inputs).mean, result.predict(inputs).mean)


def test_a_sequence_of_layers_is_loaded_without_being_given_and_others_with(results, tmp_path):
    task, plain, residual = results
    inputs = task.test[0][:4]
    plain.save(tmp_path / "plain")
    loaded = sb.load_result(tmp_path / "plain")
    assert repr(loaded.model) == repr(plain.model)
    assert_close(loaded.predict(inputs).mean, plain.predict(inputs).mean)
    residual.save(tmp_path / "own")
    with pytest.raises(ValueError, match=r"nor of torch's layers in an nn.Sequential, .* sb.load_result\(folder, model"):
        sb.load_result(tmp_path / "own")
    assert_close(sb.load_result(tmp_path / "own", Residual()).predict(inputs).mean, residual.predict(inputs).mean)


def test_notebooks_are_shown_tables(results):
    _, result, _ = results
    shown = result._repr_html_()
    assert "Training has not converged" in shown
    assert "<table>" in result.symmetries._repr_html_()
    assert f"{result.log_evidence:,.1f}".replace("-", "−") in result.evidence._repr_html_()
    model = nn.Linear(2, 2)
    found = sb.laplace_evidence(model, (torch.randn(9, 2), torch.zeros(9).long()), sb.Categorical(), sb.ScalarPrior(model))
    assert "Estimator: KFAC" in found._repr_html_()


def test_layers_that_are_used_twice_are_built_twice_and_ties_are_not_guessed(tmp_path):
    act, first, second = nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4)
    described = describe_layers(nn.Sequential(first, act, second, act))
    assert described is not None
    assert list(described["layers"]) == ["0", "1", "2", "3"]
    second.weight = first.weight
    assert describe_layers(nn.Sequential(first, act, second)) is None
    assert describe_layers(nn.Sequential(nn.Sequential(first), act, first)) is None


@pytest.mark.parametrize("beside", [{"device": "cpu"}, {"dtype": None}, {"_weight": None}])
def test_descriptions_that_say_where_to_build_are_refused(beside):
    settings = {"num_embeddings": 2**40, "embedding_dim": 2**10, **beside}
    with torch.device("meta"), pytest.raises(ValueError, match="must not say where"):
        build_layers({"kind": "Embedding", "settings": settings})


def test_layers_that_would_fill_the_memory_are_refused():
    described = describe_layers(nn.Sequential(nn.Linear(3, 4), nn.ConstantPad1d(2**28, 0.0)))
    assert described is not None
    refuse_large(described, torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"ConstantPad1d.* gives 1,073,741,832"):
        refuse_large(described, torch.zeros(2, 3))


def test_the_order_of_tensors_in_a_file_does_not_matter(tmp_path, monkeypatch):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    made = sb.fit(net, (torch.randn(20, 3), torch.arange(20) % 2), epochs=1, objective=sb.Map(), progress=False)
    made.save(tmp_path)
    whole_numbers_first = lambda raw: dict(sorted(load(raw).items(), key=lambda item: item[1].is_floating_point()))  # noqa: E731
    monkeypatch.setattr(loading, "load", whole_numbers_first)
    assert sb.load_result(tmp_path).log_evidence == made.log_evidence
