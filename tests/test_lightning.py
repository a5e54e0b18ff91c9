"""Lightning trains the weights, and the callback the prior: the same numbers as a loop of torch."""

import sys
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import symbayes as sb
from symbayes.data.source import source_for
from symbayes.training.hyper import update_precisions

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    lightning = pytest.importorskip("lightning.pytorch")
    from symbayes.lightning import LearnPrior

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own, on loaders and workers
EPOCHS, RATE = 4, 0.2


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def make_data():
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 2, 2, generator=generator, dtype=torch.float64)
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


def train(tmp_path, callback, module, **more):
    usual = {"max_epochs": EPOCHS, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False}
    usual |= {"enable_checkpointing": False, "logger": False, "default_root_dir": tmp_path}
    trainer = lightning.Trainer(callbacks=[callback], **{**usual, **more})
    trainer.fit(module, DataLoader(TensorDataset(*make_data()), batch_size=20))
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


def test_without_lightning_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "symbayes.lightning")
    with pytest.raises(ImportError, match=r"pip install 'symbayes\[lightning\]'"):
        import symbayes.lightning  # noqa: F401
