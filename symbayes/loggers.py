"""Records of training for other programs: TensorBoard, MLflow, Weights & Biases. Each is a callback for `sb.fit`."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from symbayes.training.record import Record


def scalars(record: Record) -> dict[str, float]:
    """The numbers of an epoch by name: loss, evidence and its terms, and by tensor δ and γ, extents, noise, validation."""
    found = {"loss": record.loss, "learning_rate": record.learning_rate, "seconds": record.seconds}
    evidence = record.evidence
    if evidence is not None:
        found["evidence/total"] = evidence.total
        for term in ("log_likelihood", "log_prior", "log_volume"):
            found[f"evidence/{term}"] = getattr(evidence, term)
        found["evidence/gamma"] = sum(evidence.effective.values())
        found |= {f"gamma/{name}": value for name, value in evidence.effective.items()}
        found |= {f"precision/{name}": value for name, value in evidence.precision.items()}
        found |= {f"noise/{index}": value for index, value in enumerate(evidence.noise)}
    found |= {f"extent/{name}": value for name, value in record.extents.items()}
    return found | {f"validation/{name}": value for name, value in record.validation.items()}


class TensorBoard:
    """Writes event files, which `tensorboard --logdir FOLDER` shows.

    Args:
        folder: For the files.

    Raises:
        ImportError: If the package tensorboard is not there.
    """

    def __init__(self, folder: str | Path) -> None:
        _need("tensorboard", "TensorBoard")
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(folder))

    def __call__(self, record: Record) -> None:
        """Write the numbers of an epoch."""
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record.epoch)

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()


class MLflow:
    """Logs to the run of MLflow that is active, or to a new one, as `mlflow.log_metrics` does.

    Raises:
        ImportError: If the package mlflow is not there.
    """

    def __init__(self) -> None:
        self.mlflow = _need("mlflow", "MLflow")

    def __call__(self, record: Record) -> None:
        """Log the numbers of an epoch."""
        self.mlflow.log_metrics(scalars(record), step=record.epoch)


class WandB:
    """Logs to a run of Weights & Biases.

    Args:
        run: What `wandb.init` gave; the active one when None.

    Raises:
        ImportError: If there is no run, and the package wandb is not there.
    """

    def __init__(self, run: Any = None) -> None:
        self.run = _need("wandb", "Weights & Biases") if run is None else run

    def __call__(self, record: Record) -> None:
        """Log the numbers of an epoch."""
        self.run.log(scalars(record), step=record.epoch)


def _need(package: str, name: str) -> ModuleType:
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(
            f"To log to {name}, the package {package} must be installed; it is not. Install it: pip install "
            f"'symbayes[{package}]'."
        ) from error
