"""An engine's agent that does what a test tells it: real ring, real socket, in the test's own event loop.

The KV of a prompt is one array of random bytes per layer; each layer is 2 parts x 1 head x 8 values of bf16, so a token
takes 32 bytes of a layer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

from kvferry_runtime.codec.registry import METHODS
from kvferry_runtime.errors import RingUnavailable
from kvferry_runtime.layout import KvDtype
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import (
    MAX_BATCH,
    PROTOCOL_VERSION,
    Arrived,
    Attach,
    Attached,
    Beat,
    Cancel,
    Check,
    ChunksReady,
    Consumed,
    Cut,
    Fetch,
    Fill,
    Filled,
    FromAgent,
    FromSidecar,
    Loaded,
    LoadFailed,
    ManifestLayer,
    Offer,
    ReadyChunk,
    Refused,
    SealOffer,
    Sent,
)
from kvferry_runtime.ring.socket import SidecarSocket
from kvferry_runtime.wire.data import HEADER_BYTES, DataHeader

TOKEN_BYTES = 32
DEADLINE = 60.0
"""Seconds; of a transfer whose deadline is not what a test is about."""
SECONDS = 120.0
"""For what must happen by itself: longer than a deadline, and what comes after it, on a busy machine too."""


@dataclass(frozen=True)
class Chunk:
    sequence: int
    layer: int
    start: int
    stop: int

    @property
    def raw_bytes(self) -> int:
        return (self.stop - self.start) * TOKEN_BYTES


@dataclass
class Prompt:
    """The KV of one prompt in the layers of one pod."""

    tokens: int
    layers: range
    seed: int = 0
    kv: dict[int, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.kv = {
            layer: random.Random(f"{self.seed}/{layer}").randbytes(self.tokens * TOKEN_BYTES) for layer in self.layers
        }

    def chunks(self, chunk_bytes: int) -> list[Chunk]:
        step = chunk_bytes // TOKEN_BYTES
        places = [(layer, start) for layer in self.layers for start in range(0, self.tokens, step)]
        return [
            Chunk(number, layer, start, min(start + step, self.tokens)) for number, (layer, start) in enumerate(places)
        ]

    def part(self, chunk: Chunk) -> bytes:
        return self.kv[chunk.layer][chunk.start * TOKEN_BYTES : chunk.stop * TOKEN_BYTES]


class ScriptedAgent:
    """Fills and consumes by itself unless `holding`; keeps all that it was told. attach: changed fields of `Attach`."""

    def __init__(self, directory: Path, role: str, layers: range, total_layers: int, attach: Mapping[str, Any]) -> None:
        self.directory = directory
        self.layers = layers
        self.holding = False
        self.told: list[FromSidecar] = []
        self.loaded: dict[str, dict[int, bytearray]] = {}
        self.check: Callable[[DataHeader], Check | None] = lambda header: None
        self.spoil: Callable[[DataHeader], bool] = lambda header: False
        self._attach = Attach(
            **{
                "version": PROTOCOL_VERSION,
                "engine_boot_id": "engine",
                "role": role,
                "fingerprint": {"model": "m"},
                "first_layer": layers.start,
                "layer_count": len(layers),
                "total_layers": total_layers,
                "codecs": ["none", "int8"],
            }
            | dict(attach)
        )
        self._prompts: dict[str, Prompt] = {}
        self._chunks: dict[str, list[Chunk]] = {}
        self._held: list[Fill | Arrived] = []
        self._ends: dict[str, asyncio.Future[Sent | Loaded | LoadFailed]] = {}
        self._first: asyncio.Future[Attached | Refused] = asyncio.get_running_loop().create_future()
        self._socket: SidecarSocket | None = None
        self._ring: RingMemory | None = None

    async def attach(self) -> Attached | Refused:
        self._socket = SidecarSocket.connect(self.directory)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._read)
        self.say(self._attach)
        answer = await asyncio.wait_for(self._first, SECONDS)
        if isinstance(answer, Attached):
            self._ring = RingMemory.open(self.directory)
        return answer

    def close(self) -> None:
        """As when the engine's process dies."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def say(self, message: FromAgent) -> None:
        assert self._socket is not None
        self._socket.send(message)

    def beat(self, age_ms: int) -> None:
        self.say(Beat(age_ms=age_ms))

    # ---- prefill ----

    def offer(
        self,
        transfer_id: str,
        prompt: Prompt,
        *,
        layerwise: bool | None = True,
        seconds: float = DEADLINE,
        codec: str = "none",
        chunks: list[Chunk] | None = None,
        **known: Any,
    ) -> None:
        """chunks: in place of those that go layer by layer. known: what the engine measured, as in `Offer`."""
        assert self._ring is not None
        self._prompts[transfer_id] = prompt
        self._chunks[transfer_id] = chunks or prompt.chunks(self._ring.chunk_bytes)
        self._expect(transfer_id)
        self.say(
            Offer(
                transfer_id=transfer_id,
                first_layer=prompt.layers.start,
                layer_count=len(prompt.layers),
                tokens=prompt.tokens,
                estimated_bytes=prompt.tokens * len(prompt.layers) * TOKEN_BYTES,
                codec=codec,
                layerwise=layerwise,
                deadline_ms=int(seconds * 1000),
                **known,
            )
        )

    def announce(self, transfer_id: str, first: int = 0, stop: int | None = None, cut: Cut | None = None) -> None:
        chunks = self._chunks[transfer_id][first:stop]
        for start in range(0, len(chunks), MAX_BATCH):
            batch = [ReadyChunk(chunk.sequence, chunk.raw_bytes) for chunk in chunks[start : start + MAX_BATCH]]
            self.say(ChunksReady(transfer_id=transfer_id, chunks=batch, cut=cut))

    def seal(self, transfer_id: str, first_token: int = 7, **changes: Any) -> None:
        prompt, chunks = self._prompts[transfer_id], self._chunks[transfer_id]
        holding = [sum(chunk.layer == layer for chunk in chunks) for layer in prompt.layers]
        fields: dict[str, Any] = {
            "transfer_id": transfer_id,
            "chunks": len(chunks),
            "layers": [
                ManifestLayer(layer, prompt.tokens, count) for layer, count in zip(prompt.layers, holding, strict=True)
            ],
            "first_token": first_token,
            "compute_started_ns": 0,
            "compute_finished_ns": 0,
        }
        self.say(SealOffer(**(fields | changes)))

    def send(self, transfer_id: str, prompt: Prompt, **options: Any) -> None:
        """Offer, announce and seal at once."""
        self.offer(transfer_id, prompt, **options)
        self.announce(transfer_id)
        self.seal(transfer_id)

    # ---- decode ----

    def fetch(
        self, transfer_id: str, peers: list[str], tokens: int, seconds: float = DEADLINE, resume: int = 0
    ) -> None:
        self.loaded[transfer_id] = {layer: bytearray(tokens * TOKEN_BYTES) for layer in self.layers}
        self._expect(transfer_id)
        self.say(
            Fetch(
                transfer_id=transfer_id,
                peers=peers,
                token_start=0,
                token_stop=tokens,
                deadline_ms=int(seconds * 1000),
                resume_tokens=resume,
            )
        )

    def cancel(self, transfer_id: str, reason: str = "client went away") -> None:
        self.say(Cancel(transfer_id=transfer_id, reason=reason))

    # ---- both ----

    async def end(self, transfer_id: str) -> Sent | Loaded | LoadFailed:
        """The one report of this transfer."""
        return await asyncio.wait_for(asyncio.shield(self._ends[transfer_id]), SECONDS)

    def ends(self, transfer_id: str) -> int:
        """How many reports came."""
        return sum(isinstance(m, Sent | Loaded | LoadFailed) and m.transfer_id == transfer_id for m in self.told)

    @property
    def held(self) -> int:
        return len(self._held)

    def release(self, count: int | None = None) -> None:
        """Do what was held back."""
        held, self._held = self._held[:count], self._held[count:] if count is not None else []
        for message in held:
            self._work(message)

    def _expect(self, transfer_id: str) -> None:
        self._ends[transfer_id] = asyncio.get_running_loop().create_future()

    def _read(self) -> None:
        while self._socket is not None:
            try:
                messages = self._socket.receive()
            except RingUnavailable:
                self.close()
                return
            if not messages:
                return
            for message in messages:
                self._take(message)

    def _take(self, message: FromSidecar) -> None:
        self.told.append(message)
        match message:
            case Attached() | Refused():
                if not self._first.done():
                    self._first.set_result(message)
            case Fill() | Arrived():
                if self.holding:
                    self._held.append(message)
                else:
                    self._work(message)
            case Sent() | Loaded() | LoadFailed():
                end = self._ends.get(message.transfer_id)
                if end is not None and not end.done():
                    end.set_result(message)

    def _work(self, message: Fill | Arrived) -> None:
        if isinstance(message, Fill):
            self._fill(message)
        else:
            self._consume(message)

    def _fill(self, message: Fill) -> None:
        assert self._ring is not None
        prompt = self._prompts[message.transfer_id]
        chunk = self._chunks[message.transfer_id][message.sequence]
        data = prompt.part(chunk)
        header = DataHeader(
            transfer_id=message.transfer_id,
            generation=message.generation,
            sequence=chunk.sequence,
            layer=chunk.layer,
            layer_count=1,
            parts=2,
            codec=METHODS[message.codec] if message.codec else 0,
            token_start=chunk.start,
            token_stop=chunk.stop,
            head_stop=1,
            head_dim=8,
            dtype=KvDtype.BF16,
            scale_scope=0,
            raw_bytes=len(data),
            wire_bytes=len(data),
            digest=xxhash.xxh3_64_intdigest(data),
        )
        slot = self._ring.slot_message(message.slot)
        slot[: HEADER_BYTES + len(data)] = header.pack() + data
        self.say(
            Filled(
                transfer_id=message.transfer_id,
                slot=message.slot,
                sequence=chunk.sequence,
                raw_bytes=len(data),
                wire_bytes=len(data),
                digest=header.digest,
                check=self.check(header),
            )
        )

    def _consume(self, message: Arrived) -> None:
        assert self._ring is not None
        header = DataHeader.unpack(self._ring.slot_header(message.slot))
        data = bytes(self._ring.slot_payload(message.slot)[: header.wire_bytes])
        ok = xxhash.xxh3_64_intdigest(data) == header.digest and not self.spoil(header)
        if ok:
            place = slice(header.token_start * TOKEN_BYTES, header.token_stop * TOKEN_BYTES)
            self.loaded[header.transfer_id][header.layer][place] = data
        self.say(Consumed(transfer_id=message.transfer_id, slot=message.slot, sequence=header.sequence, ok=ok))
