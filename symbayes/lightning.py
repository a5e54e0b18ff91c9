"""A callback for Lightning, which trains the weights: the prior is learned beside, by the evidence."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from symbayes.curvature.check import trusted
from symbayes.curvature.evaluate import without_autocast
from symbayes.data.source import Data, source_for
from symbayes.data.storage import from_json, to_json
from symbayes.invariance.extents import all_extents
from symbayes.layout import hyperparameters, weights
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
from symbayes.training.trainer import Objective, Problem, Schedule, copy_parts

try:
    from lightning.pytorch import Callback
except ImportError as error:
    raise ImportError(
        "For symbayes.lightning, the package lightning must be installed; it is not. Install it: pip install "
        "'symbayes[lightning]'."
    ) from error

#: Data in a pass for curvature.
_BATCH = 250
#: Parts of a state that are not saved: what Lightning saves itself, and what moves weights where it does not.
_MODEL, _DESCENT = "model.", "descent."


class LearnPrior(Callback):
    """Learns prior precisions, noise and extents by the evidence after every epoch of Lightning; `result` is as of `sb.fit`.

    Weights are trained by the module and its optimiser. Its loss must be the mean of −log p(y | x) over the data of a batch,
    such as that of `functional.cross_entropy`, without weight decay: the gradient of the prior is added before every step.
    Loss, evidence and the rest of `sb.loggers.scalars` are logged by the module. Lightning's checkpoints hold what was learned,
    and `Trainer.fit(ckpt_path=...)` goes on from there. At the end the net is left in evaluation mode, as by `sb.fit`.

    Args:
        net: Of the module, from inputs to outputs [n, c].
        data: To learn from, as `sb.fit` takes them; when None, what the trainer's loader gives.
        likelihood: Of targets given outputs; `Categorical()` when None.
        prior: Over the weights of the net; a precision for every tensor, starting at 1, when None.
        objective: How precisions are learned, and how often, without a search; `Laplace()` when None.
        seed: For rules that sample.

    Raises:
        ValueError: If the objective is another, or searches.
    """

    def __init__(
        self,
        net: nn.Module,
        data: Data | None = None,
        *,
        likelihood: Likelihood | None = None,
        prior: Prior | None = None,
        objective: Objective | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if objective is not None and not isinstance(objective, Laplace):
            raise ValueError(
                f"The objective must be Laplace, whose hyper-steps fit between epochs of Lightning; got {objective!r}. Use "
                "sb.Laplace(), or train by sb.fit, which takes any."
            )
        if objective is not None and objective.search is not None:
            raise ValueError(
                f"The objective must not search, since Lightning does not know of tries; got search={objective.search}. Use "
                "sb.Laplace(search=None), or train by sb.fit."
            )
        self.net, self.data = net, data
        self.likelihood = likelihood if likelihood is not None else Categorical()
        self.prior = prior if prior is not None else TensorwisePrior(net)
        self.objective, self.seed = objective if objective is not None else Laplace(), seed
        self.history: list[Record] = []
        self._result: Result | None = None
        self._losses: list[Tensor] = []
        #: By weight tensor, δ per datum; none before training.
        self._penalties: dict[str, float] = {}
        #: What a checkpoint had, until training starts; and what stopped training, in words.
        self._loaded: Mapping[str, Any] | None = None
        self._stopped_by = ""

    @property
    def result(self) -> Result:
        """What was learned.

        Raises:
            RuntimeError: If training has not ended, or was stopped by an error or Ctrl-C.
        """
        if self._result is None and self._stopped_by:
            raise RuntimeError(
                f"There is a result when training has ended; it was stopped after {len(self.history)} whole epochs by "
                f"{self._stopped_by}. Go on from a checkpoint, Trainer.fit(..., ckpt_path=...), or train again."
            )
        if self._result is None and self._loaded is not None:
            raise RuntimeError(
                "There is a result when training has ended; the checkpoint left no epoch to train. Go on from an earlier one, "
                "or with a larger Trainer(max_epochs=...)."
            )
        if self._result is None:
            raise RuntimeError("There is a result when training has ended; call Trainer.fit with this callback first.")
        return self._result

    def state_dict(self) -> dict[str, Any]:
        """What training has changed, without the weights, in tensors and plain values; nothing before it."""
        if not self._penalties:
            return {}
        state = {name: value for name, value in self.state.state_dict().items() if not name.startswith((_MODEL, _DESCENT))}
        # Of an epoch that may have begun: Lightning also saves within one.
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return {"state": state, "history": to_json(self.history), "losses": losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep what `state_dict` gave until training starts."""
        self._loaded = state_dict

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Note why there will be no result."""
        self._stopped_by = repr(exception)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Refuse what cannot work, and go on from a checkpoint if there is one.

        Raises:
            ValueError: If it is not known for how many epochs there is training, several devices train, the module has
                another net, its optimiser decays weights, or a checkpoint has nothing of this callback.
        """
        loaded = self._loaded if trainer.ckpt_path is not None else None
        self.history, self._losses, self._penalties, self._result = [], [], {}, None
        self._loaded, self._stopped_by = None, ""
        if trainer.world_size > 1:
            raise ValueError(
                f"LearnPrior is for one device; there are {trainer.world_size}. Use Trainer(devices=1); sb.fit takes several."
            )
        if not trainer.max_epochs or trainer.max_epochs < 1:
            raise ValueError("It must be known for how many epochs to learn precisions. Say it: Trainer(max_epochs=...).")
        known = {id(parameter) for parameter in pl_module.parameters()}
        if any(id(weight) not in known for weight in weights(self.net).values()):
            raise ValueError("The net must be that of the module, which trains its weights; it has others. Give module.net.")
        self._refuse_groups(trainer.optimizers)
        if loaded is None and (trainer.ckpt_path is not None or trainer.current_epoch > 0):
            raise ValueError(
                f"To go on after {trainer.current_epoch} epochs, precisions must be those of that training; there are none in "
                "what was restored. Give Trainer.fit a ckpt_path that was saved with this callback, or train from the start."
            )
        device = next(self.net.parameters()).device
        source = source_for(self.net, self.data if self.data is not None else trainer.train_dataloader)
        self.problem = Problem(self.net, source, self.likelihood.to(device), self.prior.to(device))
        self.trainer = self.objective.trainer(self.problem, Schedule(trainer.max_epochs, _BATCH), PLAIN)
        given = copy_parts({"model": self.net})  # which a symmetric start moves
        with without_autocast(), trusted(self.net):
            self.trainer.check()
            self.state = self.trainer.init(torch.Generator().manual_seed(self.seed))
        if loaded is not None:
            descent = {name: value for name, value in self.state.state_dict().items() if name.startswith(_DESCENT)}
            self.state.load_state_dict({**loaded["state"], **given, **descent})
            self.history = from_json(loaded["history"], list[Record], "history")
            self._losses = list(torch.tensor(loaded["losses"], device=device))
        self._started = time.perf_counter() - (self.history[-1].seconds if self.history else 0)
        if self.state.epoch < trainer.current_epoch:  # saved after the last batch of an epoch, whose end Lightning leaves out
            self._end_epoch(trainer, trainer.current_epoch)
        self._find_penalties()

    def _refuse_groups(self, optimisers: list[Any]) -> None:
        names = {id(weight): name for name, weight in weights(self.net).items()}
        others = {id(one): name for name, one in hyperparameters(self.net).items()}
        for group in (group for optimiser in optimisers for group in optimiser.param_groups):
            if extent := next((others[id(one)] for one in group["params"] if id(one) in others), None):
                raise ValueError(
                    f"The optimiser must be of weights alone, since the loss does not say how far to go; it has {extent}, too. "
                    "Give it those: symbayes.layout.weights(net).values()."
                )
            held = [names[id(parameter)] for parameter in group["params"] if id(parameter) in names]
            if held and group.get("weight_decay", 0) != 0:
                raise ValueError(
                    f"Weights must not decay in the optimiser, since their prior is added to the gradient; {held[0]} has "
                    f"weight_decay={group['weight_decay']}. Give the optimiser weight_decay=0."
                )

    def _find_penalties(self) -> None:
        size = self.problem.data.size
        self._penalties = {name: float(value) / size for name, value in self.prior.precisions().items()}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Take the precisions that there are."""
        self._find_penalties()

    @torch.no_grad()
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Add the gradient of −log p(W) per datum, for the weights that this optimiser moves."""
        moved = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, weight in weights(self.net).items():
            if weight.grad is not None and id(weight) in moved:
                weight.grad.add_(weight, alpha=self._penalties[name])

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Note the loss, if the batch was not skipped."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            # Lightning has divided it.
            self._losses.append(torch.as_tensor(loss).detach().float() * trainer.accumulate_grad_batches)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Take a hyper-step, if it is time, and log the record of the epoch.

        Raises:
            ValueError: If no batch of the epoch had a loss.
        """
        self._end_epoch(trainer, trainer.current_epoch + 1)
        pl_module.log_dict(scalars(self.history[-1]))

    def _end_epoch(self, trainer: Any, epoch: int) -> None:
        if not self._losses:
            raise ValueError(
                "training_step must return the loss of some batch in every epoch, also where it steps by hand; in epoch "
                f"{epoch} it returned None for all. Return the loss."
            )
        state, rate = self.state, float(trainer.optimizers[0].param_groups[0]["lr"])
        loss, self._losses, evidence = float(torch.stack(self._losses).mean()), [], None
        extents = all_extents(self.net)
        state.rate_share = self.trainer.rate_share(state, epoch)
        if self.trainer.moves_at(epoch):
            with without_autocast(), trusted(self.net):
                evidence, extents = self.trainer.settle(state, self.trainer.curvature(state), moves=True, last=False)
        state.epoch = epoch
        seconds = time.perf_counter() - self._started
        self.history.append(Record(epoch, trainer.max_epochs, seconds, rate, loss, extents, evidence))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Find the evidence of what was learned."""
        if not self.history:
            return
        with without_autocast(), trusted(self.net):
            self.history[-1] = replace(self.history[-1], evidence=self.trainer.conclude(self.state))
            make_posterior = self.trainer.finish(self.state)
        self.net.eval()
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
