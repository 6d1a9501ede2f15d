"""What a codec on a GPU must promise.

The formats are those of the methods' own modules, byte for byte. `encode` and `decode` only queue kernels on the
current stream: they never wait for the device, and return before anything was read. What went wrong is a word of
`status`, to be looked at once an event recorded behind them has passed.

Rows are gathered from and scattered to an engine's blocks by the kernels themselves. Payloads are contiguous uint8
tensors on the same device. The caller keeps every tensor alive, and its content in place, until that event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING, ClassVar

from kvferry_runtime.codec.base import ChunkShape, Codec
from kvferry_runtime.errors import CodecRefused, CorruptPayload, LayoutError, NotEncodable
from kvferry_runtime.layout import LayerShape

if TYPE_CHECKING:
    import torch

STATUS_WORDS = 2
"""int32 words of a status: a `Problem`, and the payload's length in bytes where the method has no fixed ratio."""


class Problem(IntFlag):
    """What kernels found; several may come together."""

    NONE = 0
    NOT_FINITE = 1
    """A NaN or an infinity in what should be encoded."""
    VOID_CODE = 2
    """A code that stands for no value."""
    BAD_SCALE = 4
    """A scale that no encoder writes."""
    BAD_LENGTH = 8
    """Counts in the payload that contradict its length."""


@dataclass(frozen=True, slots=True)
class DeviceRows:
    """Where a chunk's rows lie. A row's last dimension is contiguous, everything else may be strided.

    planes: int64 [layers * parts] on the device; the address of block 0, token 0, head 0 of each layer and part.
    blocks: int32 [n] on the device; the block of each `block_tokens` tokens, in order of tokens.
    first_token: the chunk's first token, counted from the first token of `blocks`.
    block_stride, token_stride, head_stride: in elements.
    aligned: every row starts on a multiple of 16 bytes and has a multiple of 16 bytes.
    """

    planes: torch.Tensor
    blocks: torch.Tensor
    block_tokens: int
    first_token: int
    block_stride: int
    token_stride: int
    head_stride: int
    aligned: bool


class DeviceCodec(ABC):
    """One method on a GPU. form: another implementation of the same method, for names, sizes and refusals."""

    fixed_ratio: ClassVar[bool] = True
    """Whether every payload has `max_wire_bytes`; else its length is the second word of the status."""

    def __init__(self, form: Codec) -> None:
        self.name = form.name
        self.wire_id = form.wire_id
        self.lossy = form.lossy
        self.scale_scope = form.scale_scope
        self._form = form

    def supports(self, shape: LayerShape) -> str | None:
        """See `Codec.supports`."""
        return self._form.supports(shape)

    def max_wire_bytes(self, shape: ChunkShape) -> int:
        """See `Codec.max_wire_bytes`."""
        return self._form.max_wire_bytes(shape)

    def encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        """Queue the kernels that write the payload to the front of `out`.

        out: uint8, at least `max_wire_bytes`, starting on a multiple of 16 bytes. status: int32 [2]; `finish_encode`
        says what it means.

        Raises:
            CodecRefused: layers of this kind cannot be carried.
            LayoutError: `out` is too small.
        """
        self._check(shape, out, self.max_wire_bytes(shape))
        status.zero_()
        self._encode(rows, shape, out, status)

    def decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        """Queue the kernels that fill the rows from exactly `payload`, which starts on a multiple of 16 bytes.

        With a problem in `status` (see `finish_decode`) the rows are undefined.

        Raises:
            CodecRefused: layers of this kind cannot be carried.
            CorruptPayload: the length does not fit.
        """
        self._check(shape, payload, 0)
        length = self.max_wire_bytes(shape)
        if payload.numel() > length or (self.fixed_ratio and payload.numel() != length):
            raise CorruptPayload(f"{self.name}: {shape} has {length} bytes, not {payload.numel()}")
        status.zero_()
        self._decode(payload, shape, rows, status)

    def finish_encode(self, problem: int, wire_bytes: int, shape: ChunkShape) -> int:
        """The payload's length, from the two words of a status that came back.

        Raises:
            NotEncodable: a value that this method cannot carry; the payload is undefined.
        """
        if problem:
            raise NotEncodable(f"{self.name}: {Problem(problem)!r} in {shape}")
        return self.max_wire_bytes(shape) if self.fixed_ratio else wire_bytes

    def finish_decode(self, problem: int, shape: ChunkShape) -> None:
        """Raises CorruptPayload: the content does not fit; the rows are undefined."""
        if problem:
            raise CorruptPayload(f"{self.name}: {Problem(problem)!r} in a payload of {shape}")

    @abstractmethod
    def _encode(self, rows: DeviceRows, shape: ChunkShape, out: torch.Tensor, status: torch.Tensor) -> None:
        """As `encode`, with `out` checked and `status` zero."""

    @abstractmethod
    def _decode(self, payload: torch.Tensor, shape: ChunkShape, rows: DeviceRows, status: torch.Tensor) -> None:
        """As `decode`, with `payload` checked and `status` zero."""

    def _check(self, shape: ChunkShape, payload: torch.Tensor, at_least: int) -> None:
        reason = self.supports(LayerShape(shape.parts, shape.heads, shape.head_dim, shape.dtype))
        if reason is not None:
            raise CodecRefused(reason)
        if payload.dim() != 1 or payload.element_size() != 1 or not payload.is_contiguous():
            raise LayoutError(
                f"a payload must be contiguous uint8 [n], this one is {payload.dtype} {list(payload.shape)}"
            )
        if payload.numel() < at_least:
            raise LayoutError(f"the payload needs {at_least} bytes, the buffer has {payload.numel()}")
