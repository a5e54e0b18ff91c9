"""A callback for Lightning, which trains the weights: the prior is learned beside, by the evidence."""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from symbayes.curvature.check import trusted
from symbayes.curvature.evaluate import without_autocast
from symbayes.data.source import Data, source_for
from symbayes.invariance.extents import all_extents
from symbayes.layout import weights
from symbayes.likelihoods.classes import Categorical
from symbayes.likelihoods.likelihood import Likelihood
from symbayes.loggers import scalars
from symbayes.priors import Prior, TensorwisePrior
from symbayes.training.by_curvature import Laplace
from symbayes.training.convergence import floor_of
from symbayes.training.fit import EXAMPLES
from symbayes.training.optimiser import PLAIN
from symbayes.training.record import Record
from symbayes.training.result import Result
from symbayes.training.trainer import Problem, Schedule

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(
        "For symbayes.lightning, the package lightning must be installed; it is not. Install it: pip install "
        "'symbayes[lightning]'."
    ) from error

#: Data in a pass for curvature.
_BATCH = 250


class LearnPrior(Callback):
    """Learns prior precisions, noise and extents by the evidence after every epoch of Lightning; `result` is as of `sb.fit`.

    Weights are trained by the module and its optimiser. Its loss must be the mean of −log p(y | x) over the data of a batch,
    such as that of `functional.cross_entropy`, without weight decay: the gradient of the prior is added before every step.
    Loss, evidence and the rest of `sb.loggers.scalars` are logged by the module.

    Args:
        net: Of the module, from inputs to outputs [n, c].
        data: To learn from, as `sb.fit` takes them; when None, what the trainer's loader gives.
        likelihood: Of targets given outputs; `Categorical()` when None.
        prior: Over the weights of the net; a precision for every tensor, starting at 1, when None.
        objective: How precisions are learned, and how often; `Laplace()` when None.
        seed: For rules that sample.
    """

    def __init__(
        self,
        net: nn.Module,
        data: Data | None = None,
        *,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        objective: Laplace | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.net, self.data = net, data
        self.likelihood = likelihood if likelihood is not None else Categorical()
        self.prior = prior if prior is not None else TensorwisePrior(net)
        self.objective, self.seed = objective if objective is not None else Laplace(), seed
        self.history: list[Record] = []
        self._result: Result | None = None
        self._losses: list[Tensor] = []

    @property
    def result(self) -> Result:
        """What was learned.

        Raises:
            RuntimeError: If training has not ended.
        """
        if self._result is None:
            raise RuntimeError("There is a result when training has ended; call Trainer.fit with this callback first.")
        return self._result

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot work.

        Raises:
            ValueError: If it is not known for how many epochs there is training, several devices train, or the module has
                another net.
        """
        if trainer.world_size > 1:
            raise ValueError(
                f"LearnPrior is for one device; there are {trainer.world_size}. Use Trainer(devices=1); sb.fit takes several."
            )
        if not trainer.max_epochs or trainer.max_epochs < 1:
            raise ValueError("It must be known for how many epochs to learn precisions. Say it: Trainer(max_epochs=...).")
        known = {id(parameter) for parameter in pl_module.parameters()}
        if any(id(weight) not in known for weight in weights(self.net).values()):
            raise ValueError("The net must be that of the module, which trains its weights; it has others. Give module.net.")
        device = next(self.net.parameters()).device
        source = source_for(self.net, self.data if self.data is not None else trainer.train_dataloader)
        self.problem = Problem(self.net, source, self.likelihood.to(device), self.prior.to(device))
        self.trainer = self.objective.trainer(self.problem, Schedule(trainer.max_epochs, _BATCH), PLAIN)
        with without_autocast(), trusted(self.net):
            self.trainer.check()
            self.state = self.trainer.init(torch.Generator().manual_seed(self.seed))
        self.history, self._result, self._started = [], None, time.perf_counter()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Forget the losses of the epoch before, and take the precisions that there are."""
        self._losses = []
        size = self.problem.data.size
        self._penalties = {name: float(value) / size for name, value in self.prior.precisions().items()}

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Add the gradient of −log p(W) per datum."""
        for name, weight in weights(self.net).items():
            if weight.grad is not None:
                weight.grad.add_(weight, alpha=self._penalties[name])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the loss."""
        self._losses.append(torch.as_tensor(outputs["loss"] if isinstance(outputs, dict) else outputs).detach().float())

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Take a hyper-step, if it is time, and log the record of the epoch."""
        epoch, state = trainer.current_epoch + 1, self.state
        rate = float(trainer.optimizers[0].param_groups[0]["lr"])
        loss, evidence = float(torch.stack(self._losses).mean()), None
        extents = all_extents(self.net)
        state.rate_share = self.trainer.rate_share(epoch)
        if self.trainer.moves_at(epoch):
            with without_autocast(), trusted(self.net):
                evidence, extents = self.trainer.settle(state, self.trainer.curvature(state), moves=True, last=False)
        state.epoch = epoch
        seconds = time.perf_counter() - self._started
        self.history.append(Record(epoch, trainer.max_epochs, seconds, rate, loss, extents, evidence))
        pl_module.log_dict(scalars(self.history[-1]))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Find the evidence of what was learned."""
        if not self.history:
            return
        with without_autocast(), trusted(self.net):
            self.history[-1] = replace(self.history[-1], evidence=self.trainer.conclude(self.state))
            make_posterior = self.trainer.finish(self.state)
        problem, is_partial = self.problem, self.history[-1].epoch < trainer.max_epochs
        self._result = Result(
            self.net,
            self.likelihood,
            self.prior,
            tuple(self.history),
            problem.data.size,
            problem.examples(EXAMPLES),
            make_posterior,
            is_partial=is_partial,
            floor=floor_of(problem),
        )
