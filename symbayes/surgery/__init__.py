"""Surgery on models: `relax` lets the layers of any network choose, `harden` turns what they chose into plain torch again."""

from symbayes.surgery.harden import Hardened, harden, hardened
from symbayes.surgery.relax import relax

__all__ = ["Hardened", "harden", "hardened", "relax"]
