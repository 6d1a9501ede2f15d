"""A small image for tests of the node itself: the Python that runs the tests, with nothing but its standard library."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from cluster_node import archive

IMAGE = "localhost/kvferry-python:1"
PYTHON = str(Path(sys.executable).resolve())
"""The interpreter, at the same place in the image."""

_LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "ensurepip",
    "lib2to3",
    "__pycache__",
}
_STANDARD_LIBRARY = Path(os.__file__).parent
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LIBRARY = re.compile(r"(/\S+) \(0x")


def build(folder: Path) -> Path:
    """Write the archive into `folder`; its entry point is the interpreter."""
    image = folder / "python.tar"
    parts = (Path(PYTHON), _LOADER_CACHE, *_modules(), *_libraries())
    files = {str(path): path for path in parts if path.exists()}
    archive.write(image, IMAGE, files, [PYTHON])
    return image


def _modules() -> Iterator[Path]:
    for path in _STANDARD_LIBRARY.rglob("*"):
        if path.is_file() and path.suffix in {".py", ".so"} and not _LEFT_OUT.intersection(path.parts):
            yield path


def _libraries() -> Iterator[Path]:
    """What the interpreter and its extension modules are linked with, under the names by which the loader asks."""
    programs = [str(path) for path in (PYTHON, *_STANDARD_LIBRARY.glob("lib-dynload/*.so"))]
    listed = subprocess.run(["ldd", *programs], check=True, capture_output=True, text=True, timeout=300)
    yield from (Path(name) for name in sorted(set(_LIBRARY.findall(listed.stdout))))
