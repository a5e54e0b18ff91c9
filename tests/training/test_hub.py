"""Results are pushed to the Hugging Face Hub and pulled from it, by a stand-in for its library that keeps files in a folder."""

import inspect
import json
import shutil
import sys
from fnmatch import fnmatch
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import symbayes as sb
from symbayes.training.held_out import held_out
from symbayes.training.hub import model_card
from symbayes.training.record import FILES, read_records
from tests.small import load_few

ADDRESS = "hf://owner/name"


class Hub(ModuleType):
    """What the library does, as far as it is used, and what it was called with."""

    def __init__(self, root):
        super().__init__("huggingface_hub")
        self.root, self.calls = root, []

    def HfApi(self):  # as the library calls it
        return SimpleNamespace(create_repo=self.create_repo, upload_folder=self.upload_folder)

    def create_repo(self, *args, **more):
        self.calls.append(("create_repo", args, more))

    def upload_folder(self, **more):
        self.calls.append(("upload_folder", (), more))
        target = self.root / more["repo_id"]
        target.mkdir(parents=True, exist_ok=True)
        for path in target.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in more["delete_patterns"]):
                path.unlink()
        for path in more["folder_path"].iterdir():
            if any(fnmatch(path.name, pattern) for pattern in more["allow_patterns"]):
                shutil.copy(path, target / path.name)

    def snapshot_download(self, *args, **more):
        self.calls.append(("snapshot_download", args, more))
        target = self.root / "cache"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for path in (self.root / args[0]).iterdir():
            if any(fnmatch(path.name, pattern) for pattern in more["allow_patterns"]):
                shutil.copy(path, target / path.name)
        return str(target)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    made = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", made)
    return made


@pytest.fixture(scope="module")
def task():
    return load_few("placed-digits")


@pytest.fixture(scope="module")
def result(task):
    model = sb.allconv(task, ("factored", "conv"), width=1, generator=torch.Generator().manual_seed(0))
    return sb.fit(model, task.train, epochs=2, objective=sb.Laplace(sb.Kfac()), progress=False)


def test_a_result_comes_back_from_the_hub_as_it_was(result, task, hub):
    worth = held_out(result, task.test)
    assert result.push_to_hub("owner/name", held_out=worth, private=True) == ADDRESS
    again = sb.load_result(ADDRESS)
    assert again.log_evidence == result.log_evidence
    assert again.history == result.history
    assert str(again.symmetries) == str(result.symmetries)
    inputs = task.test[0][:5]
    torch.testing.assert_close(again.predict(inputs).mean, result.predict(inputs).mean)
    assert hub.calls[0] == ("create_repo", ("owner/name",), {"private": True, "exist_ok": True})
    sb.load_result(f"{ADDRESS}@v1.0")
    assert hub.calls[-1][2]["revision"] == "v1.0"


def test_training_inputs_go_along_only_if_that_is_asked_for(result, hub):
    result.push_to_hub("owner/name")
    assert sb.load_result(ADDRESS).examples is None
    assert result.examples is not None
    result.push_to_hub("owner/name", examples=True)
    assert torch.equal(sb.load_result(ADDRESS).examples, result.examples)


