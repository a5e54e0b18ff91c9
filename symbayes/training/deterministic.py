"""The same numbers every time: algorithms of a GPU that give them, and seeds of torch's global generators."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

#: By which cuBLAS is told to use fixed workspaces, and what it may be.
_VARIABLE, _FIXED = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")


@contextmanager
def deterministic_algorithms(device: torch.device) -> Iterator[None]:
    """Let torch use deterministic algorithms alone, and put it back to what it was.

    Args:
        device: Where to compute.

    Raises:
        ValueError: On a GPU, if cuBLAS may choose its workspaces, which it is told before Python starts.
        RuntimeError: Later, from torch, if something has no such algorithm.
    """
    if device.type == "cuda" and os.environ.get(_VARIABLE) not in _FIXED:
        raise ValueError(
            f"For deterministic=True on a GPU, the environment must have {_VARIABLE}={_FIXED[0]} (or {_FIXED[1]}) before "
            f"Python starts, or products of matrices are not deterministic; got {os.environ.get(_VARIABLE, 'none')}."
        )
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        torch.backends.cudnn.benchmark = benchmark


@contextmanager
def seeded(seed: int, model: nn.Module) -> Iterator[None]:
    """Torch's global generators begin with a seed, as for dropout and shuffled loaders, and are put back in the end."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield
