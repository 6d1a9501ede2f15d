"""One offered transfer: what the engine says about it, and which chunks that makes.

Two threads meet here. The engine's thread only stores plain values (`layer_final`, `seal`, `cancel`) and wakes the
agent; the agent's thread alone plans, numbers and ends the transfer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kvferry_contract.config import OverlapMode, TransferConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvMemory, SendHandle
from kvferry_runtime.agent.eviction import Eviction
from kvferry_runtime.agent.handover import Handover
from kvferry_runtime.agent.sparse_room import sparse_room
from kvferry_runtime.auto.compute import UNKNOWN, PassTime
from kvferry_runtime.errors import LayoutError, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.plan import Chunk, layer_chunks, request_chunks
from kvferry_runtime.ring.messages import Cut, ManifestLayer, SealOffer


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a prompt becomes chunks. exact_apart, band_tokens: see `Chosen`."""

    layerwise: bool
    exact_apart: bool
    band_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Band:
    """Chunks that are announced together, and the place behind them if the transfer could end there."""

    chunks: list[Chunk]
    cut: Cut | None


class Send(Handover[TransferFailed | None], SendHandle):
    """tokens: of the whole prompt. layout: of the layers that are offered, and no others. goes_on: whether the engine's
    pass goes on with others. on_change: called from the engine's thread when the agent should look again.

    memory: an `Eviction` for a sparse method, whose layers are cut when they are final for the whole prompt.
    lossy: whether a lossy method may be used. chosen: whether the sidecar says how to cut the prompt into chunks; until
    it has said so (`choose`), what the engine announces is only remembered.
    """

    def __init__(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        layout: KvLayout,
        transfer: TransferConfig,
        lossy: bool,
        chosen: bool,
        on_done: Callable[[TransferFailed | None], None],
        on_change: Callable[[Send], None],
        goes_on: bool = False,
    ) -> None:
        super().__init__(params, memory, on_done, lambda: on_change(self))
        self.tokens = tokens
        self.layers = layout.layers
        self.overlap = transfer.overlap
        self.offered = False
        self._layout = layout
        self._transfer = transfer
        self._lossy = lossy
        self._eviction = isinstance(memory, Eviction)
        self._cutting = None if chosen else Cutting(transfer.overlap is OverlapMode.LAYERWISE, exact_apart=True)
        self._final = [0] * len(layout.shapes)
        self._announced = [0] * len(layout.shapes)
        self._chunks: list[Chunk] = []
        self._holding: Counter[int] = Counter()
        """Announced chunks that hold rows of each layer."""
        self._first_token: int | None = None
        self._started_ns = time.monotonic_ns()
        self._goes_on = goes_on
        self._first_final_ns = 0
        self._last_final_ns = 0
        self._finals = 0
        self._finished_ns: int | None = None
        self._seal_taken = False

    # ---- the engine's thread ----

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        if self._done:
            return
        held = layer in self._layout.layers
        index = layer - self._layout.first_layer
        if not held or not self._final[index] == token_start <= token_stop <= self.tokens:
            already = f", which is final up to {self._final[index]}" if held else f", offered are {self.layers}"
            raise LayoutError(
                f"layer {layer} of {self.tokens} tokens{already}: tokens {token_start} to {token_stop} cannot be next"
            )
        self._final[index] = token_stop
        self._finals += 1
        self._last_final_ns = time.monotonic_ns()
        if self._finals == 1:
            self._first_final_ns = self._last_final_ns
        if self._cutting is not None and self._cutting.layerwise:
            self.changed()

    def seal(self, first_token: int | None) -> None:
        if self._done or self._finished_ns is not None:
            return
        missing = [layer for layer, final in zip(self._layout.layers, self._final, strict=True) if final < self.tokens]
        if missing:
            raise LayoutError(f"cannot seal: of {self.tokens} tokens not all are final in layers {missing}")
        self._first_token = first_token
        self._finished_ns = time.monotonic_ns()
        self.changed()

    # ---- the agent's thread ----

    @property
    def estimated_bytes(self) -> int:
        return self.tokens * self._layout.bytes_per_token

    @property
    def layerwise(self) -> bool | None:
        """As it is offered; None if that is to be chosen."""
        return None if self.overlap is OverlapMode.AUTO else self.overlap is OverlapMode.LAYERWISE

    @property
    def took(self) -> PassTime:
        """What the forward pass took, once sealed. From the first layer that was final, and for that one as long as for
        each of the others; 0 for an engine that announces everything at the end."""
        if self._finished_ns is None or self._finals < 2:
            return UNKNOWN
        end = self._last_final_ns if self._goes_on else self._finished_ns
        tail = (self._finished_ns - end) / 1e9
        return PassTime((end - self._first_final_ns) / 1e9 * self._finals / (self._finals - 1) + tail, tail)

    def choose(self, cutting: Cutting) -> None:
        """How to cut this prompt into chunks; only the first word counts, as chunks that were announced stay."""
        self._cutting = self._cutting or cutting

    def new_chunks(self, chunk_bytes: int) -> list[Band]:
        """Chunks whose tokens became final since the last call, in order.

        Raises:
            LayoutError: one token does not fit into a chunk.
        """
        cutting = self._cutting
        if cutting is None:
            return []
        if self._eviction:
            chunk_bytes = sparse_room(self._layout, chunk_bytes)
        new = self._new_layer_chunks if cutting.layerwise else self._new_request_chunks
        bands = []
        for chunks in new(chunk_bytes, cutting):
            self._chunks += chunks
            for chunk in chunks:
                self._holding.update(range(chunk.layer, chunk.layer + chunk.layer_count))
            bands.append(Band(chunks, self._cut(cutting)))
        return bands

    def chunk(self, sequence: int) -> Chunk | None:
        """None if no such chunk was announced."""
        return self._chunks[sequence] if sequence < len(self._chunks) else None

    def take_seal(self) -> SealOffer | None:
        """The message that ends the announcements, once, after `new_chunks` has returned all of them."""
        if self._seal_taken or self._finished_ns is None or min(self._announced) < self.tokens:
            return None
        self._seal_taken = True
        return SealOffer(
            transfer_id=self.params.transfer_id,
            chunks=len(self._chunks),
            layers=self._manifest(self.tokens),
            first_token=-1 if self._first_token is None else self._first_token,
            compute_started_ns=self._started_ns,
            compute_finished_ns=self._finished_ns,
        )

    def _new_layer_chunks(self, chunk_bytes: int, cutting: Cutting) -> Iterator[list[Chunk]]:
        chunks: list[Chunk] = []
        for index, layer in enumerate(self._layout.layers):
            start, stop = self._announced[index], self._final[index]
            if start < stop and (stop == self.tokens or not self._eviction):
                first_sequence = len(self._chunks) + len(chunks)
                chunks += layer_chunks(
                    self._layout, layer, start, stop, self.tokens, chunk_bytes, self._lossy,
                    self._transfer.keep_exact_first, self._transfer.keep_exact_last, first_sequence,
                    apart=cutting.exact_apart,
                )  # fmt: skip
                self._announced[index] = stop
        if chunks:
            yield chunks

    def _new_request_chunks(self, chunk_bytes: int, cutting: Cutting) -> Iterator[list[Chunk]]:
        if self._finished_ns is None:
            return
        band = cutting.band_tokens or self.tokens
        for start in range(self._announced[0], self.tokens, band):
            stop = min(start + band, self.tokens)
            self._announced = [stop] * len(self._announced)
            yield request_chunks(
                self._layout, self.tokens, chunk_bytes, self._lossy,
                self._transfer.keep_exact_first, self._transfer.keep_exact_last, apart=cutting.exact_apart,
                token_start=start, token_stop=stop, first_sequence=len(self._chunks),
            )  # fmt: skip

    def _cut(self, cutting: Cutting) -> Cut | None:
        """The place behind all that was announced so far, if decode's engine could go on from there."""
        tokens = self._announced[0]
        if not cutting.band_tokens or tokens % cutting.band_tokens or tokens == self.tokens:
            return None
        if set(self._announced) != {tokens}:
            return None
        return Cut(tokens, len(self._chunks), self._manifest(tokens))

    def _manifest(self, tokens: int) -> list[ManifestLayer]:
        """What was announced so far, which is so many tokens of every layer."""
        return [ManifestLayer(layer=layer, tokens=tokens, chunks=self._holding[layer]) for layer in self._layout.layers]
