"""KV that codecs are measured on: of a real model, or made up with what makes real KV hard. bf16, keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.layout import KvDtype

BLOCK_TOKENS = 16
CHUNK_BYTES = 1 << 20
_TOTAL_BYTES = 64 << 20
_KEY_OUTLIERS, _KEY_OUTLIER_SIZE, _VALUE_SIZE = 29, 25.0, 0.3

Words = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class KvSample:
    """origin: for people. shape: of one chunk, in whole blocks. words: bf16 bits [chunks, rows, head_dim]."""

    origin: str
    shape: ChunkShape
    words: Words


def gaussian(total_bytes: int = _TOTAL_BYTES, seed: int = 0) -> KvSample:
    """Eight heads of 128, as in common 8B models: normal keys with every 29th channel 25 times as strong, and values
    less than a third as strong, in chunks of 1 MiB."""
    shape = _chunk_shape(heads=8, head_dim=128, most_tokens=total_bytes // (2 * 8 * 128 * KvDtype.BF16.itemsize))
    generator = np.random.default_rng(seed)
    channels = np.where(np.arange(shape.head_dim) % _KEY_OUTLIERS == 0, _KEY_OUTLIER_SIZE, 1.0).astype(np.float32)
    strengths = np.stack([channels, np.full_like(channels, _VALUE_SIZE)])[:, None]
    words = np.empty((max(1, total_bytes // shape.raw_bytes), 2, shape.rows // 2, shape.head_dim), np.uint16)
    for chunk in words:
        values = generator.standard_normal(chunk.shape, np.float32) * strengths
        chunk[:] = values.view(np.uint32) >> 16
    return KvSample("Gaussian, seed 0, outlier channels", shape, words.reshape(len(words), shape.rows, -1))


def of_model(folder: Path) -> KvSample:
    """KV of the model in `folder`, 64 MiB if it takes prompts of that length, after a prefill of the language reference
    that every Python carries.

    Raises:
        SettingsError: no causal language model, or one whose layers are not alike.
        ModelUnavailable: its weights cannot be read.
    """
    from pydoc_data import topics

    from kvferry_runtime.engine.reference import model as models
    from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
    from kvferry_runtime.engine.reference.runner import Runner
    from kvferry_runtime.engine.reference.text import Tokenizer

    model = models.load(folder, "cpu", "bf16")
    prompt = Tokenizer.load(folder).encode("\n".join(topics.topics[name] for name in sorted(topics.topics)))
    of_layer = model.layout.shapes[0]
    if set(model.layout.shapes) != {of_layer} or of_layer.parts != 2:
        raise SettingsError(f"{folder}: its layers are not alike, or have no keys and values apart: give another model")
    most = min(_TOTAL_BYTES // model.layout.bytes_per_token, model.max_positions, len(prompt))
    shape = _chunk_shape(of_layer.heads, of_layer.head_dim, most)
    prompt = prompt[: max(1, most // shape.tokens) * shape.tokens]
    kv, runner, start = RequestKv(model.layout, blocks_for(len(prompt)), model.dtype, model.device), Runner(model, 1), 0
    while start < len(prompt):
        start, _ = runner.prefill(kv, prompt, start, lambda _layer, _start, _stop: None)
    memory, chunks = kv.share(), []
    for layer in model.layout.layers:
        for first in range(0, len(prompt) - shape.tokens + 1, shape.tokens):
            parts = [memory.rows(layer, part, first, first + shape.tokens) for part in range(2)]
            chunks.append(np.concatenate([np.concatenate(rows) for rows in parts]).view(np.uint16))
    return KvSample(f"{folder.name}, {len(prompt)} tokens of text", shape, np.stack(chunks))


def _chunk_shape(heads: int, head_dim: int, most_tokens: int) -> ChunkShape:
    """One layer, as many whole blocks as fit in 1 MiB and in so many tokens; at least one."""
    block_bytes = ChunkShape(1, 2, BLOCK_TOKENS, heads, head_dim, KvDtype.BF16).raw_bytes
    blocks = max(1, min(CHUNK_BYTES // block_bytes, most_tokens // BLOCK_TOKENS))
    return ChunkShape(1, 2, blocks * BLOCK_TOKENS, heads, head_dim, KvDtype.BF16)