def test_the_card_says_what_was_learned_how_sure_that_is_and_how_to_load_it(result, task, hub):
    result.push_to_hub("owner/name", held_out=held_out(result, task.test))
    card = (hub.root / "owner" / "name" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: symbayes\n")
    assert "Training has not converged" in card
    assert "block1" in card
    assert f'sb.load_result("{ADDRESS}")' in card
    assert f"{result.log_evidence / result.num_data:.3f}".replace("-", "−") in card
    assert "| accuracy | " in card


def test_a_network_that_files_do_not_tell_is_asked_for(task, hub):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(256, 10)

        def forward(self, inputs):
            return self.inner(inputs.flatten(1))

    made = sb.fit(Own(), task.train, epochs=1, objective=sb.Map(), progress=False)
    made.push_to_hub("owner/name")
    card = (hub.root / "owner" / "name" / "README.md").read_text()
    assert f'sb.load_result("{ADDRESS}", model=net)' in card
    assert "No layer had a choice." in card
    with pytest.raises(ValueError, match=r"Pass one of the same structure"):
        sb.load_result(ADDRESS)
    assert sb.load_result(ADDRESS, model=Own()).log_evidence == made.log_evidence


def test_what_is_downloaded_is_checked_and_nothing_else_is(result, hub):
    result.push_to_hub("owner/name")
    repo = hub.root / "owner" / "name"
    (repo / "weights.pkl").write_bytes(b"cposix\nsystem\n")
    sb.load_result(ADDRESS)
    assert sorted(path.name for path in (hub.root / "cache").iterdir()) == sorted([*FILES, "seal.json"])
    saved = json.loads((repo / "result.json").read_text())
    (repo / "result.json").write_text(json.dumps({**saved, "num_data": 7}))
    with pytest.raises(ValueError, match=r"is not the file that was saved with seal\.json"):
        sb.load_result(ADDRESS)
    (repo / "seal.json").unlink()
    with pytest.raises(ValueError, match=r"it has no seal\.json"):
        sb.load_result(ADDRESS)


def test_files_of_an_earlier_result_do_not_stay(result, hub):
    result.push_to_hub("owner/name")
    without = sb.Result(result.model, result.likelihood, result.prior, result.history, result.num_data, result.examples)
    without.push_to_hub("owner/name")
    assert not (hub.root / "owner" / "name" / "posterior.safetensors").exists()
    assert sb.load_result(ADDRESS).make_posterior is None


@pytest.mark.parametrize("address", ["hf://name", "hf://a/b/c", "hf://../x", "hf://", "hf://a/b@", "hf://a/b@x y"])
def test_addresses_that_are_none_are_refused(address, hub):
    with pytest.raises(ValueError, match="An address on the Hub must be hf://owner/name"):
        sb.load_result(address)
    assert hub.calls == []


def test_without_the_library_it_is_asked_for(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (lambda: result.push_to_hub("owner/name"), lambda: sb.load_result(ADDRESS)):
        with pytest.raises(ImportError, match=r"pip install 'symbayes\[hub\]'"):
            call()


def test_the_library_takes_what_it_is_called_with(result, hub, monkeypatch):
    result.push_to_hub("owner/name")
    sb.load_result(ADDRESS)
    monkeypatch.delitem(sys.modules, "huggingface_hub")
    library = pytest.importorskip("huggingface_hub")
    for name, args, more in hub.calls:
        if name == "snapshot_download":
            inspect.signature(library.snapshot_download).bind(*args, **more)
        else:
            inspect.signature(getattr(library.HfApi, name)).bind(None, *args, **more)


def test_words_of_users_are_shown_as_they_are(result, hub):
    folder = hub.root / "owner" / "name"
    result.push_to_hub("owner/name")
    summary, history = read_records(folder)
    odd = summary.__class__(**{**vars(summary), "model": summary.model.__class__(None, "[x](http://y) <script>")})
    assert "\n\\[x\\](http://y) \\<script\\>.\n" in model_card(odd, history, ADDRESS)


@pytest.mark.parametrize("repo", ["name", "hf://owner/name", "a/b/c", "../x", "owner/name@main"])
def test_a_repository_is_checked_before_anything_is_computed(result, hub, repo, monkeypatch):
    monkeypatch.setattr(type(result), "save", lambda *_: pytest.fail("it was saved"))
    with pytest.raises(ValueError, match="must be 'owner/name'"):
        result.push_to_hub(repo)


def test_which_class_is_taken_for_which_is_counted_where_there_are_few(task, result):
    found = held_out(result, task.test)
    taken = result.predict(task.test[0]).classes()
    assert found.confusion[3][5] == int(((task.test[1] == 3) & (taken == 5)).sum())
    assert found.metrics == pytest.approx(result.evaluate(task.test, by="plug-in"), abs=1e-6)
    assert sum(map(sum, found.confusion)) == found.num_data == len(task.test[1])
    many = nn.Sequential(nn.Flatten(), nn.Linear(task.test[0][0].numel(), 21))
    assert held_out(sb.fit(many, task.train, epochs=1, progress=False), task.test).confusion == ()
