"""A hardened network is ONNX: exported with any number of data, it gives the same in another runtime."""

from math import prod

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import symbayes as sb
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.surgery import hardened

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `onnx` is not installed")
pytest.importorskip("onnxscript", reason="the extra `onnx` is not installed")


class Patches(nn.Module):
    """As a ViT: patches, a token for the class, positions, and a transformer layer."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 8)), nn.Parameter(torch.randn(1, 17, 8))
        self.norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.mlp, self.head = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.Linear(8, 3)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(tokens.shape[0], -1, -1), tokens], 1) + self.positions
        seen = self.norm(tokens)
        tokens = tokens + self.attention(seen, seen, seen, need_weights=False)[0]
        return self.head((tokens + self.mlp(tokens))[:, 0])


class UNet(nn.Module):
    """Down and up again, with what was seen before beside it; a class for every pixel."""

    def __init__(self):
        super().__init__()
        self.down, self.inner = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up, self.out = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, images):
        before = self.down(images).relu()
        return self.out(torch.cat([before, self.up(self.inner(before).relu())], 1))


NETWORKS = {
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2, padding=1),
            nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        (1, 8, 8),
        {},
    ),
    "mlp that may become convolutions": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3)),
        (1, 8, 8),
        {"to": "conv", "grid": (8, 8)},
    ),
    "1-d": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 5, padding=2, padding_mode="circular"), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (2, 12),
        {},
    ),
    "vision transformer": (Patches, (1, 8, 8), {}),
    "u-net": (lambda: sb.AtPositions(UNet()), (1, 8, 8), {}),
    "3-d": (
        lambda: nn.Sequential(
            nn.Conv3d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv3d(3, 3, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
            nn.Linear(24, 3),
        ),
        (1, 4, 4, 4),
        {},
    ),
}  # fmt: skip


#: What torch.export does of its own.
QUIET = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")
#: Averages over images, sequences and colours, and what they see.
AVERAGES = {
    "images": (sb.affine2d("rotation", "translation"), (1, 6, 6)),
    "sequences": (sb.groups.affine1d(), (2, 9)),
    "turns and colours": (sb.affine2d("rotation") * sb.groups.colours("hue"), (3, 5, 6)),
}


def same_in_onnxruntime(plain, inputs, generator, folder):
    """With another number of data, too."""
    any_number = ({0: torch.export.Dim("n", min=2, max=64)},)
    program = torch.onnx.export(plain, (inputs,), dynamo=True, dynamic_shapes=any_number, verbose=False)
    program.save(folder / "plain.onnx")
    session = onnxruntime.InferenceSession(folder / "plain.onnx", providers=["CPUExecutionProvider"])
    for count in (6, 9):
        others = torch.randn(count, *inputs.shape[1:], generator=generator)
        (given,) = session.run(None, {session.get_inputs()[0].name: others.numpy()})
        with torch.no_grad():
            assert_close(torch.from_numpy(given), plain(others), rtol=1e-4, atol=1e-4)


@QUIET
@pytest.mark.parametrize("name", AVERAGES)
def test_a_hardened_average_is_the_same_in_onnxruntime(name, generator, tmp_path):
    group, shape = AVERAGES[name]
    inputs = torch.randn(6, *shape, generator=generator)
    net = nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), 3))
    plain = sb.harden(sb.OrbitAverage(net, group.starting(0.3), 4), inputs, off=0.0).eval()
    same_in_onnxruntime(plain, inputs, generator, tmp_path)


@QUIET
@pytest.mark.parametrize("name", NETWORKS)
def test_a_hardened_network_is_the_same_in_onnxruntime(name, generator, tmp_path):
    build, shape, options = NETWORKS[name]
    inputs = torch.randn(6, *shape, generator=generator)
    relaxed = sb.relax(build(), inputs, **options)
    layers = [module for module in relaxed.modules() if isinstance(module, RelaxedLayer)]
    assert layers
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.paths.parameters():
                parameter.normal_(std=0.2, generator=generator)  # so that all paths are kept
    found = hardened(relaxed.eval(), inputs, off=1e-9)
    assert not any(removed for removed, _ in found.layers.values())
    plain = found.model.eval()
    same_in_onnxruntime(plain, inputs, generator, tmp_path)
