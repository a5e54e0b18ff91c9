"""Linear maps that say how they share weights, and layers that are sums of them."""

from symbayes.layers.conv import ConvPath
from symbayes.layers.dense import DensePath
from symbayes.layers.factored import FactoredPath
from symbayes.layers.group_conv import GroupConvPath, GroupPool, SeparableGroupPath, SymmetricConvPath
from symbayes.layers.orbit import OrbitPath
from symbayes.layers.path import Averaging, LinearMap, Path, RowForm, Rows
from symbayes.layers.relaxed import RelaxedLayer
from symbayes.layers.smooth import SparseConvPath, SparseFactoredPath, SparseGroupConvPath

__all__ = [
    "Averaging",
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
    "Rows",
    "SeparableGroupPath",
    "SparseConvPath",
    "SparseFactoredPath",
    "SparseGroupConvPath",
    "SymmetricConvPath",
]
