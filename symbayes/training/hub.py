"""Results on the Hugging Face Hub: the files of a folder, and a card that says what was learned, and how sure that is."""

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from symbayes.data.folders import SEAL
from symbayes.processes import all_processes
from symbayes.text import number, significant
from symbayes.training.convergence import judge
from symbayes.training.record import FILES, Record, Summary
from symbayes.training.symmetries import headline, symmetry_words

#: What addresses begin with, and how they go on: an owner, a name and perhaps a revision.
_SCHEME = "hf://"
_ADDRESS = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?", re.ASCII)
CARD = "README.md"


def is_on_hub(place: str | Path) -> bool:
    """Whether a place is an address of the Hub, rather than a folder."""
    return isinstance(place, str) and place.startswith(_SCHEME)


def fetch(address: str) -> Path:
    """The folder to which the files of a result were downloaded, and nothing else of its repository.

    Raises:
        ValueError: If that is no address.
        ImportError: If the package huggingface_hub is not there.
    """
    found = _ADDRESS.fullmatch(address.removeprefix(_SCHEME))
    if found is None:
        raise ValueError(f"An address on the Hub must be hf://owner/name, or hf://owner/name@revision; got {address!r}.")
    repo, revision = found.groups()
    return Path(_library().snapshot_download(repo, revision=revision, allow_patterns=[*FILES, SEAL]))


def check_repo(repo: str) -> None:
    """Refuse what cannot be uploaded to, before anything is computed.

    Raises:
        ValueError: If that is no name of a repository.
        ImportError: If the package huggingface_hub is not there.
    """
    found = _ADDRESS.fullmatch(repo)
    if found is None or found[2] is not None:
        raise ValueError(f"A repository of the Hub must be 'owner/name'; got {repo!r}.")
    _library()


def push_folder(folder: Path, repo: str, summary: Summary, history: Sequence[Record], private: bool | None) -> str:
    """Upload the files of a result in one commit, with a card; files of an earlier one that are not among them are removed.

    Returns:
        The address that `fetch` takes.
    """
    address = f"{_SCHEME}{repo}"
    library = _library()
    if not all_processes().is_first:
        return address
    (folder / CARD).write_text(model_card(summary, history, address), encoding="utf-8")
    api = library.HfApi()
    api.create_repo(repo, private=private, exist_ok=True)
    files = [*FILES, SEAL, CARD]
    api.upload_folder(
        repo_id=repo,
        folder_path=folder,
        commit_message="Save a result of symbayes",
        allow_patterns=files,
        delete_patterns=list(FILES),
    )
    return address


def model_card(summary: Summary, history: Sequence[Record], address: str) -> str:
    """A card in Markdown, from what was saved."""
    rows, evidence, size = summary.symmetries, summary.evidence, summary.num_data
    converged = judge(history, size, is_partial=summary.is_partial, floor=summary.floor)
    learned = [f"- {_plain(sentence)}" for sentence in symmetry_words(rows, evidence.effective)]
    learned += [f"- {_plain(one.name)}: {significant(one.value)} {one.unit}".rstrip() for one in summary.extents]
    error = "" if evidence.standard_error is None else f" ± {number(evidence.standard_error / size, 3)}"
    worth = summary.held_out
    metrics = (
        [] if worth is None else [f"| {_plain(name)} | {significant(value, 4)} |" for name, value in worth.metrics.items()]
    )
    given = "" if summary.model.recipe or summary.model.layers else ", model=net"
    needs = "`net` is a network of the same structure, which files alone do not tell." if given else ""
    lines = [
        "---\nlibrary_name: symbayes\ntags:\n- symbayes\n- equivariance\n- bayesian\n---",
        f"# {_plain(address.rpartition('/')[2])}",
        f"{_plain(summary.model.description[:1].upper() + summary.model.description[1:])}.",
        f"{_plain(headline(rows))}" if converged else "",
        "" if converged else f"**{_plain(str(converged))}** What follows is how far it came, not what the data say.",
        "## What was learned",
        "\n".join(learned) or "No layer had a choice.",
        "## How sure it is",
        f"Log evidence {number(evidence.total / size, 3)}{error} per datum, by {_plain(evidence.estimator)}, on "
        f"{number(size)} data; {number(sum(evidence.effective.values()), 1)} effective parameters. {len(history)} epochs; "
        f"likelihood {summary.likelihood.kind}, prior {summary.prior}.",
        "" if worth is None else f"On {number(worth.num_data)} data that were held out, by {worth.by}:",
        "\n".join(["| | |", "|---|---|", *metrics]) if metrics else "",
        "## How to load it",
        f'```python\nimport symbayes as sb\n\nresult = sb.load_result("{address}"{given})\nresult.predict(inputs)\n```',
        needs,
    ]
    return "\n\n".join(filter(None, lines)) + "\n"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text.replace("\n", " "))


def _library() -> ModuleType:
    try:
        return import_module("huggingface_hub")
    except ImportError as error:
        raise ImportError(
            "For the Hugging Face Hub, the package huggingface_hub must be installed; it is not. Install it: pip install "
            "'symbayes[hub]'."
        ) from error
