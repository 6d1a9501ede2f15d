"""The header that the agent wrote in front of a chunk, held against what the agent says it wrote."""

from __future__ import annotations

import logging

from kvferry_runtime.errors import FrameError
from kvferry_runtime.ring.messages import Filled
from kvferry_runtime.wire.data import DataHeader

_log = logging.getLogger(__name__)


def checked_header(
    message: Filled, header: bytes | bytearray | memoryview, generation: int, chunk_bytes: int, layers: range
) -> DataHeader | None:
    """None, and a line in the log, if the two differ: a defect must not become another transfer's data.

    layers: that were offered.
    """
    try:
        found = DataHeader.unpack(header)
    except FrameError as error:
        _log.error("the agent wrote a bad header: %s", error, extra={"transfer_id": message.transfer_id})
        return None
    theirs = (found.transfer_id, found.generation, found.sequence)
    ours = (message.transfer_id, generation, message.sequence)
    sizes = (found.raw_bytes, found.wire_bytes, found.digest)
    fits = theirs == ours and sizes == (message.raw_bytes, message.wire_bytes, message.digest)
    offered = layers.start <= found.layer and found.layer + found.layer_count <= layers.stop
    if not fits or not offered or found.wire_bytes > chunk_bytes:
        place = (found.layer, found.layer_count)
        _log.error("the agent's header is %s %s %s", theirs, sizes, place, extra={"transfer_id": message.transfer_id})
        return None
    return found
