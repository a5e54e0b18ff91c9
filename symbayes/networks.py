"""A network for data of any shape: `allconv` where they have a grid, a perceptron where they have none; and an averaged one."""

from collections.abc import Sequence

from torch import Generator, nn

from symbayes.data.task import Task
from symbayes.groups.lie import affine2d
from symbayes.invariance.orbit_average import OrbitAverage
from symbayes.models import build_allconv, perceptron, small_cnn

#: Of the first layer of `allconv`, and of the hidden layer of a perceptron.
_WIDTH, _HIDDEN = 10, 64
#: Of the first map of an averaged network, and transformations of each datum.
_AVERAGED, _SAMPLES = 8, 8


def network_for(
    in_shape: Sequence[int],
    outputs: int,
    paths: Sequence[str] = ("factored", "conv"),
    width: int | None = None,
    *,
    group: str = "p4",
    generator: Generator | None = None,
) -> nn.Sequential:
    """A network whose layers choose between paths, for inputs [channels, *grid]; one hidden layer with tanh, for [features].

    Args:
        in_shape: Of one input.
        outputs: Classes or values.
        paths: Of every layer, as `sb.allconv` takes them; those of a perceptron have no choice.
        width: Of the first layer, or of the hidden one; 10 and 64 when None.
        group: Of paths that turn filters.
        generator: For the initial weights; the global one when None.
    """
    if len(in_shape) > 1:
        return build_allconv(tuple(in_shape), outputs, paths, width or _WIDTH, group=group, generator=generator)
    return perceptron(in_shape[0], outputs, width or _HIDDEN, generator)


def averaged_network(task: Task, width: int | None = None, *, seed: int = 0) -> OrbitAverage:
    """A plain convolutional network that is averaged over affine maps of its input, how far is to be learned.

    Args:
        task: Of images.
        width: Of the first map; 8 when None.
        seed: For initial weights and for transformations that are drawn.

    Raises:
        ValueError: If inputs are no images.
    """
    net = small_cnn(task, width or _AVERAGED, generator=Generator().manual_seed(seed))
    return OrbitAverage(net, affine2d(), _SAMPLES, seed=seed)
