"""What was discovered, in plain numbers and words: what is saved, and what tables and pages are made of.

What is None is not known. Files of earlier versions lack some of the fields; those have defaults.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from symbayes.data.folders import read_folder
from symbayes.data.storage import MOST_JSON, error_words, from_json, parse_json
from symbayes.dynamics.quantity import Quantity, Term
from symbayes.dynamics.verdict import Verdict
from symbayes.text import counted, listed, number, percent, significant

#: The file of a discovery in its folder.
DISCOVERY = "discovery.json"
#: The version of what is saved, and the first, which had neither a number nor a seal.
FORMAT, _UNSEALED = 2, 1

Numbers = tuple[float, ...]
Grid = tuple[Numbers, ...]


@dataclass(frozen=True)
class Followed:
    """For how long quantities were followed, and whether along the whole of a single trajectory."""

    time: float
    from_start: bool


@dataclass(frozen=True)
class ScalingSummary:
    """The sizes of coordinates, and of time."""

    scale: Numbers
    time: float


@dataclass(frozen=True)
class EnergySummary:
    """The model of the energy, and how it was trained."""

    kind: Literal["quadratic", "neural", "fixed", "none", "terms"]
    #: Observables to begin with; of terms, sums that were judged.
    quantities: int
    width: int | None
    hidden: int | None
    integrator: str
    measure: str | None
    samples: int | None
    updates: int
    seconds: float


@dataclass(frozen=True)
class BoundSummary:
    """Terms of the bound for a pair of states, in nats: nll + kl = negative_elbo."""

    nll: float | None
    kl: float | None
    negative_elbo: float | None
    estimator: str


@dataclass(frozen=True)
class Truth:
    """How many quadratics the true energy conserves, and how much of each learned direction lies among them."""

    count: int
    parallelness: Numbers = ()


@dataclass(frozen=True, kw_only=True)
class QuantitySummary:
    """One quantity; `Quantity` says what most of its fields are.

    Args:
        rate: How fast it changes under energies drawn from what was learned, relative to its slope and the speed of motion.
        rate_error: The standard deviation of that over draws.
        bracket: The same under the true energy.
        series: Its values along some trajectories that were held out.
    """

    formula: str
    confirmed: bool
    too_short: bool = False
    strength: float | None
    variation: float | None
    error: float | None
    drift: float | None = None
    reference: float | None = None
    terms: tuple[Term, ...]
    rate: float | None
    rate_error: float | None
    bracket: float | None
    series: Grid
    verdict: Verdict | None = None
    follows: bool = False


@dataclass(frozen=True)
class Portrait:
    """A coordinate against its momentum, along trajectories: of the data, and as the model has them."""

    names: tuple[str, ...]
    data: tuple[Grid, ...]
    model: tuple[Grid, ...]


@dataclass(frozen=True)
class Rollout:
    """A long motion: energies along it, the distance to the true motion, and how far the learned energy drifts."""

    times: Numbers
    energy: Grid
    true_energy: Grid | None
    error: Numbers | None
    drift: float | None
    integrator: str


@dataclass(frozen=True)
class DiscoveryRecord:
    """An epoch: the bound, if it was estimated, and the strengths of observables, if they are quadratics."""

    epoch: int
    negative_elbo: float | None = None
    singular_values: Numbers = ()


@dataclass(frozen=True, kw_only=True)
class DiscoverySummary:
    """All figures of a discovery."""

    title: str
    held_out: int
    followed: Followed | None = None
    names: tuple[str, ...]
    step: float
    units: ScalingSummary | None = None
    pairs: int
    trajectories: int
    model: EnergySummary
    evidence: BoundSummary | None
    noise: Numbers | None
    learned_noise: bool
    singular_values: Numbers
    threshold: float | None
    count: int | None
    truth: Truth | None
    generators: tuple[Grid, ...]
    quantities: tuple[QuantitySummary, ...]
    times: Numbers
    portraits: tuple[Portrait, ...]
    rollout: Rollout | None
    history: tuple[DiscoveryRecord, ...]
    #: Mean squared errors a step ahead, by set of data and way to predict.
    errors: dict[str, dict[str, float | None]]
    #: Whether training was stopped before its end.
    is_partial: bool = False
    #: Of the bound, by learned symmetries, for a pair of states; see `EnergyDiscovery`.
    gain: float | None = None
    #: In which terms were sought, and angles that were unwrapped before.
    libraries: tuple[str, ...] = ()
    unwrapped: tuple[str, ...] = ()

    @property
    def given(self) -> str:
        """Whether quantities were "given" or "found"."""
        return "given" if self.model.kind == "fixed" else "found"

    def followed_words(self) -> str:
        """Along what quantities were followed, and for how long."""
        return followed_words(self.held_out, self.followed)

    def gain_words(self) -> str:
        """What learned symmetries are worth; nothing where they were not compared with a plain energy."""
        return gain_words(self.gain)

    def headline(self) -> str:
        """What was found, and on what it was confirmed or not, without a full stop."""
        return headline(self.title, self.quantities, self.followed_words(), self.given)


def gain_words(gain: float | None) -> str:
    """What learned symmetries are worth by the bound, with a full stop; nothing where that is not known."""
    if gain is None:
        return ""
    nats = f"{significant(abs(gain))} nats for a pair of states"
    if gain < 0:
        return f"Symmetries were learned, and a plain energy is taken: its bound is higher, by {nats}."
    return f"Learned symmetries are worth {nats}: by so much their bound is higher than that of a plain energy."


def followed_words(held_out: int, followed: Followed | None) -> str:
    """Along what quantities were followed, and for how long; the time is not known of what was saved before it was kept."""
    if followed is not None and followed.from_start:
        return f"along the whole trajectory of {significant(followed.time)} time units"
    of = f" of {significant(followed.time)} time units" if followed is not None else ""
    return f"on {counted(held_out, 'held-out trajectory', 'held-out trajectories')}{of}"


def headline(title: str, quantities: Sequence[Quantity | QuantitySummary], on: str, given: str = "found") -> str:
    """What was found, and on what it was confirmed or not, without a full stop."""
    count, many = sum(one.confirmed for one in quantities), len(quantities)
    if not many:
        return f"No conserved quantity found in {title}"
    if all(one.verdict is not None for one in quantities):
        return _judged(title, quantities, on)
    if count:
        rest = f"; {number(many - count)} more {given} and not confirmed" if count < many else ""
        return f"{counted(count, 'conserved quantity', 'conserved quantities')} in {title}, {on}{rest}"
    if all(one.too_short for one in quantities):
        return f"Too short to tell what is conserved in {title}, {on}; {number(many)} {given}"
    return f"No conserved quantity in {title} is confirmed {on}; {number(many)} {given}"


#: Formulas in a headline.
_NAMED = 3


def _judged(title: str, quantities: Sequence[Quantity | QuantitySummary], on: str) -> str:
    """What is conserved, and how sure that is; or why nothing is said to be."""
    sure = [one for one in quantities if one.confirmed]
    rest = len(quantities) - len(sure)
    if not sure:
        return f"No conserved quantity found in {title}: {_best(quantities)}, {on}"
    own = [one for one in sure if not one.follows]
    named = [f"{one.formula} ({one.verdict.sureness()} sure)" for one in own[:_NAMED] if one.verdict is not None]
    named += [f"{number(len(own) - _NAMED)} more"] if len(own) > _NAMED else []
    extra = len(sure) - len(own)
    them = "it" if len(own) == 1 else "them"
    following = f"; {number(extra)} more {'follows' if extra == 1 else 'follow'} from {them}" if extra else ""
    others = f"; {number(rest)} more {'was' if rest == 1 else 'were'} tested and not confirmed" if rest else ""
    found = counted(len(own), "conserved quantity", "conserved quantities")
    return f"{found} in {title}: {listed(named)}, {on}{following}{others}"


def _best(quantities: Sequence[Quantity | QuantitySummary]) -> str:
    """How near what was tested is to being conserved, and why it is not said to be."""
    tests = [one.verdict for one in quantities if one.verdict is not None]
    best = min(tests, key=lambda test: (bool(test.reason), test.variation))
    if best.reason:
        return f"it cannot be told, since {best.reason}"
    trend = " and has a trend" if best.has_trend else ""
    return f"the most constant that was tested varies by {percent(best.variation)} of its spread{trend}"


def read_discovery(folder: Path) -> DiscoverySummary:
    """What `Discovery.save` left in a folder.

    Raises:
        FileNotFoundError: If it left nothing there.
        ValueError: If it is damaged.
    """
    try:
        contents = read_folder(folder, (DISCOVERY,), most=MOST_JSON)
        saved = parse_json(contents.files[DISCOVERY], DISCOVERY)
        form = saved.get("format", _UNSEALED) if isinstance(saved, dict) else _UNSEALED
        if form == FORMAT and not contents.is_sealed:
            raise ValueError("it has no seal.json, by which its files are known to belong together")
        if form not in (FORMAT, _UNSEALED):
            raise ValueError(f"it has format {form}; this version reads formats {_UNSEALED} and {FORMAT}")
        found: DiscoverySummary = from_json(saved, DiscoverySummary, DISCOVERY)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{folder} must hold {DISCOVERY}, as Discovery.save writes it; it does not.") from error
    except ValueError as error:
        raise ValueError(
            f"The discovery in {folder} is damaged ({error_words(error)}). Copy it again, or learn again."
        ) from error
    return found
