"""The run's own versions of transformers, peft, trl and accelerate, installed into a cached folder for the probe's child process.

Only these four names are ever installed, only at a version that looks like one, only when the caller agrees, as wheels, beside and never
into the user's environment. torch stays as it is: 71 public runs of torch 2.4 were met with torch 2.13's own autograd.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

PACKAGES = ("transformers", "peft", "trl", "accelerate")
WITH_DEPENDENCIES = frozenset({"transformers"})  # tokenizers and huggingface_hub follow it; the others would bring another torch
VERSION = re.compile(r"\d+(\.\d+){1,3}((a|b|rc|\.dev|\.post)\d+)?")
INSTALL_SECONDS = 300


def wanted(written: Mapping[str, str] | None) -> dict[str, str]:
    """The versions to have that are not the installed ones."""
    found = {name: str(written[name]) for name in PACKAGES if written and name in written}
    return {name: version for name, version in found.items() if VERSION.fullmatch(version) and version != installed(name)}


def installed(name: str) -> str | None:
    """The version in this environment."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def cached(packages: Mapping[str, str]) -> Path | None:
    """The folder that has these versions already."""
    folder = _folder(packages)
    return folder if (folder / ".complete").is_file() else None


def install(packages: Mapping[str, str], say: Callable[[str], None] = lambda _: None) -> tuple[Path | None, str | None]:
    """A folder with these versions, and why there is none where it could not be made (offline, no such version)."""
    folder = cached(packages)
    if folder is not None:
        return folder, None
    target = _folder(packages)
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        for name in (n for n in PACKAGES if n in packages):
            say(f"installing {name} {packages[name]} beside your environment")
            alone = [] if name in WITH_DEPENDENCIES else ["--no-deps"]
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--only-binary=:all:"]
            done = subprocess.run(  # noqa: S603  four known names, checked versions
                [*command, *alone, "--target", str(making), f"{name}=={packages[name]}"], capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
            )
            if done.returncode:
                return None, _reason(name, packages[name], done.stderr)
        (making / ".complete").touch()
        making.rename(target)
    except subprocess.TimeoutExpired:
        return None, f"installing took longer than {INSTALL_SECONDS} s"
    except OSError as error:
        found = cached(packages)  # another process was first
        return found, None if found else f"the cache folder can not be written: {error.strerror}"
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return target, None


def _reason(name: str, version: str, printed: str) -> str:
    errors = [line.removeprefix("ERROR: ") for line in printed.splitlines() if line.startswith("ERROR: ")]
    return f"pip could not install {name} {version} ({errors[-1][:160]})" if errors else f"pip could not install {name} {version}"


def _folder(packages: Mapping[str, str]) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "training-memory-advisor" / "versions"
    text = "_".join(f"{name}-{packages[name]}" for name in sorted(packages)) + f"_py{sys.version_info.major}{sys.version_info.minor}"
    return root / (text if len(text) < 120 else hashlib.sha256(text.encode()).hexdigest()[:32])
