"""Where figures come from: the commit of the code, the machine, the versions."""

import os
import platform
import subprocess
from pathlib import Path

import torch


def commit(package: Path = Path(__file__).parent) -> str:
    """Of the checkout the code lies in, with a note where files have changed since; empty where there is none."""

    def git(*words: str) -> str | None:
        try:
            said = subprocess.run(["git", *words], cwd=package, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return said.stdout.strip()

    found = git("rev-parse", "--short", "HEAD") if git("ls-files", "--error-unmatch", ".") is not None else None
    if found is None:
        return ""
    return f"{found}, with changes" if git("status", "--porcelain", "--untracked-files=no") else found


def machine(device: str) -> str:
    """What computes: the name of a graphics card, or the kind and number of cores."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{device}, {platform.machine()}, {os.cpu_count()} cores"
