"""One offered transfer: what the engine says about it, and which chunks that makes.

Two threads meet here. The engine's thread only stores plain values (`layer_final`, `seal`, `cancel`) and wakes the
agent; the agent's thread alone plans, numbers and ends the transfer.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from kvferry_contract.config import TransferConfig
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvMemory, SendHandle
from kvferry_runtime.agent.handover import Handover
from kvferry_runtime.errors import LayoutError, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.plan import Chunk, is_layerwise, layer_chunks, request_chunks
from kvferry_runtime.ring.messages import ManifestLayer, SealOffer


class Send(Handover[TransferFailed | None], SendHandle):
    """tokens: of the whole prompt. on_change: called from the engine's thread when the agent should look again."""

    def __init__(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        layout: KvLayout,
        transfer: TransferConfig,
        lossy: bool,
        on_done: Callable[[TransferFailed | None], None],
        on_change: Callable[[Send], None],
    ) -> None:
        super().__init__(params, memory, on_done, lambda: on_change(self))
        self.tokens = tokens
        self.layerwise = is_layerwise(transfer.overlap, tokens)
        self.offered = False
        self._layout = layout
        self._transfer = transfer
        self._lossy = lossy
        self._final = [0] * len(layout.shapes)
        self._announced = [0] * len(layout.shapes)
        self._chunks: list[Chunk] = []
        self._first_token: int | None = None
        self._started_ns = time.monotonic_ns()
        self._finished_ns: int | None = None
        self._seal_taken = False

    # ---- the engine's thread ----

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        if self._done:
            return
        held = layer in self._layout.layers
        index = layer - self._layout.first_layer
        if not held or not self._final[index] == token_start <= token_stop <= self.tokens:
            already = f", which is final up to {self._final[index]}" if held else f", held are {self._layout.layers}"
            raise LayoutError(
                f"layer {layer} of {self.tokens} tokens{already}: tokens {token_start} to {token_stop} cannot be next"
            )
        self._final[index] = token_stop
        if self.layerwise:
            self._changed()

    def seal(self, first_token: int | None) -> None:
        if self._done or self._finished_ns is not None:
            return
        missing = [layer for layer, final in zip(self._layout.layers, self._final, strict=True) if final < self.tokens]
        if missing:
            raise LayoutError(f"cannot seal: of {self.tokens} tokens not all are final in layers {missing}")
        self._first_token = first_token
        self._finished_ns = time.monotonic_ns()
        self._changed()

    # ---- the agent's thread ----

    @property
    def estimated_bytes(self) -> int:
        return self.tokens * self._layout.bytes_per_token

    def new_chunks(self, chunk_bytes: int) -> list[Chunk]:
        """Chunks whose tokens became final since the last call.

        Raises:
            LayoutError: one token does not fit into a chunk.
        """
        chunks = self._new_layer_chunks(chunk_bytes) if self.layerwise else self._new_request_chunks(chunk_bytes)
        self._chunks += chunks
        return chunks

    def chunk(self, sequence: int) -> Chunk | None:
        """None if no such chunk was announced."""
        return self._chunks[sequence] if sequence < len(self._chunks) else None

    def take_seal(self) -> SealOffer | None:
        """The message that ends the announcements, once, after `new_chunks` has returned all of them."""
        if self._seal_taken or self._finished_ns is None or min(self._announced) < self.tokens:
            return None
        self._seal_taken = True
        holding = Counter(
            layer for chunk in self._chunks for layer in range(chunk.layer, chunk.layer + chunk.layer_count)
        )
        return SealOffer(
            transfer_id=self.params.transfer_id,
            chunks=len(self._chunks),
            layers=[
                ManifestLayer(layer=layer, tokens=self.tokens, chunks=holding[layer]) for layer in self._layout.layers
            ],
            first_token=-1 if self._first_token is None else self._first_token,
            compute_started_ns=self._started_ns,
            compute_finished_ns=self._finished_ns,
        )

    def _new_layer_chunks(self, chunk_bytes: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        for index, layer in enumerate(self._layout.layers):
            start, stop = self._announced[index], self._final[index]
            if start < stop:
                first_sequence = len(self._chunks) + len(chunks)
                chunks += layer_chunks(
                    self._layout, layer, start, stop, self.tokens, chunk_bytes, self._lossy,
                    self._transfer.keep_exact_first, self._transfer.keep_exact_last, first_sequence,
                )  # fmt: skip
                self._announced[index] = stop
        return chunks

    def _new_request_chunks(self, chunk_bytes: int) -> list[Chunk]:
        if self._finished_ns is None or min(self._announced) == self.tokens:
            return []
        self._announced = [self.tokens] * len(self._announced)
        return request_chunks(
            self._layout, self.tokens, chunk_bytes, self._lossy,
            self._transfer.keep_exact_first, self._transfer.keep_exact_last,
        )  # fmt: skip
