"""Modules of graphs of torch.fx, whose source goes when they do."""

import linecache
from weakref import finalize

from torch import fx, nn
from torch.fx import graph_module


def module_of(root: nn.Module, graph: fx.Graph) -> fx.GraphModule:
    """A graph as a module. Of each torch keeps the source for tracebacks, in two tables, until the process ends."""
    module = fx.GraphModule(root, graph)
    finalize(module, _forget, type(module).forward.__code__.co_filename).atexit = False
    return module


def _forget(name: str) -> None:
    linecache.cache.pop(name, None)
    if (loader := getattr(graph_module, "_loader", None)) is not None:  # torch has no public way to it
        loader.eval_cache.pop(name, None)
