"""Models as they are where this library is not."""

import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

_SCRIPT = """
import sys, torch
sys.modules["symbayes"] = None  # not to be imported
kept = torch.load(sys.argv[1], weights_only=False)
torch.testing.assert_close(kept["model"](kept["inputs"]), kept["outputs"])
"""


def assert_loads_alone(model: nn.Module, inputs: Tensor, outputs: Tensor, folder: Path) -> None:
    """A saved model is loaded without the library, and gives these outputs."""
    torch.save({"model": model, "inputs": inputs, "outputs": outputs.detach()}, folder / "model.pt")
    subprocess.run([sys.executable, "-c", _SCRIPT, str(folder / "model.pt")], check=True)
