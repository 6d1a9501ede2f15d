"""What identifies a loaded model: what two engines must share so that one can go on where the other stopped.

Pipeline stages of one model have the same marks, however it is split.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvferry_runtime.engine.reference.model import KV_DTYPES, Model

_UNSTABLE_CONFIG_KEYS = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")
_PROMPT_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
"""All that decides which tokens a prompt has: KV of other tokens in equal number would be taken for the right one."""
_SAMPLE_BYTES = 4096
_SAMPLES = 16


def marks(model: Model, name: str, revision: str, threads: int) -> Mapping[str, str]:
    """What prefill and decode must share for equal answers, token for token."""
    config = {key: value for key, value in model.module.config.to_dict().items() if key not in _UNSTABLE_CONFIG_KEYS}
    return {
        "model.name": name,
        "model.revision": revision,
        "model.config": _short(json.dumps(config, sort_keys=True, default=str).encode()),
        "model.weights": _weights_digest(model.folder),
        "model.tokenizer": _files_digest(model.folder, _PROMPT_FILES),
        "engine": "reference",
        "engine.dtype": KV_DTYPES[model.dtype].value,
        "engine.device": model.device.type,
        "engine.threads": str(threads),
    }


def _weights_digest(folder: Path) -> str:
    """Over the size and samples of each weight file: cheap at any size, and other weights of one shape differ."""
    digest = hashlib.sha256()
    for file in sorted(folder.glob("*.safetensors")):
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with file.open("rb") as stream:
            for sample in range(_SAMPLES):
                stream.seek(size * sample // _SAMPLES)
                digest.update(stream.read(_SAMPLE_BYTES))
    return digest.hexdigest()[:32]


def _files_digest(folder: Path, names: Sequence[str]) -> str:
    """Over those of these small files that are there."""
    digest = hashlib.sha256()
    for name in names:
        if (file := folder / name).is_file():
            digest.update(f"{name}:{file.stat().st_size};".encode() + file.read_bytes())
    return digest.hexdigest()[:32]


def _short(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
