"""Folders that a user names: made, and tried, before anything is started."""

from __future__ import annotations

import tempfile
from pathlib import Path

from kvferry_operator.errors import InputError


def make(option: str, folder: Path | None) -> None:
    """Make the folder that `option` names, if any, and see that a file can be written there.

    Raises:
        InputError: it cannot be made, or not be written to.
    """
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise InputError(f"{option} {folder}: cannot be written: {error.strerror}") from error
