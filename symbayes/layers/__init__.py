"""Linear maps that say how they share weights, and layers that are sums of them."""

from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool, SeparableGroupPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import LinearMap, Path, RowForm
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath

__all__ = [
    "ConvPath",
    "DensePath",
    "FactoredPath",
    "GroupConvPath",
    "GroupPool",
    "LinearMap",
    "OrbitPath",
    "Path",
    "RelaxedLayer",
    "RowForm",
    "SeparableGroupPath",
    "SparseConvPath",
    "SparseFactoredPath",
]
