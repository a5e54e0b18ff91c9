"""Networks that learn by the evidence as estimators of scikit-learn: in pipelines, in `cross_val_score`, pickled."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, unique_labels
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from symbayes.data.scaling import Standard
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.likelihoods.values import Gaussian
from symbayes.networks import network_for
from symbayes.training.fit import fit
from symbayes.training.result import Result
from symbayes.training.symmetries import Symmetries
from symbayes.training.trainer import Objective

#: Makes a network from the shape of one input and the number of outputs.
Network = Callable[[tuple[int, ...], int], nn.Module]


class _SymmetryEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor have in common."""

    def __init__(
        self,
        network: Network | None = None,
        *,
        in_shape: tuple[int, ...] | None = None,
        paths: Sequence[str] = ("factored", "conv"),
        width: int | None = None,
        epochs: int = 100,
        objective: Objective | None = None,
        device: str = "cpu",
        random_state: Any = 0,
    ) -> None:
        self.network = network
        self.in_shape = in_shape
        self.paths = paths
        self.width = width
        self.epochs = epochs
        self.objective = objective
        self.device = device
        self.random_state = random_state

    def _fit(self, X: np.ndarray, targets: Tensor, outputs: int, likelihood: Likelihood) -> None:
        shape = self._shape(X.shape[1])
        values = torch.tensor(X, dtype=torch.float64).reshape(len(X), *shape)
        self._inputs = Standard.of(values, by_feature=len(shape) == 1)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng():
            torch.random.manual_seed(seed)
            model = self.network(shape, outputs) if self.network else network_for(shape, outputs, self.paths, self.width)
            self.result_: Result = fit(
                model.to(self.device),
                (self._inputs(values).float(), targets),
                likelihood=likelihood,
                objective=self.objective,
                epochs=self.epochs,
                seed=seed,
                progress=False,
            )
        self.n_iter_ = len(self.result_.history)

    def _shape(self, features: int) -> tuple[int, ...]:
        shape = (features,) if self.in_shape is None else tuple(self.in_shape)
        if prod(shape) != features:
            raise ValueError(
                f"in_shape must have as many numbers as a row of X, {features}; {shape} has {prod(shape)}. Give (channels, "
                "*grid) of one input."
            )
        return shape

    def _read(self, X: Any) -> Tensor:
        """New inputs as the network takes them."""
        check_is_fitted(self)
        values = torch.tensor(validate_data(self, X, reset=False), dtype=torch.float64)
        return self._inputs(values.reshape(len(values), *self._shape(values.shape[1]))).float()

    @property
    def log_evidence_(self) -> float:
        """log p(D) of the training data."""
        check_is_fitted(self)
        return self.result_.log_evidence

    @property
    def symmetries_(self) -> Symmetries:
        """What every layer keeps."""
        check_is_fitted(self)
        return self.result_.symmetries


class SymmetryClassifier(ClassifierMixin, _SymmetryEstimator):  # type: ignore[misc]
    """A network that learns classes, and which symmetries it needs for them, by the evidence.

    Args:
        network: Makes a network from the shape of one input and the number of outputs; `sb.allconv` with these paths where
            inputs have a grid, else a perceptron with a hidden layer, when None.
        in_shape: Of one input, (channels, *grid), where a row of X is an image or a series; that of a row when None.
        paths: Of every layer, as `sb.allconv` takes them.
        width: Of the first layer of `sb.allconv`, or of the hidden layer.
        epochs: Passes over the data.
        objective: As `sb.fit` takes it.
        device: Where to compute.
        random_state: For initial weights, the order of data and rules that sample.

    Attributes:
        classes_: In the order of probabilities.
        result_: Of `sb.fit`: evidence, symmetries, predictions with the uncertainty of weights.
    """

    def fit(self, X: Any, y: Any) -> "SymmetryClassifier":
        """Learn from rows of X and their classes."""
        X, y = validate_data(self, X, y)
        check_classification_targets(y)
        self.classes_ = unique_labels(y)
        if len(self.classes_) < 2:
            raise ValueError(f"Classes must be two or more to be told apart; got one class, {self.classes_[0]!r}.")
        self._fit(X, torch.tensor(np.searchsorted(self.classes_, y)), len(self.classes_), Categorical())
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of classes, by plug-in; `result_.predict` has those that know of the uncertainty of weights."""
        inputs = self._read(X)
        found: np.ndarray = self.result_.predict(inputs, "plug-in").mean.double().cpu().numpy()
        return found / found.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of every row."""
        chosen = self.predict_proba(X).argmax(1)
        found: np.ndarray = self.classes_[chosen]
        return found


class SymmetryRegressor(RegressorMixin, _SymmetryEstimator):  # type: ignore[misc]
    """A network that learns values, with noise of a standard deviation that it learns, too, by the evidence.

    Its arguments are those of `SymmetryClassifier`.

    Attributes:
        result_: Of `sb.fit`, on targets of mean 0 and standard deviation 1.
    """

    def fit(self, X: Any, y: Any) -> "SymmetryRegressor":
        """Learn from rows of X and their values, or rows of values."""
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True)
        values = torch.tensor(np.asarray(y, dtype=np.float64)).reshape(len(X), -1)
        self._targets, self._is_flat = Standard.of(values, by_feature=True), np.ndim(y) == 1
        self._fit(X, self._targets(values).float(), values.shape[1], Gaussian())
        return self

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """The mean of every row, by plug-in; and the standard deviation of a new y, with the uncertainty of weights."""
        inputs = self._read(X)
        mean = self._values(self._targets.back(self.result_.predict(inputs, "plug-in").mean.double().cpu()))
        if not return_std:
            return mean
        return mean, self._values(self.result_.predict(inputs).std.double().cpu() * self._targets.std)

    def __sklearn_tags__(self) -> Any:
        """It learns several values at a time, too."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _values(self, found: Tensor) -> np.ndarray:
        values: np.ndarray = (found[:, 0] if self._is_flat else found).numpy()
        return values
