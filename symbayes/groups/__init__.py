"""Symmetries, and how they act: of grids, permutations, and Lie groups."""

from symbayes.groups.discrete import DiscreteGenerator, mirror, permuted_channels, quarter_turns, time_reversal
from symbayes.groups.fields import deformations
from symbayes.groups.grids import SpaceGroup, Translation, cube, flips, p4, p4m
from symbayes.groups.group import Group
from symbayes.groups.lie import affine1d, affine2d, colours
from symbayes.groups.permutation import (
    Permutations,
    automorphisms,
    board,
    copies,
    cyclic,
    dihedral,
    from_table,
    pairs,
    symmetric,
)

__all__ = [
    "DiscreteGenerator",
    "Group",
    "Permutations",
    "SpaceGroup",
    "Translation",
    "affine1d",
    "affine2d",
    "automorphisms",
    "board",
    "colours",
    "copies",
    "cube",
    "cyclic",
    "deformations",
    "dihedral",
    "flips",
    "from_table",
    "mirror",
    "p4",
    "p4m",
    "pairs",
    "permuted_channels",
    "quarter_turns",
    "symmetric",
    "time_reversal",
]
