"""How much of a chunk is left for rows once a sparse payload says which tokens it keeps. Pure."""

from __future__ import annotations

from kvferry_runtime.codec.sparse.payload import largest_raw_bytes, least_chunk_bytes
from kvferry_runtime.errors import LayoutError
from kvferry_runtime.layout import KvLayout


def sparse_room(layout: KvLayout, chunk_bytes: int) -> int:
    """Raw bytes that a chunk of a sparse method may have.

    Raises:
        LayoutError: one token of a layer does not fit.
    """
    sizes = [shape.bytes_per_token for shape in layout.shapes]
    room = largest_raw_bytes(chunk_bytes, min(sizes))
    if max(sizes) > room:
        raise LayoutError(
            f"one token of a layer has {max(sizes)} bytes; of a chunk of {chunk_bytes}, a sparse method has {room} for "
            f"rows: set transfer.overlap.chunkBytes to at least {least_chunk_bytes(max(sizes), min(sizes))}"
        )
    return room
