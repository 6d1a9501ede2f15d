"""The shared key of a model, by which its pods know each other."""

from __future__ import annotations

from pathlib import Path

from kvferry_contract import env
from kvferry_runtime.errors import SettingsError

MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 4096


def read(path: Path) -> bytes:
    """Read the key from its file.

    Raises:
        SettingsError: there is none, or one of a size that cannot be meant.
    """
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(
            f"cannot read the shared key {path}: {error.strerror}; mount the model's Secret there or set {env.KEY_FILE}"
        ) from error
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise SettingsError(
            f"the shared key {path} has {len(key)} bytes, {MIN_KEY_BYTES} to {MAX_KEY_BYTES} are allowed: "
            "make one with `openssl rand -hex 32`"
        )
    return key
