"""Sparse methods in torch: slow, obvious, and the oracle for every other implementation's choice and bytes.

Scores differ between implementations in the last bits of fp32, as sums have another order. The choice made of given
scores, and the payload, do not.
"""

from __future__ import annotations

import torch

_ALIGNMENT = 8


def key_scores(keys: torch.Tensor) -> torch.Tensor:
    """[tokens] fp32 of keys [tokens, heads, head_dim] of any float dtype: see `host_scores.from_keys`."""
    values = keys.double().nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    # scaled by the largest value first: squares of what is tiny are no number
    largest = values.abs().amax(dim=2, keepdim=True)
    unit = _divided(values, largest)
    unit = _divided(unit, unit.square().sum(dim=2, keepdim=True).sqrt())
    mean = unit.mean(dim=0)
    mean = _divided(mean, mean.square().sum(dim=1, keepdim=True).sqrt())
    return -(unit * mean).sum(dim=2).mean(dim=1).float()


def selected(scores: torch.Tensor, keep: int, first: int, last: int) -> torch.Tensor:
    """bool [tokens]: see `selection.select`."""
    tokens = len(scores)
    mask = torch.zeros(tokens, dtype=torch.bool)
    mask[:first] = True
    mask[max(0, tokens - last) :] = True
    others = [token for token in range(tokens) if not mask[token]]
    worth = [(bool(scores[token].isnan()), -float(scores[token].nan_to_num()), token) for token in others]
    for _, _, token in sorted(worth)[: max(0, keep - tokens + len(others))]:
        mask[token] = True
    return mask


def packed(rows: torch.Tensor, mask: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
    """uint8 [n], the payload of a chunk: see `payload`.

    rows: uint8 [layers, parts, tokens, heads, bytes of a row]. mask: bool [layers, tokens]. before: int64 [layers].
    """
    layers, tokens = mask.shape
    header = [int(count) >> shift & 0xFF for count in before for shift in (0, 8, 16, 24)]
    for layer in range(layers):
        for start in range(0, tokens, 8):
            header.append(sum(1 << place for place, kept in enumerate(mask[layer, start : start + 8]) if kept))
    header += [0] * (-len(header) % _ALIGNMENT)
    kept_rows = [rows[layer][:, mask[layer]].reshape(-1) for layer in range(layers)]
    return torch.cat([torch.tensor(header, dtype=torch.uint8), *kept_rows])


def unpacked(payload: torch.Tensor, parts: int, mask: torch.Tensor, heads: int, row_bytes: int) -> list[torch.Tensor]:
    """Of each layer the kept rows, uint8 [parts, kept tokens, heads, row_bytes]. payload, mask: as of `packed`."""
    layers, tokens = mask.shape
    used = layers * (4 + -(-tokens // 8))
    rest = payload[used + -used % _ALIGNMENT :]
    sizes = [parts * int(kept.sum()) * heads * row_bytes for kept in mask]
    return [piece.reshape(parts, -1, heads, row_bytes) for piece in rest.split(sizes)]


def _divided(values: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    """Zeros stay zeros."""
    return values / torch.where(by > 0, by, torch.ones_like(by))
