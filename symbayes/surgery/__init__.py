"""Surgery on models: `relax` lets layers choose, `harden` makes plain torch of what they chose, `prune` makes it smaller."""

from symbayes.surgery.harden import Hardened, harden, hardened
from symbayes.surgery.prune import Pruned, prune, pruned
from symbayes.surgery.relax import relax

__all__ = ["Hardened", "Pruned", "harden", "hardened", "prune", "pruned", "relax"]
