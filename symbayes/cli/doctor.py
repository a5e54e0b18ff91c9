"""`symbayes doctor`: what there is to compute with, and whether it computes what it should."""

import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import torch
import typer
from rich.markup import escape
from torch import nn

from symbayes.cli.terminal import console, plain_table
from symbayes.curvature.ggn import Ggn
from symbayes.data.load import load
from symbayes.evidence.evidence import laplace_evidence
from symbayes.evidence.exact import exact_evidence, posterior_mode
from symbayes.likelihoods.values import Gaussian
from symbayes.networks import network_for
from symbayes.priors import ScalarPrior
from symbayes.training.fit import fit

_NEEDED = ("symbayes", "torch", "numpy", "scipy", "safetensors", "scikit-learn", "plotly", "pillow")
#: Extras, which are needed for what stands beside them.
_EXTRAS = {
    "tensorboard": "sb.loggers.TensorBoard",
    "mlflow": "sb.loggers.MLflow",
    "wandb": "sb.loggers.WandB",
    "onnxruntime": "export of hardened networks",
    "matplotlib": "pictures of python -m papers",
}
#: How far apart two exact answers in double precision may be, relative to their size.
_CLOSE = 1e-8


def doctor() -> None:
    """Say what there is to compute with, and try it on small problems whose answers are known."""
    found = [("Python", platform.python_version(), sys.executable), *((name, _version(name), "") for name in _NEEDED)]
    found += [(name, _version(name) if _version(name) != "–" else "not installed", use) for name, use in _EXTRAS.items()]
    found += [("CPU", f"{os.cpu_count()} cores", f"{torch.get_num_threads()} threads of torch"), *_gpus()]
    console.print(plain_table(("", "", ""), found, left=3))
    devices = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    failed = 0
    for device in devices:
        for name, check in CHECKS.items():
            started = time.perf_counter()
            try:
                words, is_right = check(device)
            except Exception as error:  # whatever it is, that is what a doctor is asked for
                words, is_right = f"{type(error).__name__}: {error}", False
            failed += not is_right
            seconds = time.perf_counter() - started
            mark = "[green]right[/]" if is_right else "[bold red]wrong[/]"
            console.print(f"{mark}  {device}: {name} ({escape(words)}; {seconds:.1f} s)", highlight=False, soft_wrap=True)
    if failed:
        console.print(f"{failed} of {len(devices) * len(CHECKS)} checks failed: do not trust results of this machine.")
        raise typer.Exit(1)
    console.print("All is well.")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "–"


def _gpus() -> list[tuple[str, str, str]]:
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [("GPU", one.name, f"{one.total_memory / 2**30:.0f} GiB") for one in devices] or [("GPU", "none", "")]


def _evidence(device: str) -> tuple[str, bool]:
    """By Laplace's method and in closed form, of a linear network, where both are exact."""
    generator = torch.Generator().manual_seed(0)
    features, targets = (torch.randn(60, size, generator=generator, dtype=torch.float64).to(device) for size in (5, 2))
    model = nn.Linear(5, 2, bias=False).double().to(device)
    with torch.no_grad():
        model.weight.copy_(posterior_mode(features, targets, 2.0, 0.5).mT)
    likelihood, prior = Gaussian(0.5).double().to(device), ScalarPrior(model, 2.0).to(device)
    found = float(laplace_evidence(model, (features, targets), likelihood, prior, rule=Ggn()).total.detach())
    exact = float(exact_evidence(features, targets, 2.0, 0.5).total)
    return f"{found:.4f}, in closed form {exact:.4f}", abs(found - exact) < _CLOSE * abs(exact)


def _training(device: str) -> tuple[str, bool]:
    """A small network becomes better at digits, and its layers say what they keep."""
    task = load("upright-digits").subset(300)
    generator = torch.Generator().manual_seed(0)
    model = network_for(task.in_shape, task.classes, width=2, generator=generator).to(device)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Training has not converged")  # it need not
        result = fit(model, task.train, epochs=15, progress=False)
    accuracy = result.evaluate(task.test, by="plug-in")["accuracy"]
    measured = all(row.error is not None for row in result.symmetries.rows if row.symmetry)
    return f"accuracy {100 * accuracy:.0f} % on digits that were held out, at chance 10 %", accuracy > 0.5 and measured


#: By name: what says in words how it went, and whether it went well, on a device.
CHECKS: dict[str, Callable[[str], tuple[str, bool]]] = {"evidence of a linear network": _evidence, "training": _training}
