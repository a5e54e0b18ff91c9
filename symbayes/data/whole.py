"""Files that are written whole or not at all."""

import os
from pathlib import Path
from uuid import uuid4


def write_whole(path: Path, content: bytes | str) -> None:
    """Write under another name first, so that who reads `path` never sees a part of it; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid4().hex}")  # not the number of a process: machines may share a folder
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
