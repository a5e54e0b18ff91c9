"""Pictures of orbits: of the inputs of a model, and of nothing else."""

import torch
from torch import nn

import symbayes as sb
from symbayes.invariance.orbit_average import sample_orbits


def test_a_row_for_each_image():
    model = sb.OrbitAverage(nn.Flatten(), sb.affine2d(), samples=2).double()
    images = torch.randn(2, 3, 6, 5)
    model(images.double())
    rows = sample_orbits(model, images, transformations=4)
    assert [len(row) for row in rows] == [5, 5]
    assert (rows[0][0].width, rows[0][0].height, rows[0][0].channels) == (5, 6, 3)


def test_transformations_of_features_are_not_shown_on_inputs(tmp_path):
    inner = sb.OrbitAverage(nn.Sequential(nn.Flatten(), nn.Linear(128, 2)), sb.groups.colours(channels=8), samples=2)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), inner)
    data = torch.randn(8, 3, 6, 6), torch.arange(8) % 2
    result = sb.fit(model, data, epochs=2, progress=False)
    result.save(tmp_path)
    assert result.summary().orbits == ()
