"""The payload of a sparse chunk, wire ids 6 (`sparse50`) and 7 (`sparse75`); both have the same format.

A chunk is a range of the prompt's true tokens, as for every method, and its payload says which of them are kept.
Little-endian, L layers, T tokens, H heads, D values a row:

======================  ============================================================================================
offset                  content
======================  ============================================================================================
0                       u32 [L]: tokens that this layer keeps before the chunk's first one
4 L                     u8 [L][ceil(T / 8)]: bit i % 8 of byte i // 8 is 1 if token i of the range is kept; the bits
                        beyond T are 0
next multiple of 8      kept rows [layer][part][kept token][head][D], as they are in memory
======================  ============================================================================================

The bytes before the rows are 0 where nothing else is said. Kept rows are exact, so a payload may be larger than the
chunk's raw bytes by what stands before them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvferry_runtime.codec.base import ChunkShape, Payload, Rows
from kvferry_runtime.codec.rows import check_payload, check_rows, check_writeable, element_dtype
from kvferry_runtime.errors import CorruptPayload, LayoutError

_BEFORE = np.dtype("<u4")
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Of one chunk. mask: [layers, tokens]. before: [layers], tokens that the layer keeps before the chunk."""

    mask: npt.NDArray[np.bool_]
    before: npt.NDArray[np.int64]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """[layers]: tokens that each layer keeps within the chunk."""
        counts: npt.NDArray[np.int64] = np.count_nonzero(self.mask, axis=1)
        return counts


def largest_raw_bytes(chunk_bytes: int, bytes_per_token: int) -> int:
    """Raw bytes that a chunk may have so that its payload fits into `chunk_bytes`, whatever is kept of it.

    bytes_per_token: of one layer, the smallest if they differ. At worst each token of the chunk is a layer of its own.
    """
    return (chunk_bytes - _ALIGNMENT) * bytes_per_token // (bytes_per_token + _BEFORE.itemsize + 1)


def least_chunk_bytes(raw_bytes: int, bytes_per_token: int) -> int:
    """The smallest chunk of which `largest_raw_bytes` are at least `raw_bytes`."""
    return _ALIGNMENT + -(-raw_bytes * (bytes_per_token + _BEFORE.itemsize + 1) // bytes_per_token)


def rows_offset(shape: ChunkShape) -> int:
    """Bytes of a payload before its rows."""
    used = shape.layers * (_BEFORE.itemsize + -(-shape.tokens // 8))
    return -(-used // _ALIGNMENT) * _ALIGNMENT


def token_bytes(shape: ChunkShape) -> int:
    """Of one token of one layer."""
    return shape.parts * shape.heads * shape.head_dim * shape.dtype.itemsize


def longest_payload(shape: ChunkShape) -> int:
    """Bytes of a payload that keeps every token."""
    return rows_offset(shape) + shape.raw_bytes


def pack(rows: Rows, shape: ChunkShape, kept: KeptTokens, out: Payload) -> int:
    """Write the payload to the front of `out` and return its length in bytes. rows: all of the chunk's.

    Raises:
        LayoutError: the arrays are no rows of `shape`, one of them begins within a token, `kept` is not of this
            shape, or `out` is too small.
    """
    check_rows(rows, shape)
    if kept.mask.shape != (shape.layers, shape.tokens) or kept.before.shape != (shape.layers,):
        raise LayoutError(f"kept tokens of {kept.mask.shape} for a chunk of {shape}")
    start = rows_offset(shape)
    length = start + int(kept.counts.sum()) * token_bytes(shape)
    check_payload(out, length)
    before, bitmap = _header(out, shape)
    out[:start] = 0
    before[:] = kept.before
    bitmap[:] = np.packbits(kept.mask, axis=1, bitorder="little")
    _gather(rows, shape, kept.mask, out[start:length].view(element_dtype(shape.dtype)))
    return length


def read_kept(payload: Payload, shape: ChunkShape) -> KeptTokens:
    """Which tokens `payload` holds. Nothing of it is trusted before this returns.

    Raises:
        CorruptPayload: the length does not fit to what is kept, or a bit that must be 0 is 1.
    """
    check_payload(payload, 0)
    start = rows_offset(shape)
    if payload.size < start:
        raise CorruptPayload(f"sparse: {shape} needs {start} bytes before its rows, the payload has {payload.size}")
    before, bitmap = _header(payload, shape)
    bits = np.unpackbits(bitmap, axis=1, bitorder="little")
    if bits[:, shape.tokens :].any() or payload[before.nbytes + bitmap.size : start].any():
        raise CorruptPayload(f"sparse: bits beyond the {shape.tokens} tokens of the chunk are set")
    kept = KeptTokens(bits[:, : shape.tokens].astype(np.bool_), before.astype(np.int64))
    expected = start + int(kept.counts.sum()) * token_bytes(shape)
    if payload.size != expected:
        raise CorruptPayload(
            f"sparse: the payload keeps {kept.counts.sum()} tokens, {expected} bytes, and has {payload.size}"
        )
    return kept


def unpack(payload: Payload, shape: ChunkShape, kept: KeptTokens, rows: Rows) -> None:
    """Write the kept rows. kept: what `read_kept` found. rows: [layer][part][kept token][head], no others.

    Raises:
        LayoutError: the arrays are no writeable rows for these tokens.
    """
    total = int(kept.counts.sum()) * shape.parts * shape.heads
    if total == 0 and not sum(map(len, rows)):
        return
    check_rows(rows, ChunkShape(1, 1, total, 1, shape.head_dim, shape.dtype))
    check_writeable(rows)
    elements = payload[rows_offset(shape) :].view(element_dtype(shape.dtype)).reshape(total, shape.head_dim)
    start = 0
    for array in rows:
        array[:] = elements[start : start + len(array)]
        start += len(array)


def _header(payload: Payload, shape: ChunkShape) -> tuple[npt.NDArray[np.unsignedinteger], Payload]:
    """Views of the counts [layers] and of the bitmaps [layers, bytes]."""
    bitmap_start = shape.layers * _BEFORE.itemsize
    bitmap_bytes = -(-shape.tokens // 8)
    bitmap = payload[bitmap_start : bitmap_start + shape.layers * bitmap_bytes]
    return payload[:bitmap_start].view(_BEFORE), bitmap.reshape(shape.layers, bitmap_bytes)


def _gather(rows: Rows, shape: ChunkShape, mask: npt.NDArray[np.bool_], out: npt.NDArray[np.unsignedinteger]) -> None:
    """Copy the kept tokens of every layer and part, in order."""
    width = shape.heads * shape.head_dim
    # the mask of all tokens in the order of the rows: each part of a layer keeps the same ones
    wanted = np.repeat(mask, shape.parts, axis=0).reshape(-1)
    start = position = 0
    for array in rows:
        if array.size % width:
            raise LayoutError(f"rows array {array.shape} ends within a token of {shape.heads} heads")
        tokens = array.reshape(-1, width)
        found = np.flatnonzero(wanted[start : start + len(tokens)])
        # "clip" writes straight into `out`; the indices are within bounds
        sink = out[position : position + len(found) * width].reshape(len(found), width)
        np.take(tokens, found, axis=0, out=sink, mode="clip")
        start += len(tokens)
        position += len(found) * width
