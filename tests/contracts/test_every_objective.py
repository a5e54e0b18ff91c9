"""What every objective must do: train over a state that can be saved, so that training goes on as if it had not stopped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.folders import SEAL
from symbayes.data.source import as_source
from symbayes.data.transform import FlipCrop
from symbayes.layout import Hyperparameter
from symbayes.training.by_curvature import CurvatureTrainer
from symbayes.training.optimiser import PLAIN, Descent, Optimiser, Rotation
from symbayes.training.trainer import NUMBERS, TENSORS, Objective, Problem
from tests.damage import reseal

#: One of each kind, by the name of the class; the settings are those with most state.
OBJECTIVES: dict[str, Objective] = {
    "Map": sb.Map(),
    "Augerino": sb.Augerino(extent_rate=0.05),
    "Laplace": sb.Laplace(),
    "Elbo": sb.Elbo(annealing=0.0),
}
#: Likewise.
OPTIMISERS: dict[str, Optimiser] = {"Optimiser": Optimiser(2, 3, eigenbasis=1)}


def leaves(kind: type) -> set[str]:
    """Kinds of the package without kinds below them."""
    below = [sub for sub in kind.__subclasses__() if sub.__module__.startswith("symbayes.")]
    return set().union(*map(leaves, below)) if below else {kind.__name__}


def test_none_is_missing():
    assert leaves(Objective) == set(OBJECTIVES)
    assert leaves(Optimiser) == set(OPTIMISERS)
    assert {name: type(one).__name__ for name, one in OBJECTIVES.items()} == {name: name for name in OBJECTIVES}
    assert {name: type(one).__name__ for name, one in OPTIMISERS.items()} == {name: name for name in OPTIMISERS}


def images() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(30, 1, 6, 6, generator=generator), torch.arange(30) % 3


def numbers() -> tuple[Tensor, Tensor]:
    inputs, targets = images()
    return inputs, inputs.flatten(1)[:, :2] + 0.1 * targets[:, None]


def network(outputs: int = 3) -> nn.Module:
    """With dropout, which draws from torch itself, and norms, which keep running statistics."""
    with torch.random.fork_rng():
        torch.random.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, outputs)
        )


def averaged() -> nn.Module:
    net = sb.models.small_cnn(images(), width=2, generator=torch.Generator().manual_seed(0))
    return sb.OrbitAverage(net, sb.affine2d("rotation"), samples=3)


class Scaled(nn.Module):
    """A hyperparameter that is no extent."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.scale = network(), Hyperparameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(self.scale * inputs)


def classes(model: nn.Module, data: Any = None, **options: Any) -> Problem:
    source = as_source(data if data is not None else images(), torch.device("cpu"), **options)
    return Problem(model, source, sb.Categorical(), sb.TensorwisePrior(model))


def regression() -> Problem:
    model = network(2)
    return Problem(model, as_source(numbers(), torch.device("cpu")), sb.Gaussian(0.5, 2), sb.TensorwisePrior(model))


def loader() -> Problem:
    own = torch.Generator().manual_seed(5)
    return classes(network(), DataLoader(TensorDataset(*images()), 8, shuffle=True, generator=own))


#: What is learned, with what there is of state beside weights.
PROBLEMS = {
    "classes": lambda: classes(network()),
    "augmented": lambda: classes(network(), augment=FlipCrop(1)),
    "regression": regression,
    "extents": lambda: classes(averaged()),
    "hyperparameter": lambda: classes(Scaled()),
    "loader": loader,
}
#: Settings with more state than those above.
FURTHER: dict[str, tuple[Objective, str]] = {
    "keep_best": (sb.Laplace(sb.Kfac(), keep_best=True), "classes"),
    "keep_best of extents": (sb.Laplace(keep_best=True, extent_rate=0.5), "extents"),
    "keep_best, then another rule": (sb.Laplace(keep_best=True, final_rule=sb.Kfac()), "regression"),
    "final rule": (sb.Laplace(final_rule=sb.Kfac()), "classes"),
    "collected gradients": (sb.Elbo(annealing=0.0, hyper_every=3), "hyperparameter"),
    "noise by gradient": (sb.Elbo(noise="gradient", collapsed=False), "regression"),
}
#: Data that draw random numbers of their own: the objectives do not know of each other's.
DRAWN = {"augmented": ("Laplace", "Elbo"), "loader": ("Laplace", "Elbo")}
CASES = FURTHER | {
    f"{name}, {kind}": (one, kind)
    for kind in PROBLEMS
    for name, one in OBJECTIVES.items()
    if name in DRAWN.get(kind, OBJECTIVES)
}
#: Saved at the start, and after the last epoch; all others in the middle.
ENDS = ("Map, classes", "Laplace, classes", "Elbo, classes", "keep_best", "Laplace, loader")
SAVED = [(case, 2) for case in CASES] + [(case, after) for case in ENDS for after in (0, 4)]
SCHEDULE = sb.Schedule(4, 8, 0.01)


