"""Method `lossless` in torch: slow, obvious, and the oracle for every other implementation's bytes."""

from __future__ import annotations

import numpy as np
import torch

from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.lossless.format import GROUP, LARGEST_BASE, WINDOW, Lossless, Sections
from kvferry_runtime.layout import KvDtype


class ReferenceLossless(Lossless):
    """Takes the full groups as one matrix [groups, 256] and the shorter last one as another [1, values]."""

    def _split(self, rows: Rows, shape: ChunkShape, out: Payload, sections: Sections, room: int) -> int | None:
        words = torch.cat([torch.from_numpy(array.astype(np.int64)).flatten() for array in rows])
        if shape.dtype is KvDtype.FP32:
            out[: sections.signs] = (words & 0xFFFF).numpy().astype("<u2").view(np.uint8)
            words = words >> 16
        exponents = (words >> 7) & 0xFF
        out[sections.signs : sections.codes] = (((words >> 8) & 0x80) | (words & 0x7F)).numpy()
        codes, bases, counts, escapes = [], [], [], []
        for group in _groups(exponents):
            base = (group.amax(dim=1) - (WINDOW - 1)).clamp(min=0)
            is_escape = group < base[:, None]
            codes.append(_packed((group - base[:, None]) % WINDOW).flatten())
            bases.append(base)
            counts.append(is_escape.sum(dim=1))
            escapes.append(torch.stack([is_escape.nonzero()[:, 1], group[is_escape]], dim=1))
        found = torch.cat(escapes)
        if len(found) > room:
            return None
        behind = torch.cat([torch.cat(codes), torch.cat(bases), torch.cat(counts), found.flatten()])
        out[sections.codes : sections.codes + len(behind)] = behind.numpy()
        return len(found)

    def _join(self, payload: Payload, shape: ChunkShape, sections: Sections, escapes: int, rows: Rows) -> bool:
        content = torch.from_numpy(payload.astype(np.int64))
        bases = content[sections.bases : sections.counts]
        counts = content[sections.counts : sections.escapes]
        positions, replacements = content[sections.escapes :].reshape(escapes, 2).unbind(dim=1)
        values = shape.rows * shape.head_dim
        places = torch.arange(len(counts)).repeat_interleave(counts) * GROUP
        if counts.sum() != escapes or (bases > LARGEST_BASE).any() or (places + positions >= values).any():
            return False
        packed = content[sections.codes : sections.bases]
        full = values // GROUP
        codes = [_unpacked(packed[: full * GROUP // 2].reshape(full, GROUP // 2), GROUP).flatten()]
        codes.append(_unpacked(packed[full * GROUP // 2 :].reshape(1, -1), values % GROUP).flatten())
        exponents = bases.repeat_interleave(GROUP)[:values] + torch.cat(codes)
        exponents[places + positions] = replacements
        signs = content[sections.signs : sections.codes]
        words = ((signs & 0x80) << 8) | (exponents << 7) | (signs & 0x7F)
        if shape.dtype is KvDtype.FP32:
            words = (words << 16) | torch.from_numpy(payload[: sections.signs].copy().view("<u2").astype(np.int64))
        start = 0
        for array in rows:
            array[:] = words[start : start + array.size].numpy().reshape(array.shape)
            start += array.size
        return True


def _groups(values: torch.Tensor) -> list[torch.Tensor]:
    full = len(values) // GROUP * GROUP
    return [part for part in (values[:full].reshape(-1, GROUP), values[full:].reshape(1, -1)) if part.numel()]


def _packed(codes: torch.Tensor) -> torch.Tensor:
    """[groups, values] -> [groups, ceil(values / 2)]"""
    half = -(-codes.shape[1] // 2)
    high = torch.nn.functional.pad(codes[:, half:], (0, codes.shape[1] % 2))
    return codes[:, :half] | (high << 4)


def _unpacked(packed: torch.Tensor, size: int) -> torch.Tensor:
    """[groups, ceil(size / 2)] -> [groups, size]"""
    return torch.cat([packed & 0xF, packed >> 4], dim=1)[:, :size]
