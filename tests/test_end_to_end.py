"""Tiny problems with a known answer: the evidence must find the symmetry."""

import pytest
import torch
from torch import nn

import symbayes as sb


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
        paths = {"conv": sb.ConvPath(1, 4), "dense": sb.DensePath((1, 8, 8), (4, 8, 8), scale=0.1)}
        model = nn.Sequential(sb.RelaxedLayer(paths), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))
    data, test = bars(0), bars(1)
    objective = sb.Laplace(sb.Kfac(), burn_in=0.3, cool_down=0.2, frequency=1)
    result = sb.fit(model, (data[0], data[targets_at]), objective=objective, schedule=sb.Schedule(60, 50, 0.01), progress=False)
    rows = {row.path: row for row in result.symmetries.rows if row.layer == "0"}
    return rows["dense"], result.evaluate((test[0], test[targets_at]))["accuracy"]


def test_the_evidence_keeps_translation_where_position_does_not_matter_and_not_where_it_does():
    shape, shape_accuracy = share_of_dense(1)
    place, place_accuracy = share_of_dense(2)
    assert min(shape_accuracy, place_accuracy) > 0.8
    assert shape.precision > 10 * place.precision
    assert shape.effective < place.effective / 2
    assert shape.share < place.share


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