def run(trainer, state):
    """To the end of the schedule: the records but for their seconds, the state then, and the posterior."""
    found = [replace(trainer.epoch(state), seconds=0.0) for _ in range(SCHEDULE.epochs - state.epoch)]
    return found, state.state_dict(), trainer.finish(state)()


@cache
def straight(objective: Objective, kind: str, optimiser: Optimiser | None = None):
    """Training that does not stop."""
    trainer = built(objective, kind, optimiser)
    return run(trainer, begun(trainer, 0)[0])


def built(objective: Objective, kind: str, optimiser: Optimiser | None = None):
    """Everything anew."""
    return objective.trainer(PROBLEMS[kind](), SCHEDULE, optimiser)


def begun(trainer, epochs: int):
    """The state after some epochs, and the records of them."""
    torch.manual_seed(3)
    state = trainer.init(torch.Generator().manual_seed(1))
    return state, [replace(trainer.epoch(state), seconds=0.0) for _ in range(epochs)]


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, theirs[name], rtol=0, atol=0, equal_nan=True, msg=name)
        elif name != "state.seconds":
            assert value == theirs[name], name


@pytest.mark.parametrize(("case", "after"), SAVED)
def test_training_through_a_saved_state_is_training_straight(case, after, tmp_path):
    objective, kind = CASES[case]
    wanted, ended, posterior = straight(objective, kind)
    first = built(objective, kind)
    half, seen = begun(first, after)
    first.save(half, tmp_path)
    del first, half
    torch.manual_seed(99)
    second = built(objective, kind)
    again = second.load(tmp_path)
    assert again.epoch == after
    rest, state, other = run(second, again)
    assert seen + rest == wanted
    assert_same(state, ended)
    assert_same(other.mean, posterior.mean)
    for name, variance in posterior.variances().items():
        # Where the curvature is estimated once more, it is not decomposed in the same order.
        torch.testing.assert_close(other.variances()[name], variance, rtol=1e-4 if after == 4 else 0, atol=0)


@pytest.mark.parametrize("name", OPTIMISERS)
def test_optimisers_go_on_too(name, tmp_path):
    optimiser = OPTIMISERS[name]
    wanted, ended, _ = straight(sb.Laplace(), "classes", optimiser)
    first = built(sb.Laplace(), "classes", optimiser)
    half, seen = begun(first, 2)
    first.save(half, tmp_path)
    second = built(sb.Laplace(), "classes", optimiser)
    again = second.load(tmp_path)
    rest, state, _ = run(second, again)
    assert seen + rest == wanted
    assert_same(state, ended)


def test_what_was_captured_of_steps_is_forgotten_with_a_state():
    trainer = built(sb.Laplace(), "classes", Optimiser(2, eigenbasis=1))
    state, _ = begun(trainer, 2)
    forgotten = []
    state.steps.forget = lambda: forgotten.append(True)
    state.load_state_dict(state.state_dict())
    assert forgotten == [True]
    assert state.descent._launched == state.descent.steps == 8  # steps from the CPU count on, so that capture may begin


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_checks_its_problem_and_gives_records(name):
    trainer = built(OBJECTIVES[name], "classes")
    assert 1.0 < trainer.check() < 5.0
    state, found = begun(trainer, 4)
    assert [record.epoch for record in found] == [1, 2, 3, 4] == list(range(1, state.epoch + 1))
    assert found[-1].evidence is not None
    assert set(found[-1].evidence.effective) == set(dict(state.problem.model.named_parameters()))
    assert trainer.finish(state)().mean.keys() == found[-1].evidence.effective.keys()


