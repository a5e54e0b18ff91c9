"""Modules of graphs leave nothing behind."""

import gc
import linecache

import pytest
import torch
from torch import fx, nn
from torch.fx.graph_module import _loader

import symbayes as sb
from symbayes.surgery.graphs import module_of
from symbayes.surgery.harden import harden
from tests.small import load_few


def sources() -> tuple[set[str], set[str]]:
    """What torch keeps the source of, in each of its tables."""
    gc.collect()
    return set(_loader.eval_cache), {name for name in linecache.cache if name.startswith("<eval_with_key>")}


def test_the_source_of_a_graph_is_there_for_as_long_as_its_module():
    before = sources()
    graph = fx.Graph()
    graph.output(graph.call_method("neg", (graph.placeholder("inputs"),)))
    module = module_of(nn.Module(), graph)
    name = type(module).forward.__code__.co_filename
    assert all(name in now - then for now, then in zip(sources(), before, strict=True))
    assert any("neg" in line for line in linecache.getlines(name))
    assert torch.equal(module(torch.ones(2)), -torch.ones(2))
    del module, graph
    assert sources() == before


@pytest.mark.parametrize("paths", [("factored", "conv"), ("conv", "gconv")])
def test_networks_that_were_hardened_leave_none(paths):
    task = load_few("placed-digits")
    model = sb.allconv(task, paths, 1, equivariant_stride=False)
    before = sources()
    plain = harden(model, task.train[0][:8])
    assert sources() != before
    del plain
    assert sources() == before
