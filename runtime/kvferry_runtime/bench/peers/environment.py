"""The peers' own Python environment: made once, in the user's cache, apart from ours."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from kvferry_runtime.errors import KvferryError

REQUIREMENTS = (
    "numpy>=2",
    "torch==2.13.0",  # NIXL imports it; the version that our own engines use
    "nixl-cu13==1.5.1",
    "mooncake-transfer-engine-non-cuda==0.3.13.post1",
)
INSTALL_SECONDS = 1800.0


def python(progress: Callable[[str], None]) -> Path:
    """The environment's interpreter; makes the environment if it is not there (5 GB, some minutes).

    Raises:
        KvferryError: it cannot be made; says what pip said.
    """
    folder = _cache() / f"peers-{_mark()}"
    interpreter = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.is_file():
        progress(f"installing {', '.join(REQUIREMENTS)} into {folder}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "venv", str(folder))
        _run(*_installer(interpreter), *REQUIREMENTS)
        complete.touch()
    return interpreter


def _installer(interpreter: Path) -> tuple[str, ...]:
    """uv where our own environment has it: it takes what it has downloaded before."""
    uv = Path(sys.executable).with_name("uv")
    if uv.is_file():
        return (str(uv), "pip", "install", "--quiet", "--python", str(interpreter))
    return (str(interpreter), "-m", "pip", "install", "--quiet")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "kvferry"


def _mark() -> str:
    """Another one for other requirements or another Python."""
    text = "\n".join((*REQUIREMENTS, sys.version))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def _run(*command: str) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)  # noqa: S603
    except subprocess.CalledProcessError as error:
        raise KvferryError(f"`{' '.join(command)}` failed:\n{error.stderr[-2000:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvferryError(f"`{' '.join(command)}` failed: {error}") from error
