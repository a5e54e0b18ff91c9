"""Sums of terms: their moments against sums themselves, and what is found in systems of all kinds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from torch.testing import assert_close

import symbayes as sb
from symbayes.data.storage import from_json, to_json
from symbayes.dynamics import Search, Terms, Trajectories
from symbayes.dynamics.atoms import Atom
from symbayes.dynamics.denoising import denoised
from symbayes.dynamics.library import KINDS, Library, libraries
from symbayes.dynamics.moments import Moments
from symbayes.dynamics.phase import gradient
from symbayes.dynamics.shapes import shapes
from symbayes.dynamics.summary import DiscoverySummary, read_discovery
from symbayes.dynamics.tables import save_csv
from symbayes.dynamics.terms import (
    Independent,
    Sum,
    along_slopes,
    fixed,
    improved,
    outside,
    refitted,
    shortened,
)
from symbayes.report.runs import make_page

NAMES = ("x", "y", "px", "py")


def moved(velocity, initial, time, steps=100, names=(), noise=0.0, seed=0, times=None):
    """Motion of any system, seen with noise as a share of the spread."""
    at = np.linspace(0, time, steps + 1) if times is None else times
    shape = initial.shape
    found = solve_ivp(
        lambda t, flat: velocity(t, flat.reshape(shape)).ravel(), (0, time), initial.ravel(), t_eval=at, rtol=1e-9, atol=1e-9
    )
    states = found.y.T.reshape(len(at), *shape).transpose(1, 0, 2)
    rng = np.random.default_rng(seed)
    states = states + noise * states.std((0, 1)) * rng.standard_normal(states.shape)
    when = None if times is None else torch.from_numpy(np.tile(at, (len(states), 1)))
    return Trajectories(torch.from_numpy(states.copy()), time / (len(at) - 1), names, when=when)


def pendulum(friction=0.0, **more):
    rng = np.random.default_rng(7)
    initial = rng.uniform((-2.5, -1), (2.5, 1), (40, 2))
    return moved(
        lambda _, x: np.stack([x[:, 1], -np.sin(x[:, 0]) - friction * x[:, 1]], 1), initial, 12.0, names=("θ", "p"), **more
    )


def states(count=50, seed=0, size=4):
    """Away from zero, and so are the differences of coordinates."""
    return torch.from_numpy(np.random.default_rng(seed).uniform(0.5, 1, (count, size))) + torch.arange(size) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_of_terms_are_their_derivatives(kind):
    names = ("x", "y", "z", "px", "py", "pz") if kind == "central" else NAMES
    at = states(size=len(names))
    (library,) = libraries(names, at, [kind])
    exact = torch.func.vmap(torch.func.jacrev(lambda x: library(x[None])[0]))(at)
    assert_close(library.slopes(at), exact)
    assert len(set(library.names)) == len(library.terms) == len(library.costs)
    assert library.part([2, 0]).names == (library.names[2], library.names[0])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_laws_are_found_where_gradients_are_off(mode):
    with mode():
        assert formulas(sb.discover(pendulum())) == ["p² − 2.00 cos(θ)"]


def test_logarithms_and_lengths_are_of_what_keeps_away_from_zero():
    in_plane = [kind for kind in KINDS if kind != "central"]
    assert [library.name for library in libraries(NAMES, states())] == in_plane
    around = torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    of_signs = ("logarithmic", "between", "polar")
    assert [library.name for library in libraries(NAMES, around)] == [kind for kind in in_plane if kind not in of_signs]
    assert not any(name.startswith(("log(px", "px⁻")) for library in libraries(NAMES, around) for name in library.names)
    with pytest.raises(ValueError, match=r"Libraries must be among linear, .*, waves, .*; got 'cubic'"):
        Terms(libraries=("waves", "cubic"))


def test_moments_are_those_of_sums():
    seen = denoised(pendulum(noise=0.05, steps=30))
    (library,) = libraries(("θ", "p"), seen.trajectories.states.flatten(0, 1), ["trigonometric"])
    moments = Moments.of(library, seen)
    c = torch.randn(len(library.terms), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = (library(seen.trajectories.states.flatten(0, 1)) @ c).unflatten(0, seen.trajectories.states.shape[:2])
    scaled = c.numpy() * moments.size
    assert scaled @ moments.along @ scaled == pytest.approx(float(values.var(1, correction=0).mean()))
    assert scaled @ moments.total @ scaled == pytest.approx(float(values.var(correction=0)))
    drawn = torch.randn(seen.left.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * seen.left.sqrt()
    again = (library((seen.trajectories.states + 1e-3 * drawn).flatten(0, 1)) @ c).view_as(values)
    expected = seen.share * float((again - values).square().mean()) / 1e-6
    assert scaled @ moments.noise @ scaled == pytest.approx(expected, rel=0.1)


def test_the_shortest_sum_is_found_and_fitted_again():
    seen = denoised(pendulum(noise=0.03))
    (library,) = libraries(("θ", "p"), seen.trajectories.states.flatten(0, 1), ["trigonometric"])
    moments = Moments.of(library, seen)
    found = shortened(library, moments, moments.clear(), 12)
    assert found.library.names == ("p²", "cos(θ)")
    assert float(found.coefficients[1] / found.coefficients[0]) == pytest.approx(-2, rel=0.02)
    fitted, errors = refitted(found, seen)
    assert_close(fitted, found.coefficients, rtol=0.01, atol=0)
    assert (errors < 0.05 * fitted.abs()).all()


def test_what_a_sum_loses_with_each_of_its_terms_is_that_of_solving_again():
    seen = denoised(pendulum(noise=0.03))
    (library,) = libraries(("θ", "p"), seen.trajectories.states.flatten(0, 1), ["trigonometric"])
    moments = Moments.of(library, seen)
    places = moments.clear()[:8]
    exact = [moments.of_terms([each for each in places if each != gone]).ratios[0] for gone in places]
    assert moments.of_terms(places).without() == pytest.approx(exact, rel=1e-5)


def test_nothing_is_lost_with_a_term_that_others_make_up():
    """Two columns that are the same, and a third of all."""
    data = pendulum()
    states = torch.cat([data.states, 2 * data.states[..., 1:] - 1], -1)
    seen = denoised(Trajectories(states, 0.1, ("θ", "p", "again")))
    (library,) = libraries(("θ", "p", "again"), states.flatten(0, 1), ["trigonometric"])
    moments = Moments.of(library, seen)
    places = [library.names.index(name) for name in ("p²", "p again", "again²", "again", "cos(θ)")]
    sums = moments.of_terms(places)
    assert sums.spare.tolist() == [True] * 4 + [False]
    assert sums.without()[:4].max() < 1e-9 < sums.without()[4]
    inside = moments.of_terms([library.names.index(name) for name in ("p", "again")])
    assert len(inside.ratios) == 1
    assert np.isfinite(inside.without()).all()


def test_columns_of_one_constant_are_no_failure():
    """A label that is given twice, in two units, beside a mass on a spring."""
    rng = np.random.default_rng(0)
    swung = moved(lambda _, x: np.stack([x[:, 1], -x[:, 0]], 1), rng.uniform(-1.5, 1.5, (40, 2)), 10.0)
    label = torch.from_numpy(rng.uniform(1, 2, (40, 1, 1))).expand(-1, swung.states.shape[1], 1)
    again = Trajectories(torch.cat([label, 2.5 * label, swung.states], -1), 0.1, ("L", "M", "q", "p"))
    assert sorted(formulas(sb.discover(again))) in (["L", "q² + p²"], ["M", "q² + p²"])
    named = Trajectories(torch.cat([label, swung.states], -1), 0.1, ("q²", "q", "p"))
    assert formulas(sb.discover(named)) == ["q²", "q² + p²"]


def test_many_short_trajectories_are_no_failure():
    initial = np.random.default_rng(0).uniform(-1.5, 1.5, (3200, 2))
    short = moved(lambda _, x: np.stack([x[:, 1], -x[:, 0]], 1), initial, 3.0, steps=2)
    assert formulas(sb.discover(short, noise=1e-9)) == ["q² + p²"]


def test_no_library_that_suits_the_data_is_said_so():
    with pytest.raises(ValueError, match="One library at least must suit the data; of central, logarithmic none does"):
        sb.discover(pendulum(), search=Terms(libraries=("central", "logarithmic")))


def test_terms_that_are_functions_of_a_law_are_settled():
    seen = denoised(pendulum())
    known = Independent(seen)
    atoms = (
        Atom("E", lambda x: x[:, 1] ** 2 - 2 * x[:, 0].cos()),
        Atom("exp(E)", lambda x: (x[:, 1] ** 2 - 2 * x[:, 0].cos()).exp()),
        Atom("p²", lambda x: x[:, 1] ** 2),
    )
    library = Library("laws", atoms, ((0,), (1,), (2,)))
    assert known.settled(library) == [False, False, False]
    known.add(Sum(library.part([0]), torch.ones(1, dtype=torch.float64), 0.0, 0.0))
    assert known.settled(library) == [True, True, False]


def test_a_sum_is_improved_by_a_term_that_others_can_go_for():
    """Of x y − y x there are two more, which mixtures have: begun with a mixture, the shortest is found."""
    rng = np.random.default_rng(0)
    turning = moved(lambda _, x: np.concatenate([x[:, 2:], -x[:, :2]], 1), rng.uniform(-1.5, 1.5, (40, 4)), 10.0, names=NAMES)
    seen = denoised(turning)
    (library,) = libraries(NAMES, seen.trajectories.states.flatten(0, 1), ["quadratic"])
    moments, place = Moments.of(library, seen), library.names.index
    mixed = [place(name) for name in ("x²", "y²", "px²", "py²", "x y", "px py")]
    begun = Sum(library.part(mixed), torch.tensor([1.0, 0.5, 1, 0.5, 1, 1]).double(), 0.0, 0.0)
    found = improved(begun, library, moments, range(len(library.terms)), 12, moments.resolution, lambda _: True)
    assert len(found.library.terms) == 2


def test_a_term_is_left_out_by_what_the_sum_loses_and_not_by_its_size():
    """Of p²/2 + q²/2, seen beside both halves of q²: their coefficients are large, and neither is needed."""
    seen = denoised(moved(lambda _, x: np.stack([x[:, 1], -x[:, 0]], 1), states(40, size=2).numpy() - 1.2, 10.0, noise=0.02))
    atoms = (
        Atom("p²", lambda x: x[:, 1] ** 2),
        Atom("q² + s", lambda x: x[:, 0] ** 2 + 0.01 * x[:, 0], 2.0),
        Atom("q² − s", lambda x: x[:, 0] ** 2 - 0.01 * x[:, 0], 2.0),
        Atom("q²", lambda x: x[:, 0] ** 2),
    )
    library = Library("near", atoms, tuple((place,) for place in range(4)))
    found = shortened(library, Moments.of(library, seen), range(4), 12)
    assert found.library.names == ("p²", "q²")


def test_what_slopes_do_not_span_is_what_a_projection_leaves():
    slopes, one, two = torch.randn(3, 30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    basis = torch.stack([one, two], 2)
    rest = slopes - (basis @ torch.linalg.lstsq(basis, slopes[..., None]).solution)[..., 0]
    assert outside(slopes, [one, two]) == pytest.approx(float(rest.square().sum() / slopes.square().sum()))
    assert outside(slopes, [one, slopes]) < 1e-20


def formulas(found):
    return [quantity.formula for quantity in found.conserved]


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_pendulum_has_a_law_and_with_friction_none(noise):
    found = sb.discover(pendulum(noise=noise))
    (law,) = found.conserved
    assert [term.monomial for term in law.terms] == ["p²", "cos(θ)"]
    assert [term.learned for term in law.terms] == pytest.approx([1, -2], rel=0.05)
    assert abs(law.terms[1].fitted + 2) < 0.1
    assert law.verdict.is_sure
    assert sb.discover(pendulum(friction=0.1, noise=noise)).conserved == []


def test_a_body_that_turns_has_two_laws_in_three_coordinates():
    """Seen with noise, at uneven times."""
    rng = np.random.default_rng(0)
    inertia, times = np.array([1.0, 2.0, 3.0]), np.concatenate([[0], np.sort(rng.uniform(0, 25, 99)), [25]])
    spun = moved(lambda _, x: np.cross(x, x / inertia), rng.uniform(-1.5, 1.5, (40, 3)), 25.0, times=times, noise=0.02)
    found = sb.discover(spun)
    slopes = [[2 * x * scale for x, scale in zip(spun.states[:, 5].T, of, strict=True)] for of in (inertia**0, 1 / inertia)]
    true = [torch.stack(each, 1) for each in slopes]
    assert len(found.conserved) == 2
    for law in found.conserved:
        gradients = torch.func.grad(lambda x, law=law: law(x).sum())(spun.states[:, 5])
        assert outside(gradients, true) < 0.01


def test_kepler_has_energy_turning_and_the_vector_of_lenz():
    found = sb.discover(sb.dynamics.simulate("kepler", trajectories=32, steps=40, step=0.2), system="kepler")
    names = [{term.monomial for term in law.terms} for law in found.conserved]
    length = "√(x² + y²)⁻¹"
    for law in (
        {"x py", "y px"},
        {"px²", "py²", length},
        {"x py²", "y px py", f"x {length}"},
        {"x px py", "y px²", f"y {length}"},
    ):
        assert law in names
    assert [law.follows for law in found.conserved] == [False, False, False, True]
    assert all(found.bracket(law) < 1e-4 for law in found.conserved)


def toda(_, x):
    q, p = x[:, :3], x[:, 3:]
    force = np.exp(q - np.roll(q, -1, 1))
    return np.concatenate([p, np.roll(force, 1, 1) - force], 1)


def vortices(_, x):
    apart = [each[:, :, None] - each[:, None] for each in (x[:, :3], x[:, 3:])]
    strengths = np.array([1.0, 2.0, -0.5]) / (apart[0] ** 2 + apart[1] ** 2 + np.eye(3))
    return np.concatenate([-(apart[1] * strengths).sum(2), (apart[0] * strengths).sum(2)], 1)


def morse(_, x):
    return np.stack([x[:, 1], -2 * np.exp(-x[:, 0]) * (1 - np.exp(-x[:, 0]))], 1)


def bead(_, x):
    """On a hoop that turns."""
    return np.stack([x[:, 1], np.sin(x[:, 0]) * (1.8 * np.cos(x[:, 0]) - 1)], 1)


def molecules(_, x):
    return np.stack([x[:, 1], 48 * x[:, 0] ** -13.0 - 24 * x[:, 0] ** -7.0], 1)


def springs(_, x):
    """In a ring, and stiffer as they are longer."""
    q, p = x[:, :3], x[:, 3:]
    apart = np.roll(q, -1, 1) - q
    pull = apart + apart**3
    return np.concatenate([p, pull - np.roll(pull, 1, 1)], 1)


def repelled(_, x):
    """By inverse squares, on a line."""
    q, p = x[:, :3], x[:, 3:]
    apart = q[:, :, None] - q[:, None] + np.eye(3)
    return np.concatenate([p, (2 * apart**-3.0 * (1 - np.eye(3))).sum(2)], 1)


def on_a_spring(_, x):
    """And swinging: r, θ and their momenta."""
    r, θ, pr, pθ = x.T
    return np.stack([pr, pθ / r**2, pθ**2 / r**3 - 4 * (r - 1) + np.cos(θ), -r * np.sin(θ)], 1)


DISTANCES = [f"log(√((x{i} − x{j})² + (y{i} − y{j})²))" for i, j in ((1, 2), (1, 3), (2, 3))]


@pytest.mark.parametrize(
    ("velocity", "names", "low", "high", "time", "kind", "law"),
    [
        (toda, "q1 q2 q3 p1 p2 p3", [-1] * 6, [1] * 6, 6.0, "exponential", ["exp(q1 − q2)", "exp(q2 − q3)", "exp(q3 − q1)"]),
        (vortices, "x1 x2 x3 y1 y2 y3", [-2] * 6, [2] * 6, 6.0, "radial", DISTANCES),
        (morse, "q p", [-0.5, -0.5], [1.2, 0.5], 12.0, None, ["p²", "exp(−q)", "exp(−2 q)"]),
        (bead, "θ ω", [-1.5, -1], [1.5, 1], 12.0, None, ["ω²", "cos(θ)", "cos(2 θ)"]),
        (molecules, "r p", [1.0, -0.3], [1.5, 0.3], 3.0, None, ["p²", "r⁻⁶", "r⁻¹²"]),
        (springs, "q1 q2 q3 p1 p2 p3", [-1] * 6, [1] * 6, 6.0, None, ["p1²", "(q1 − q2)⁴", "(q1 − q3)⁴", "(q2 − q3)⁴"]),
        (repelled, "q1 q2 q3 p1 p2 p3", [0, 1, 2] + 3 * [-0.3], [0.6, 1.6, 2.6] + 3 * [0.3], 3.0, None, ["(q2 − q1)⁻²"]),
        (on_a_spring, "r θ a b", [0.9, -0.8, -0.3, -0.5], [1.4, 0.8, 0.3, 0.5], 10.0, None, ["b² r⁻²", "r cos(θ)"]),
    ],
)
def test_energies_of_many_forms_are_found(velocity, names, low, high, time, kind, law):
    initial = np.random.default_rng(0).uniform(low, high, (32, len(low)))
    settings = Terms(libraries=("linear", "quadratic", kind)) if kind else None
    found = sb.discover(moved(velocity, initial, time, steps=60, names=tuple(names.split())), search=settings)
    assert any(set(law) <= {term.monomial for term in one.terms} for one in found.conserved), formulas(found)


@pytest.mark.parametrize("noise", [0.0, 0.02])
@pytest.mark.parametrize(
    ("velocity", "low", "high", "law"),
    [
        (lambda _, x: np.stack([x[:, 1], -np.sin(0.7 * x[:, 0])], 1), [-3.5, -1], [3.5, 1], ["p²", "cos(0.7 q)"]),
        (lambda _, x: np.stack([x[:, 1], 1 - np.exp(0.6 * x[:, 0])], 1), [-3, -1.5], [1.5, 1.5], ["q", "p²", "exp(0.6 q)"]),
        (lambda _, x: np.stack([x[:, 1] / (1 + x[:, 1] ** 2) ** 0.5, -x[:, 0]], 1), [-2, -3], [2, 3], ["q²", "√(p² + 1)"]),
    ],
)
def test_numbers_inside_of_terms_are_found(velocity, low, high, law, noise):
    initial = np.random.default_rng(0).uniform(low, high, (60, 2))
    found = sb.discover(moved(velocity, initial, 14.0, steps=150, noise=noise))
    (one,) = found.conserved
    if not noise:
        assert [term.monomial for term in one.terms] == law
    values = one(moved(velocity, np.random.default_rng(1).uniform(low, high, (20, 2)), 14.0).states.flatten(0, 1))
    values = values.unflatten(0, (20, -1))
    assert values.var(1).mean() < (1e-3 if noise else 1e-9) * values.var()


@pytest.mark.parametrize(
    ("names", "number", "some"),
    [
        ("q1 q2", 1.0, ["cos(q1)", "exp(−q1)", "exp(2 q2)", "√(q1² + 1)"]),
        ("q1 q2 p1 p2", 0.5, ["cos(0.5 (q1 − q2))", "exp(−0.5 q1)", "exp(q1 − q2)", "√(q1² + q2² + 0.25)⁻¹"]),
    ],
)
def test_terms_with_a_number_have_names_and_slopes(names, number, some):
    at = torch.randn(40, len(names.split()), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    every = [shape.library(number) for shape in shapes(names.split(), at)]
    assert set(some) <= {name for library in every for name in library.names}
    for library in every:
        exact = torch.func.vmap(torch.func.jacrev(lambda x, library=library: library(x[None])[0]))(at)
        assert_close(library.slopes(at), exact)


def test_what_is_the_same_for_all_states_tells_no_laws_apart():
    """A pendulum in space, whose rod keeps its length; noise moves it off that."""
    rng = np.random.default_rng(0)
    at, pushed = rng.standard_normal((2, 48, 3))
    at /= np.linalg.norm(at, axis=1, keepdims=True)
    pushed -= (pushed * at).sum(1, keepdims=True) * at

    def velocity(_, x):
        at, v = x[:, :3], x[:, 3:]
        pulled = (v**2).sum(1) - at[:, 2]
        return np.concatenate([v, [0, 0, -1] - pulled[:, None] * at], 1)

    swung = moved(velocity, np.concatenate([at, pushed], 1), 12.0, steps=80, names=("x", "y", "z", "u", "v", "w"), noise=0.01)
    seen = denoised(swung)
    states = seen.trajectories.states.flatten(0, 1)
    slopes = [each.slopes(states) for each in fixed(seen)]
    rod = torch.cat([states[:, :3], 0 * states[:, 3:]], 1)
    across = torch.cat([states[:, 3:], states[:, :3]], 1)  # of what moves along it, which is nothing
    assert len(slopes) == 2
    assert max(outside(rod, slopes), outside(across, slopes)) < 0.01
    assert fixed(denoised(pendulum(noise=0.01))) == []
    found = sb.discover(swung, search=Terms(libraries=("quadratic", "radial")))
    assert sorted(len(law.terms) for law in found.conserved) == [2, 4]  # turning, and the energy


def test_what_is_linear_comes_before_its_squares():
    """Two masses on a spring that float freely: their momentum, their energy, and no square of the momentum."""
    rng = np.random.default_rng(2)

    def velocity(_, x):
        pull = x[:, 0] - x[:, 1] - 1
        return np.stack([x[:, 2], x[:, 3], -pull, pull], 1)

    floating = moved(velocity, rng.uniform(-1, 1, (40, 4)), 10.0, names=("x1", "x2", "p1", "p2"))
    laws = formulas(sb.discover(floating))
    assert laws[0] == "p1 + p2"
    assert len(laws) == 2


def test_functions_of_a_law_are_not_counted_again():
    rng = np.random.default_rng(1)
    swung = moved(lambda _, x: np.stack([x[:, 1], -x[:, 0]], 1), rng.uniform(-1.5, 1.5, (40, 2)), 10.0)
    assert formulas(sb.discover(swung)) == ["q² + p²"]


def test_a_column_that_is_there_twice_adds_no_law():
    data = pendulum()
    twice = Trajectories(torch.cat([data.states, 2 * data.states[..., 1:] - 1], -1), 0.1, ("θ", "p", "again"))
    assert len(sb.discover(twice).conserved) == 1
    alone = sb.discover(Trajectories(data.states[..., :1], 0.1))
    assert alone.conserved == []


def test_what_does_not_hold_is_judged_once():
    """Of a mass that is driven weakly, several libraries have the energy."""
    initial = 2 * np.random.default_rng(1).standard_normal((40, 2))
    driven = moved(lambda t, x: np.stack([x[:, 1], 0.1 * np.cos(3.3 * t) - x[:, 0]], 1), initial, 10.0)
    tested = [tuple(term.monomial for term in one.terms) for one in sb.discover(driven).quantities]
    assert ("q²", "p²") in tested
    assert len(set(tested)) == len(tested)


def test_repeats_of_a_few_trajectories_prove_nothing():
    """Of two motions that conserve nothing, many a sum is constant along both."""
    data = pendulum(friction=0.3).states[:2].repeat(16, 1, 1)
    with pytest.raises(ValueError, match=r"Trajectories must differ, .*; 30 of 32 are copies of others"):
        sb.discover(Trajectories(data, 0.1))
    noise = 0.003 * torch.randn(data.shape, generator=torch.Generator().manual_seed(0), dtype=data.dtype)
    found = sb.discover(Trajectories(data + noise, 0.1))
    assert found.conserved == []
    assert any(quantity.verdict.reason == "nearly all trajectories repeat the same few" for quantity in found.quantities)
    seen = pendulum()
    with pytest.raises(ValueError, match=r"40 of 80 are copies .* hold out none that was learned from"):
        sb.discover(seen, held_out=seen)


def test_one_trajectory_far_from_all_others_is_no_failure():
    """Without it nothing of a square is left beside rounding."""
    initial = np.random.default_rng(1).standard_normal((40, 2))
    driven = moved(lambda t, x: np.stack([x[:, 1], 0.5 * np.cos(1.7 * t) - x[:, 0] - 0.1 * x[:, 1]], 1), initial, 10.0)
    driven.states[[0, 30], :, 0] += 1e4
    assert sb.discover(driven).conserved == []


def test_a_table_is_read_judged_saved_and_shown(tmp_path):
    save_csv(pendulum(noise=0.02), tmp_path / "seen.csv")
    found = sb.discover(tmp_path / "seen.csv")
    assert str(found).startswith("1 conserved quantity in seen.csv: p² − ")
    assert "99.9 % sure" in str(found)
    summary = found.save(tmp_path / "run")
    assert from_json(to_json(summary), DiscoverySummary, "summary") == summary
    assert read_discovery(tmp_path / "run") == summary
    again = replace(summary.quantities[0], follows=True)
    several = replace(summary, quantities=(*summary.quantities, again, again))
    assert several.headline() == f"{summary.headline()}; 2 more follow from it"
    page = make_page(tmp_path / "run")
    assert f"<h1>{summary.headline()}</h1>" in page
    assert "sums of terms from the libraries linear, quadratic" in page


def test_a_page_that_found_nothing_says_so(tmp_path):
    found = sb.discover(pendulum(friction=0.3))
    assert str(found).startswith("No conserved quantity found in trajectories: the most constant that was tested varies by ")
    found.save(tmp_path / "run")
    page = make_page(tmp_path / "run")
    assert "<h1>No conserved quantity found in trajectories" in page
    assert "None is confirmed" in page
    assert " sure)" not in page


def test_settings_and_data_that_do_not_go_together_are_refused():
    data = pendulum()
    with pytest.raises(ValueError, match="There must be 6 trajectories or more, half of them held out; got 1"):
        sb.discover(Trajectories(data.states[:1], 0.1))
    with pytest.raises(ValueError, match="units is of an energy"):
        sb.discover(data, units=None)
    with pytest.raises(ValueError, match=r"Sums of terms need settings Terms\(...\); got a Search"):
        sb.discover(data, symmetry="terms", search=Search())
    with pytest.raises(ValueError, match=r"needs settings Search\(...\); got Terms"):
        sb.discover(data, symmetry="quadratic", search=Terms())
    with pytest.raises(ValueError, match="longest must be at least 1, got 0"):
        Terms(longest=0)
    with pytest.raises(ValueError, match=r"must be between 1e-35 and 1e\+35 in size, .*; θ is up to"):
        sb.discover(Trajectories(1e60 * data.states, 0.1, data.names))
    with pytest.raises(ValueError, match="; noise is up to 1e"):
        sb.discover(data, noise=1e300)
    with pytest.raises(ValueError, match="states must be real numbers; got complex ones"):
        sb.discover(data.states + 0j, step=0.1)
    with pytest.raises(ValueError, match="states must be an array of numbers"):
        sb.discover(data.states.numpy().astype(object), step=0.1)
    uneven = Trajectories(data.states, 0.1, data.names, when=data.times + 0.01 * torch.rand(data.times.shape))
    with pytest.raises(ValueError, match="Times must be even for an energy to be learned"):
        sb.discover(uneven, symmetry="quadratic", progress=False)


@pytest.mark.parametrize(
    ("name", "observable", "names", "coefficients"),
    [
        ("pendulum", lambda x: (x[:, 1] ** 2 / 2 - x[:, 0].cos()).tanh(), ("p²", "cos(θ)"), (1.0, -2.0)),
        ("kepler", lambda x: (x[:, 0] * x[:, 3] - x[:, 1] * x[:, 2]) ** 3, ("x py", "y px"), (1.0, -1.0)),
        ("2-oscillators", lambda x: x.square().sum(1).log(), ("q1²", "q2²", "p1²", "p2²"), (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_a_function_of_a_sum_is_read_as_that_sum(name, observable, names, coefficients):
    """Though its slopes are off by 3 %, as those of a network are."""
    seen = sb.dynamics.simulate(name, trajectories=30, steps=40)
    states = seen.states.double().flatten(0, 1)
    slopes = gradient(observable, states)
    slopes = slopes + 0.03 * slopes.norm(dim=1).mean() * torch.randn(
        slopes.shape, dtype=slopes.dtype, generator=torch.Generator().manual_seed(0)
    )
    found = along_slopes(slopes, states, libraries(seen.names, states))
    assert found.library.names == names
    assert_close(found.coefficients / found.unit(states), torch.tensor(coefficients).double(), rtol=0.03, atol=0)


def test_what_is_no_function_of_a_short_sum_is_read_as_none():
    seen = sb.dynamics.simulate("pendulum", trajectories=30, steps=40)
    states = seen.states.double().flatten(0, 1)
    slopes = gradient(lambda x: (3 * x[:, 0]).sin() * x[:, 1].exp(), states)
    assert along_slopes(slopes, states, libraries(seen.names, states)) is None
