"""Posteriors of every kind survive saving, and damaged ones are refused."""

import json
from dataclasses import dataclass

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.source import TensorSource
from symbayes.posterior.families import FullCovariance, MatrixNormal, MeanField
from symbayes.posterior.laplace import laplace_posterior
from symbayes.posterior.posterior import Members, Posterior, load_posterior, save_posterior
from symbayes.posterior.spread import DiagonalSpread
from tests.damage import damaged


def network():
    return nn.Sequential(nn.Conv1d(1, 4, 2, groups=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(8, 3))


def laplace(rule):
    model = network()
    data = TensorSource(torch.randn(9, 1, 3), torch.arange(9) % 3, torch.device("cpu"))
    return laplace_posterior(rule.curvature(model, data, sb.Categorical()), model, sb.TensorwisePrior(model))


POSTERIORS = {
    "kfac": lambda: laplace(sb.Kfac()),
    "full": lambda: laplace(sb.curvature.Ggn()),
    "mean-field": lambda: MeanField(biases="deterministic").over(network())().detached(),
    "matrix-normal": lambda: MatrixNormal().over(network())().detached(),
    "full covariance": lambda: FullCovariance().over(network())(),
    "a point": lambda: Posterior({"weight": torch.randn(3, 2), "number": torch.tensor(1.5)}, (), "a point"),
}


@pytest.mark.parametrize("kind", POSTERIORS)
def test_a_posterior_survives_saving(kind, tmp_path):
    posterior = POSTERIORS[kind]()
    save_posterior(posterior, tmp_path / "posterior.safetensors")
    again = load_posterior(tmp_path / "posterior.safetensors")
    assert (again.kind, again.predicts) == (posterior.kind, posterior.predicts)
    assert_close(dict(again.mean), {name: value.detach() for name, value in posterior.mean.items()}, rtol=0, atol=0)
    assert [(dict(m.shapes), m.column, type(s)) for m, s in again.parts] == [
        (dict(m.shapes), m.column, type(s)) for m, s in posterior.parts
    ]
    seeds = [torch.Generator().manual_seed(3) for _ in range(2)]
    drawn, wanted = again.sample(2, generator=seeds[0]), posterior.sample(2, generator=seeds[1])
    assert_close(drawn, {name: value.detach() for name, value in wanted.items()}, rtol=0, atol=0)


def test_standard_deviations_under_their_earlier_name_are_read(tmp_path):
    posterior, path = POSTERIORS["mean-field"](), tmp_path / "posterior.safetensors"
    save_posterior(posterior, path)
    with safe_open(path, "pt") as file:
        about = file.metadata()
    earlier = {name.replace(":std", ":deviation"): value for name, value in load_file(path).items()}
    assert any(name.endswith(":deviation") for name in earlier)
    save_file(earlier, path, about)
    assert_close(load_posterior(path).variances(), posterior.variances(), rtol=0, atol=0)


def test_what_is_damaged_is_refused(tmp_path):
    path = tmp_path / "posterior.safetensors"
    with pytest.raises(FileNotFoundError, match=r"posterior\.safetensors must be a file"):
        load_posterior(path)
    save_posterior(POSTERIORS["kfac"](), path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"is damaged .* Copy it again; or remove the file"):
        load_posterior(path)
    path.write_bytes(whole)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["posterior"])
    save_file(tensors, path)
    with pytest.raises(ValueError, match="is damaged"):  # without its header
        load_posterior(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "0:left"}, path, {"posterior": json.dumps(about)})
    with pytest.raises(ValueError, match=r"is damaged .*left"):
        load_posterior(path)
    save_file(tensors, path, {"posterior": json.dumps({**about, "format": 7})})
    with pytest.raises(ValueError, match="has format 7; this version reads format 1"):
        load_posterior(path)


ABOUT = [
    (lambda about: about["parts"][0]["shapes"].update({"0.weight": [9, 9]}), r"is damaged"),
    (lambda about: about["parts"][0]["shapes"].update({"0.weight": "many"}), r"shapes.0.weight must be a list, got text"),
    (lambda about: about["parts"][0]["shapes"].update({"0.weight": [10**30]}), r"must be a whole number"),
    (lambda about: about["parts"][0]["shapes"].update({"0.weight": [10**9, 10**9]}), r"is damaged"),
    (lambda about: about["parts"][0].update(shapes={"1.weight": [2, 4]}), r"1.weight must have the shape \(4,\) of its mean"),
    (lambda about: about["parts"][0].update(spread="Narrow"), r"KeyError: 'Narrow'"),
    (lambda about: about["parts"][0].update(spread="DiagonalSpread"), r"is damaged \(Type"),
    (lambda about: about["parts"][0].update(column=[7, 7]), r"is damaged"),
    (lambda about: about.update(parts={}), r"posterior.parts must be a list, got a dictionary"),
    (lambda about: about.update(predicts="guessed"), r"posterior.predicts must be 'sampled' or 'linearised', got text"),
    (lambda about: about.clear(), r"has format None; this version reads format 1"),
]


@pytest.mark.parametrize(("change", "message"), ABOUT, ids=[message for _, message in ABOUT])
def test_parts_that_are_not_those_of_the_tensors_are_refused(change, message, tmp_path):
    path = tmp_path / "posterior.safetensors"
    save_posterior(POSTERIORS["kfac"](), path)
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["posterior"])
    change(about)
    save_file(tensors, path, {"posterior": json.dumps(about)})
    with pytest.raises(ValueError, match=message):
        load_posterior(path)


@pytest.mark.parametrize("kind", POSTERIORS)
def test_damaged_posteriors_are_read_or_refused(kind, tmp_path):
    path = tmp_path / "posterior.safetensors"
    save_posterior(POSTERIORS[kind](), path)
    for content in damaged(path.read_bytes(), 150, within=1500):
        path.write_bytes(content)
        try:
            found = load_posterior(path)
        except ValueError:
            continue
        assert {name: value.shape[1:] for name, value in found.sample(1).items()} == {
            name: value.shape for name, value in found.mean.items()
        }


def test_spreads_of_other_kinds_cannot_be_saved(tmp_path):
    @dataclass(frozen=True)
    class Own(DiagonalSpread):
        pass

    posterior = Posterior({"w": torch.zeros(2)}, ((Members({"w": (2,)}), Own(torch.ones(2))),), "own")
    with pytest.raises(ValueError, match=r"must have spreads among DiagonalSpread, .* got Own"):
        save_posterior(posterior, tmp_path / "posterior.safetensors")
