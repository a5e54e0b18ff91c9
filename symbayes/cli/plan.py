"""`symbayes plan`: what a fit will need, before it starts."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from symbayes.cli.terminal import console, plain_table
from symbayes.curvature.check import check_outputs
from symbayes.dynamics.discover import check_device
from symbayes.training.plan import plan as plan_of


def plan(
    model: Annotated[str, typer.Argument(help="Where it is made: package.module:function, called without arguments.")],
    inputs: Annotated[str, typer.Option(help="The shape of one input, with commas: 3,32,32.")],
    data: Annotated[int, typer.Option(min=2, help="How many data there will be.")],
    epochs: Annotated[int, typer.Option(min=1)] = 100,
    tokens: Annotated[int, typer.Option(min=0, help="Inputs are whole numbers below this, as of a language model.")] = 0,
    device: Annotated[str, typer.Option(help="Where to measure, such as cpu or cuda.")] = "cpu",
) -> None:
    """Say what `sb.fit` will need for a model that classifies: memory by what takes it, and time in gradients."""
    try:
        check_device(device)
        if not all(size.strip().isdecimal() for size in inputs.split(",")):
            raise ValueError(f"The shape of an input must be whole numbers with commas, such as 3,32,32; got {inputs!r}.")
        shape = tuple(int(size) for size in inputs.split(","))
        network = _made(model).to(device)
        generator = torch.Generator().manual_seed(0)
        images = (
            torch.randint(tokens, (32, *shape), generator=generator) if tokens else torch.randn(32, *shape, generator=generator)
        )
        with torch.no_grad():
            outputs = network.eval()(images[:2].to(device))
        check_outputs(outputs, 2)
        classes = outputs.shape[1]
        targets = torch.randint(classes, (32,), generator=generator)
        found = plan_of(network, (images, targets), data, epochs=epochs)
    except (ValueError, TypeError, RuntimeError, ImportError, AttributeError) as error:
        raise typer.BadParameter(str(error)) from error
    console.print(f"{found.parameters:,} weights, {data:,} data in batches of {found.batch_size}", highlight=False)
    console.print(plain_table(*found.table(), left=1))


def _made(name: str) -> nn.Module:
    """The model that a function makes.

    Raises:
        ValueError: If the name says no function, or it makes none.
    """
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(f"A model is named as package.module:function, got {name!r}.")
    sys.path.insert(0, str(Path.cwd()))
    made: Any = getattr(import_module(module), function)()
    if not isinstance(made, nn.Module):
        raise ValueError(f"{name} must make an nn.Module, got a {type(made).__name__}.")
    return made
