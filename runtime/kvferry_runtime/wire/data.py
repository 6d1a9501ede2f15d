"""The fixed header in front of every DATA payload. 128 bytes, little-endian; the payload follows at once.

Byte by byte:

======  ====  ===========================================================
offset  type  field
======  ====  ===========================================================
0       4s    magic "KVFD"
4       u16   version
6       u16   flags (0)
8       16s   transfer id
24      u32   generation
28      u32   sequence, from 0 in each generation
32      u16   layer (global number of the first layer)
34      u16   layer_count
36      u16   parts (2: K and V, 1: one latent part)
38      u16   codec (wire id)
40      u32   token_start
44      u32   token_stop
48      u16   head_start (0)
50      u16   head_stop
52      u16   head_dim (the real width, before any packing)
54      u8    dtype (0 bf16, 1 fp16, 2 fp32, 3 uint8)
55      u8    scale scope (0 none, 1 token and head, 2 head, 3 tensor, 4 group within a row)
56      u32   raw length
60      u32   wire length
64      u64   xxh3-64 of the payload; 0 with integrity Header
72      48s   zero
120     u32   zero
124     u32   crc32 of bytes 0 to 123
======  ====  ===========================================================
"""

from __future__ import annotations

import struct
import zlib

import msgspec

from kvferry_runtime.errors import FrameError
from kvferry_runtime.layout import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, KvDtype

MAGIC = b"KVFD"
VERSION = 1
HEADER_BYTES = 128
MAX_CHUNK_BYTES = 64 << 20

_FIELDS = struct.Struct("<4sHH16sIIHHHHIIHHHBBIIQ48sI")
_CRC = struct.Struct("<I")
_DTYPES = (KvDtype.BF16, KvDtype.FP16, KvDtype.FP32, KvDtype.UINT8)
_ZEROS = bytes(48)
assert _FIELDS.size + _CRC.size == HEADER_BYTES


class DataHeader(msgspec.Struct, frozen=True, gc=False):
    """Everything that decode needs to place one payload. Units: bytes, tokens; ranges are half-open."""

    transfer_id: str
    generation: int
    sequence: int
    layer: int
    layer_count: int
    parts: int
    codec: int
    token_start: int
    token_stop: int
    head_stop: int
    head_dim: int
    dtype: KvDtype
    scale_scope: int
    raw_bytes: int
    wire_bytes: int
    digest: int

    def pack(self) -> bytes:
        body = _FIELDS.pack(
            MAGIC, VERSION, 0, bytes.fromhex(self.transfer_id), self.generation, self.sequence,
            self.layer, self.layer_count, self.parts, self.codec, self.token_start, self.token_stop,
            0, self.head_stop, self.head_dim, _DTYPES.index(self.dtype), self.scale_scope,
            self.raw_bytes, self.wire_bytes, self.digest, b"", 0,
        )  # fmt: skip
        return body + _CRC.pack(zlib.crc32(body))

    @classmethod
    def unpack(cls, data: bytes | bytearray | memoryview) -> DataHeader:
        """Read and check the first 128 bytes of `data`.

        Raises:
            FrameError: too short, another magic or version, wrong checksum, a field out of bounds.
        """
        if len(data) < HEADER_BYTES:
            raise FrameError(f"DATA header has {len(data)} bytes, {HEADER_BYTES} are needed")
        head = bytes(data[:HEADER_BYTES])
        body, crc = head[: _FIELDS.size], head[_FIELDS.size :]
        if crc != _CRC.pack(zlib.crc32(body)):
            raise FrameError("DATA header: checksum does not fit")
        (
            magic, version, flags, transfer, generation, sequence, layer, layer_count, parts, codec, start, stop,
            head_start, head_stop, head_dim, dtype, scope, raw, wire, digest, zeros, zero,
        ) = _FIELDS.unpack(body)  # fmt: skip
        if magic != MAGIC or version != VERSION or flags or zero or head_start or zeros != _ZEROS:
            raise FrameError(f"DATA header: magic {magic!r} version {version} flags {flags} are not ours")
        if dtype >= len(_DTYPES) or parts not in (1, 2) or not 0 < head_stop <= MAX_HEADS:
            raise FrameError(f"DATA header: dtype {dtype}, parts {parts}, heads {head_stop} out of bounds")
        if not 0 < head_dim <= MAX_HEAD_DIM or not 0 < layer_count <= MAX_LAYERS - layer or start >= stop:
            raise FrameError(f"DATA header: head_dim {head_dim}, layers {layer}+{layer_count}, tokens {start}:{stop}")
        kind = _DTYPES[dtype]
        expected = layer_count * parts * (stop - start) * head_stop * head_dim * kind.itemsize
        # a sparse payload of a chunk whose tokens are all kept is a little larger than its raw bytes
        if raw != expected or not 0 < wire <= MAX_CHUNK_BYTES or raw > MAX_CHUNK_BYTES:
            raise FrameError(f"DATA header: raw length {raw} (shape gives {expected}), wire length {wire}")
        return cls(
            transfer_id=transfer.hex(), generation=generation, sequence=sequence, layer=layer, layer_count=layer_count,
            parts=parts, codec=codec, token_start=start, token_stop=stop, head_stop=head_stop, head_dim=head_dim,
            dtype=kind, scale_scope=scope, raw_bytes=raw, wire_bytes=wire, digest=digest,
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return self.layer_count * self.parts * (self.token_stop - self.token_start) * self.head_stop