def test_states_that_do_not_fit_are_refused(tmp_path):
    trainer = built(sb.Laplace(), "classes")
    with pytest.raises(FileNotFoundError, match=r"must hold state\.safetensors and state\.json; .* has no state\.safetensors"):
        trainer.load(tmp_path)
    trainer.save(begun(trainer, 1)[0], tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {TENSORS, NUMBERS, SEAL}
    with pytest.raises(ValueError, match=r"must go on with the objective it began with, Laplace\(.*; got Map\("):
        built(sb.Map(), "classes").load(tmp_path)
    with pytest.raises(ValueError, match=r"must go on with the optimiser it began with, Optimiser\(running=10.*running=0"):
        built(sb.Laplace(), "classes", PLAIN).load(tmp_path)
    with pytest.raises(ValueError, match=r"must go on with the schedule it began with"):
        sb.Laplace().trainer(PROBLEMS["classes"](), sb.Schedule(5, 8, 0.01)).load(tmp_path)
    with pytest.raises(ValueError, match=r"must be that of a training of this model .*; it is not \(.*"):
        sb.Laplace().trainer(classes(nn.Sequential(nn.Flatten(), nn.Linear(36, 3))), SCHEDULE).load(tmp_path)
    whole = (tmp_path / TENSORS).read_bytes()
    (tmp_path / TENSORS).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"The state in .* is damaged \(.*\)\. Copy it again, or train anew\."):
        trainer.load(tmp_path)
    (tmp_path / TENSORS).write_bytes(whole)
    (tmp_path / NUMBERS).write_text('{"format": 9}')
    reseal(tmp_path)
    with pytest.raises(ValueError, match=r"is damaged \(it has format 9; this version reads format 1\)"):
        trainer.load(tmp_path)


@dataclass(frozen=True)
class Smoothed(Objective):
    """An objective from outside the package: MAP under labels that are smoothed."""

    smoothing: float = 0.1

    def trainer(self, problem, schedule, optimiser=None):
        inputs, targets = problem.data.inputs, problem.data.targets
        soft = (1 - self.smoothing) * nn.functional.one_hot(targets).float() + self.smoothing / 3
        other = replace(problem, data=as_source((inputs, soft), torch.device("cpu")))
        return CurvatureTrainer(sb.Map(), other, schedule, optimiser or self.usual_optimiser(problem))


@dataclass(frozen=True)
class Momentum(Optimiser):
    """An optimiser from outside the package."""

    running: int = 0
    eigenbasis: int = 0
    decay: float = 0.9

    def over(self, parameters):
        return MomentumDescent(parameters, self.decay)


class MomentumDescent(Descent):
    def __init__(self, parameters, decay):
        super().__init__(parameters)
        self.decay, self.means = decay, [torch.zeros_like(parameter) for parameter in parameters]

    def set(self, learning_rate, penalties):
        self.rate, self.penalties = learning_rate, penalties

    @torch.no_grad()
    def step(self, gradients):
        for parameter, mean, gradient, penalty in zip(self.parameters, self.means, gradients, self.penalties, strict=True):
            parameter.sub_(self.rate * mean.mul_(self.decay).add_(gradient)).div_(1 + self.rate * penalty)

    def state_dict(self):
        return {str(index): mean for index, mean in enumerate(self.means)}

    def load_state_dict(self, state):
        for index, mean in enumerate(self.means):
            mean.copy_(state[str(index)])


def test_one_from_outside_the_package_takes_one_file(tmp_path, monkeypatch):
    """It trains, saves and goes on as those of the package do; nothing asks for its type."""
    monkeypatch.setitem(CASES, "outside", (Smoothed(), "classes"))
    monkeypatch.setitem(OPTIMISERS, "Momentum", Momentum())
    test_training_through_a_saved_state_is_training_straight("outside", 2, tmp_path)
    test_optimisers_go_on_too("Momentum", tmp_path)
    schedule = sb.Schedule(30, 10, 0.02)
    result = sb.fit(network(), images(), objective=Smoothed(), optimiser=Momentum(), schedule=schedule, progress=False)
    assert result.history[-1].loss < result.history[0].loss
    refused = r"MomentumDescent has no steps in an eigenbasis. Use eigenbasis=0"
    with pytest.raises(ValueError, match=refused):  # before the first epoch
        built(sb.Laplace(), "classes", Momentum(running=2, eigenbasis=1)).init(torch.Generator())
    with pytest.raises(ValueError, match=refused):
        Momentum().over(list(network().parameters())).rotate([Rotation((1, 4, 4), torch.eye(4)[None], None)])
