"""How fast a codec for devices is in this process, with its copy over the bus, measured on made-up values."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from kvferry_runtime.agent.device.streams import Device, Stream
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.base import ChunkShape
from kvferry_runtime.codec.device.base import STATUS_WORDS, DeviceCodec, DeviceRows
from kvferry_runtime.errors import CodecError
from kvferry_runtime.layout import KvDtype, LayerShape

PROBE_BYTES = 1 << 20
PROBE_ROUNDS = 3
WARM_BLOCKS = 2

_DTYPES = {
    KvDtype.BF16: torch.bfloat16,
    KvDtype.FP16: torch.float16,
    KvDtype.FP32: torch.float32,
    KvDtype.UINT8: torch.uint8,
}


def measure(device: Device, codec: DeviceCodec, shape: LayerShape, block_tokens: int) -> MethodSpeed:
    """How fast a method carries values like those of KV caches: normal, a few channels much larger.

    The first round, in which kernels are compiled, does not count. A method that cannot carry such values is given a
    speed with which nobody would choose it.
    """
    tokens = max(1, PROBE_BYTES // shape.bytes_per_token // block_tokens) * block_tokens
    chunk = ChunkShape.of(shape, 1, tokens)
    stream = device.stream()
    room = codec.max_wire_bytes(chunk)
    host, status = device.pinned(1, room, torch.uint8)[0], device.pinned(1, STATUS_WORDS, torch.int32)[0]
    probe = _Probe(device, codec, chunk, block_tokens)
    try:
        encode = _fastest(stream, lambda: probe.encode(host, status))
        problem, length = status.tolist()
        wire_bytes = codec.finish_encode(problem, length, chunk)
        decode = _fastest(stream, lambda: probe.decode(host[:wire_bytes]))
    except CodecError:
        return MethodSpeed(codec.name, 1.0, 1.0, 1.0)
    return MethodSpeed(codec.name, wire_bytes / chunk.raw_bytes, chunk.raw_bytes / encode, chunk.raw_bytes / decode)


def warm_up(device: Device, codec: DeviceCodec, shape: LayerShape, block_tokens: int) -> None:
    """Have the kernels of this method compiled, which takes seconds unless Triton finds them in its cache.

    block_tokens: of the engine's cache; kernels are compiled for one size of blocks.

    Raises:
        What compiling or running them raised.
    """
    chunk = ChunkShape.of(shape, 1, WARM_BLOCKS * block_tokens)
    stream, room = device.stream(), codec.max_wire_bytes(chunk)
    host, status = device.pinned(1, room, torch.uint8)[0], device.pinned(1, STATUS_WORDS, torch.int32)[0]
    probe = _Probe(device, codec, chunk, block_tokens)
    stream.submit(lambda: probe.encode(host, status))
    stream.record().synchronize()
    problem, length = status.tolist()
    payload = host[: codec.finish_encode(problem, length, chunk)]
    stream.submit(lambda: probe.decode(payload))
    stream.record().synchronize()


class _Probe:
    """One layer of made-up values in whole blocks; all of it lies on the device from the first round on."""

    def __init__(self, device: Device, codec: DeviceCodec, chunk: ChunkShape, block_tokens: int) -> None:
        self._device = device
        self._codec = codec
        self._chunk = chunk
        self._block_tokens = block_tokens
        self._values: torch.Tensor | None = None
        self._rows: DeviceRows | None = None

    def encode(self, host: torch.Tensor, status: torch.Tensor) -> None:
        out = self._device.empty(host.numel(), torch.uint8)
        found = self._device.empty(STATUS_WORDS, torch.int32)
        self._codec.encode(self._made_up(), self._chunk, out, found)
        host.copy_(out, non_blocking=True)
        status.copy_(found, non_blocking=True)

    def decode(self, host: torch.Tensor) -> None:
        payload = self._device.empty(host.numel(), torch.uint8)
        payload.copy_(host, non_blocking=True)
        self._codec.decode(payload, self._chunk, self._made_up(), self._device.empty(STATUS_WORDS, torch.int32))

    def _made_up(self) -> DeviceRows:
        if self._rows is None:
            chunk = self._chunk
            values = self._device.empty(chunk.rows * chunk.head_dim, torch.float32).normal_().view(-1, chunk.head_dim)
            values[:, ::31] *= 20
            self._values = values.to(_DTYPES[chunk.dtype])
            part = chunk.tokens * chunk.heads * chunk.head_dim
            width = chunk.dtype.itemsize
            planes = [self._values.data_ptr() + index * part * width for index in range(chunk.parts)]
            self._rows = DeviceRows(
                planes=self._device.upload(planes, torch.int64),
                blocks=self._device.upload(list(range(chunk.tokens // self._block_tokens)), torch.int32),
                block_tokens=self._block_tokens,
                first_token=0,
                block_stride=self._block_tokens * chunk.heads * chunk.head_dim,
                token_stride=chunk.heads * chunk.head_dim,
                head_stride=chunk.head_dim,
                aligned=chunk.head_dim * width % 16 == 0,
            )
        return self._rows


def _fastest(stream: Stream, work: Callable[[], None]) -> float:
    """Seconds until the device has done it, of the fastest of a few rounds."""
    times = []
    for _ in range(1 + PROBE_ROUNDS):
        begun = time.perf_counter()
        stream.submit(work)
        stream.record().synchronize()
        times.append(time.perf_counter() - begun)
    return max(min(times[1:]), 1e-9)
