"""Files that are written whole or not at all, and places that can be written to."""

import os
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes | str) -> None:
    """Write under another name first, so that who reads `path` never sees a part of it; its folder is made."""
    write_together({path: content})


def write_together(contents: Mapping[Path, bytes | str]) -> None:
    """Write several files, or none if there is no room for all: what was there is replaced when all of them are written."""
    real = {Path(os.path.realpath(path)): content for path, content in contents.items()}  # links stay, and lead to the new file
    # Not the number of a process: machines may share a folder.
    parts = {path: path.with_name(f".{path.name}.{uuid4().hex}") for path in real}
    try:
        for path, content in real.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            parts[path].write_bytes(content.encode() if isinstance(content, str) else content)
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)
