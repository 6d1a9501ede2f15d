"""From a model's URI to a folder on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath

from kvferry_contract.config import ModelConfig
from kvferry_runtime.errors import ModelUnavailable, SettingsError

WANTED_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
"""What is fetched of a repository: weights as safetensors only, never pickles."""


def resolve(model: ModelConfig) -> Path:
    """The folder of `model`, checked to hold a model.

    file:///path is that folder. pvc://claim/path is `path` under `model.directory`, where the claim is mounted.
    hf://organisation/name is fetched into `model.directory` (token from the environment, HF_TOKEN).

    Raises:
        SettingsError: no such scheme, no such folder, or a folder without a model.
        ModelUnavailable: the hub could not be reached, or does not give the model.
    """
    scheme, separator, rest = model.uri.partition("://")
    if not separator or not rest:
        raise SettingsError(
            f"model uri {model.uri!r}: expected file:///path, pvc://claim/path or hf://organisation/name"
        )
    if scheme == "file":
        folder = Path(rest)
    elif scheme == "pvc":
        folder = _below(Path(model.directory), rest.partition("/")[2], model.uri)
    elif scheme == "hf":
        folder = _fetch(rest, model)
    else:
        raise SettingsError(f"model uri {model.uri!r}: scheme {scheme!r} is not file, pvc or hf")
    return checked(folder, model.uri)


def _below(root: Path, path: str, uri: str) -> Path:
    if ".." in PurePosixPath(path).parts:
        raise SettingsError(f"model uri {uri!r}: the path may not leave the claim")
    return root / path


def _fetch(repository: str, model: ModelConfig) -> Path:
    if repository.count("/") != 1:
        raise SettingsError(f"model uri {model.uri!r}: expected hf://organisation/name")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(
            snapshot_download(
                repository,
                revision=model.revision or None,
                cache_dir=Path(model.directory, "huggingface"),
                allow_patterns=WANTED_FILES,
                token=os.environ.get("HF_TOKEN") or None,
            )
        )
    except HFValidationError as error:
        raise SettingsError(f"model uri {model.uri!r}: {error}") from error
    except Exception as error:  # also what the HTTP client raises in mid-download, which is no OSError
        raise ModelUnavailable(
            f"{model.uri} could not be fetched into {model.directory} ({_reason(error)}): check the name, the network, "
            "and the token (spec.model.tokenSecretRef) if the model is not public; "
            "in local mode, --set-model PATH serves a folder instead"
        ) from error


def _reason(error: Exception) -> str:
    """What went wrong, in one line: the hub's own words about its cache hide what they were caused by."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def checked(folder: Path, uri: str) -> Path:
    """The same folder. uri: by which the model was asked for, for the message.

    Raises:
        SettingsError: it is not there, or holds no model; the message names what is missing.
    """
    if not folder.is_dir():
        raise SettingsError(f"model {uri}: there is no folder {folder}")
    missing = [name for name in ("config.json", "tokenizer.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise SettingsError(f"model {uri}: {folder} is no Hugging Face model folder, it has no {', no '.join(missing)}")
    return folder
