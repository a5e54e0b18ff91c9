"""Lightning trains the weights, and the callback the prior: the same numbers as a loop of torch."""

import signal
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.source import source_for
from symbayes.layout import weights
from symbayes.training.hyper import update_precisions
from symbayes.training.scale import ScaleSearch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from symbayes.lightning import LearnPrior

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, on loaders and workers
EPOCHS, RATE = 4, 0.2


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def make_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 1, 2, 2, generator=generator, dtype=torch.float64)
    return inputs, (inputs.flatten(1)[:, :3]).argmax(1)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = make_net()

    def training_step(self, batch, index):
        inputs, targets = batch
        return functional.cross_entropy(self.net(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=RATE)


class Watched(Module):
    def validation_step(self, batch, index):
        pass


class Averaged(lightning.LightningModule):
    """Values with noise, from images under rotations, by a layer with paths: noise and an extent are learned, too."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        plain = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)).double()
        self.net = sb.OrbitAverage(sb.relax(plain, make_data()[0][:4]), sb.affine2d("rotation"), samples=2).double()
        self.likelihood = sb.Gaussian(0.5).double()

    def training_step(self, batch, index):
        inputs, targets = batch
        return -self.likelihood.log_prob(self.net(inputs), functional.one_hot(targets, 3).double()).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(weights(self.net).values(), lr=0.05)


def train(tmp_path, callback, module, *, ckpt_path=None, validates=False, keep=None, **more):
    """By Lightning; `keep` are settings of checkpoints, all of which are left in a folder."""
    usual = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    usual |= {"logger": False, "default_root_dir": tmp_path}
    usual |= {"num_sanity_val_steps": 0}
    callbacks = [callback] if keep is None else [callback, ModelCheckpoint(tmp_path / "kept", save_top_k=-1, **keep)]
    usual["enable_checkpointing"] = keep is not None
    trainer = lightning.Trainer(callbacks=callbacks, **{**usual, **more})
    loader = DataLoader(TensorDataset(*make_data()), batch_size=20)
    trainer.fit(module, loader, loader if validates else None, ckpt_path=ckpt_path)
    return trainer


def looped(objective):
    """The same in a loop of torch, with the whole objective differentiated at once."""
    net, (inputs, targets), likelihood = make_net(), make_data(), sb.Categorical()
    prior, steps = sb.TensorwisePrior(net), torch.optim.SGD(net.parameters(), lr=RATE)
    for epoch in range(1, EPOCHS + 1):
        for batch in torch.arange(40).split(20):
            steps.zero_grad()
            loss = -likelihood.log_prob(net(inputs[batch]), targets[batch]).mean()
            (loss - prior.log_prob(dict(net.named_parameters())) / 40).backward()
            steps.step()
        if objective.moves_at(epoch, EPOCHS):
            with torch.no_grad():
                update_precisions(
                    sb.Kfac().curvature(net, source_for(net, (inputs, targets)), likelihood), net, prior, objective.damping
                )
    return net, prior, sb.laplace_evidence(net, (inputs, targets), likelihood, prior)


@pytest.mark.parametrize("given", [True, False])
def test_lightning_learns_what_a_loop_learns(given, tmp_path):
    module = Module()
    callback = LearnPrior(module.net, make_data() if given else None, objective=sb.Laplace(sb.Kfac()))
    trainer = train(tmp_path, callback, module)
    net, prior, evidence = looped(callback.objective)
    for name, weight in net.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), weight, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(callback.prior.log_precision, prior.log_precision, rtol=1e-8, atol=1e-8)
    assert not torch.equal(prior.log_precision, torch.zeros_like(prior.log_precision))
    result = callback.result
    assert result.log_evidence == pytest.approx(float(evidence.total), rel=1e-8)
    assert len(result.history) == EPOCHS
    assert trainer.callback_metrics["evidence/total"] == pytest.approx(result.log_evidence, rel=1e-5)


def test_the_result_is_one_like_others(tmp_path):
    module = Module()
    callback = LearnPrior(module.net)
    with pytest.raises(RuntimeError, match="There is a result when training has ended"):
        _ = callback.result
    train(tmp_path, callback, module)
    result = callback.result
    assert not any(part.training for part in result.model.modules())
    result.save(tmp_path / "run")
    again = sb.load_result(tmp_path / "run")
    inputs, targets = make_data()
    torch.testing.assert_close(again.predict(inputs).mean, result.predict(inputs).mean)
    assert result.evaluate((inputs, targets))["accuracy"] > 0.3
    assert not result.converged


def test_what_cannot_work_is_refused(tmp_path):
    module = Module()
    with pytest.raises(ValueError, match="The net must be that of the module"):
        train(tmp_path, LearnPrior(make_net()), module)
    with pytest.raises(ValueError, match=r"Say it: Trainer\(max_epochs=...\)"):
        train(tmp_path, LearnPrior(module.net), module, max_epochs=-1, max_steps=3)


def assert_same(callback, other):
    for name, value in callback.net.state_dict().items():
        assert torch.equal(value, other.net.state_dict()[name]), name
    for part, own in (("prior", callback.prior), ("likelihood", callback.likelihood)):
        for name, value in own.state_dict().items():
            assert torch.equal(value, getattr(other, part).state_dict()[name]), name
    assert [replace(record, seconds=0.0) for record in callback.history] == [replace(r, seconds=0.0) for r in other.history]
    seconds = [record.seconds for record in other.history]
    assert seconds == sorted(seconds)


#: Checkpoints after an epoch; before its end, with validation; and after its last batch, where Lightning leaves the end out.
KEPT = {"epoch": (Module, {}), "validation": (Watched, {"save_on_train_epoch_end": False})}
KEPT |= {"batch": (Module, {"every_n_train_steps": 2})}


@pytest.mark.parametrize("when", KEPT)
def test_resumed_training_gives_the_same_numbers(when, tmp_path):
    make, keep = KEPT[when]
    module = make()
    whole = LearnPrior(module.net)  # by a rule that samples
    train(tmp_path, whole, module, keep=keep, validates=make is Watched)
    first = min((tmp_path / "kept").iterdir())
    assert first.name == "epoch=0-step=2.ckpt"  # of four epochs with two steps each
    module = make()
    resumed = LearnPrior(module.net, seed=5)
    train(tmp_path, resumed, module, ckpt_path=first, validates=make is Watched)
    assert_same(whole, resumed)
    assert resumed.result.log_evidence == whole.result.log_evidence


def test_resumed_training_keeps_noise_extents_paths_and_the_best(tmp_path):
    objective = sb.Laplace(sb.Kfac(), extent_share=0.5, keep_best=True, symmetric_start=True)

    def fit(**more):
        module = Averaged()
        data = make_data()[0], functional.one_hot(make_data()[1], 3).double()
        callback = LearnPrior(module.net, data, likelihood=module.likelihood, objective=objective)
        train(tmp_path, callback, module, **more)
        return callback

    whole = fit(keep={})
    resumed = fit(ckpt_path=sorted((tmp_path / "kept").iterdir())[1])
    assert_same(whole, resumed)
    assert float(whole.likelihood.noise()) != pytest.approx(0.5)
    assert len({tuple(record.extents.values()) for record in whole.history}) > 2


def test_a_checkpoint_of_the_end_gives_no_result(tmp_path):
    module = Module()
    train(tmp_path, LearnPrior(module.net), module, keep={})
    again = LearnPrior(module.net)
    train(tmp_path, again, module, ckpt_path=max((tmp_path / "kept").iterdir()))
    with pytest.raises(RuntimeError, match="the checkpoint left no epoch to train"):
        _ = again.result


def test_precisions_that_were_not_kept_are_asked_for(tmp_path):
    train(tmp_path, lightning.Callback(), Module(), keep={})
    module = Module()
    with pytest.raises(ValueError, match="To go on after 1 epochs, precisions must be those of that training"):
        train(tmp_path, LearnPrior(module.net), module, ckpt_path=min((tmp_path / "kept").iterdir()))


def test_objectives_that_are_not_driven_are_refused():
    with pytest.raises(ValueError, match=r"The objective must be Laplace, .* got Elbo"):
        LearnPrior(make_net(), objective=sb.Elbo())
    with pytest.raises(ValueError, match=r"The objective must not search, .* got search=ScaleSearch"):
        LearnPrior(make_net(), objective=sb.Laplace(search=ScaleSearch()))


def test_the_loss_is_whole_where_gradients_are_accumulated(tmp_path):
    module = Module()
    module.configure_optimizers = lambda: torch.optim.SGD(module.net.parameters(), lr=0.0)
    callback = LearnPrior(module.net)
    train(tmp_path, callback, module, max_epochs=1, accumulate_grad_batches=2)
    inputs, targets = make_data()
    expected = float(functional.cross_entropy(make_net()(inputs), targets))
    assert callback.history[0].loss == pytest.approx(expected, rel=1e-6)


class ByHand(Module):
    """Two optimisers, for a layer each."""

    returns = True

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, index):
        inputs, targets = batch
        loss = functional.cross_entropy(self.net(inputs), targets)
        for optimiser in self.optimizers():
            optimiser.zero_grad()
        self.manual_backward(loss)
        for optimiser in self.optimizers():
            optimiser.step()
        return loss if self.returns else None

    def configure_optimizers(self):
        return [torch.optim.SGD(self.net[index].parameters(), lr=RATE) for index in (1, 3)]


def test_several_optimisers_add_the_prior_once(tmp_path):
    module = ByHand()
    callback = LearnPrior(module.net, objective=sb.Laplace(sb.Kfac()))
    train(tmp_path, callback, module)
    net, prior, _ = looped(callback.objective)
    for name, weight in net.named_parameters():
        torch.testing.assert_close(module.net.get_parameter(name), weight, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(callback.prior.log_precision, prior.log_precision, rtol=1e-8, atol=1e-8)


def test_batches_may_be_skipped_but_not_all(tmp_path):
    module = Module()
    step = module.training_step
    module.training_step = lambda batch, batch_idx: step(batch, batch_idx) if batch_idx else None
    callback = LearnPrior(module.net)
    train(tmp_path, callback, module)
    assert len(callback.result.history) == EPOCHS
    module = ByHand()
    module.returns = False
    with pytest.raises(ValueError, match=r"training_step must return the loss of some batch .* in epoch 1 it returned None"):
        train(tmp_path, LearnPrior(module.net), module)


def test_weight_decay_is_refused(tmp_path):
    module = Module()
    module.configure_optimizers = lambda: torch.optim.AdamW(module.net.parameters())
    with pytest.raises(ValueError, match=r"Weights must not decay .* 1\.weight has weight_decay=0\.01"):
        train(tmp_path, LearnPrior(module.net), module)
    module.head = nn.Linear(2, 2)  # beside the net
    groups = [{"params": module.net.parameters()}, {"params": module.head.parameters(), "weight_decay": 0.1}]
    module.configure_optimizers = lambda: torch.optim.SGD(groups, lr=RATE)
    train(tmp_path, LearnPrior(module.net), module)


def test_extents_are_not_trained_by_the_loss(tmp_path):
    module = Averaged()
    module.configure_optimizers = lambda: torch.optim.SGD(module.net.parameters(), lr=0.05)
    with pytest.raises(ValueError, match=r"The optimiser must be of weights alone, .* it has orbit\.value, too"):
        train(tmp_path, LearnPrior(module.net, likelihood=module.likelihood), module)


@pytest.mark.parametrize(("error", "raised"), [(RuntimeError("no room"), RuntimeError), (KeyboardInterrupt(), SystemExit)])
def test_without_a_result_it_is_said_why(error, raised, tmp_path):
    module = Module()
    step = module.training_step

    def fail(batch, batch_idx):
        if module.current_epoch == 2:
            raise error
        return step(batch, batch_idx)

    module.training_step = fail
    callback = LearnPrior(module.net)
    handler = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(raised):
            train(tmp_path, callback, module)
    finally:
        signal.signal(signal.SIGINT, handler)  # which Lightning turns off
    with pytest.raises(RuntimeError, match="it was stopped after 2 whole epochs by") as said:
        _ = callback.result
    assert repr(error) in str(said.value)


def test_without_lightning_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "symbayes.lightning")
    with pytest.raises(ImportError, match=r"pip install 'symbayes\[lightning\]'"):
        import symbayes.lightning  # noqa: F401
