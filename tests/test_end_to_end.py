"""Tiny problems with a known answer: the evidence must find the symmetry."""

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.layers import ConvPath, DensePath
from symbayes.training.optimiser import PLAIN

#: Steps by Adam itself, and curvature by passes over all data.
SLOW = {"optimiser": PLAIN, "schedule": sb.Schedule(60, 50, 0.01, warm_up=0.0), "progress": False}


def bars(seed):
    """A bar of three cells, lying or standing, anywhere on an 8×8 map, with noise."""
    generator = torch.Generator().manual_seed(seed)
    n = 400
    kind, column = torch.randint(0, 2, (n,), generator=generator), torch.randint(0, 8, (n,), generator=generator)
    row = torch.randint(0, 8, (n,), generator=generator)
    images = 0.2 * torch.randn(n, 1, 8, 8, generator=generator)
    for image, k, r, c in zip(images, kind, row, column, strict=True):
        for step in range(3):
            image[0, (r + step * k) % 8, (c + step * (1 - k)) % 8] += 1
    return images, kind, (row >= 4).long()


def share_of_dense(targets_at):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        paths = {"conv": ConvPath(1, 4), "dense": DensePath((1, 8, 8), (4, 8, 8), scale=0.1)}
        model = nn.Sequential(sb.RelaxedLayer(paths), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    data, test = bars(0), bars(1)
    objective = sb.Laplace(sb.Kfac(), burn_in=0.3, cool_down=0.2, damping=0.3)
    result = sb.fit(model, (data[0], data[targets_at]), objective=objective, **SLOW)
    rows = {row.path: row for row in result.symmetries.rows if row.layer == "0"}
    return rows["dense"], result.evaluate((test[0], test[targets_at]))["accuracy"]


def test_the_evidence_keeps_translation_where_position_does_not_matter_and_not_where_it_does():
    shape, shape_accuracy = share_of_dense(1)
    place, place_accuracy = share_of_dense(2)
    assert min(shape_accuracy, place_accuracy) > 0.8
    assert shape.precision > 10 * place.precision
    assert shape.effective < place.effective / 2
    assert shape.share < place.share


def rods(seed):
    """A rod of two cells along one of two axes, anywhere in a 4×4×4 volume, with noise; its kind, and the half it is in."""
    generator = torch.Generator().manual_seed(seed)
    n = 400
    kind = torch.randint(0, 2, (n,), generator=generator)
    places = torch.randint(0, 4, (n, 3), generator=generator)
    volumes = 0.2 * torch.randn(n, 1, 4, 4, 4, generator=generator)
    for volume, k, (x, y, z) in zip(volumes, kind, places, strict=True):
        volume[0, x, y, z] += 1
        volume[0, x, (y + k) % 4, (z + 1 - k) % 4] += 1
    return volumes, kind, (places[:, 0] >= 2).long()


def dense_path_in_3d(targets_at):
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        paths = {
            "conv": ConvPath(1, 4, (3, 3, 3)),
            "dense": DensePath((1, 4, 4, 4), (4, 4, 4, 4), scale=0.1),
        }
        # Pooled over all places, so that place is to be seen through the dense path alone.
        model = nn.Sequential(sb.RelaxedLayer(paths), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 2))
    data, test = rods(0), rods(1)
    objective = sb.Laplace(sb.Kfac(), cool_down=0.2, hyper_every=1, damping=0.5)
    result = sb.fit(model, (data[0], data[targets_at]), objective=objective, **SLOW)
    rows = {row.path: row for row in result.symmetries.rows if row.layer == "0"}
    return rows["dense"], result.evaluate((test[0], test[targets_at]))["accuracy"], result.symmetries.words()


def test_the_evidence_keeps_translation_in_a_volume_where_position_does_not_matter_and_not_where_it_does():
    shape, shape_accuracy, kept = dense_path_in_3d(1)
    place, place_accuracy, broken = dense_path_in_3d(2)
    assert min(shape_accuracy, place_accuracy) > 0.8
    assert shape.precision > 100 * place.precision
    assert shape.effective < 1 < place.effective
    assert kept[0].startswith("0 keeps translation")
    assert broken[0].startswith("0 breaks translation (equivariance error ")


def test_the_evidence_prefers_the_smaller_model_that_explains_the_data():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(80, 10, generator=generator)
    targets = inputs[:, :1] + 0.1 * torch.randn(80, 1, generator=generator)
    evidences = []
    for width in (1, 10):
        model = nn.Linear(width, 1, bias=False)
        data = (inputs[:, :width].contiguous(), targets)
        result = sb.fit(
            model,
            data,
            likelihood=sb.Gaussian(0.3),
            prior=sb.ScalarPrior(model),
            schedule=sb.Schedule(80, 20, 0.03),
            progress=False,
        )
        evidences.append(result.log_evidence)
    assert evidences[0] > evidences[1]
    assert result.evidence.noise[0] == pytest.approx(0.1, rel=0.3)
