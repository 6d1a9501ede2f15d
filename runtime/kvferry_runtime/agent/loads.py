"""One transfer that is being loaded: what may still be written into its memory, and how much of it is in place."""

from __future__ import annotations

from collections.abc import Callable

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import FetchHandle, KvMemory, LoadResult
from kvferry_runtime.agent.eviction import Compaction
from kvferry_runtime.agent.handover import Handover
from kvferry_runtime.errors import LayoutError, TransferFailed
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.wire.data import DataHeader


class Load(Handover[LoadResult | TransferFailed], FetchHandle):
    """on_change: called from the engine's thread when the agent should look again. resume_tokens: see `Fetch`."""

    def __init__(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        layout: KvLayout,
        on_done: Callable[[LoadResult | TransferFailed], None],
        on_change: Callable[[Load], None],
        resume_tokens: int = 0,
    ) -> None:
        super().__init__(params, memory, on_done, lambda: on_change(self))
        self.token_start = token_start
        self.token_stop = token_stop
        self.resume_tokens = resume_tokens
        self.fetched = False
        self._layout = layout
        self._generation = 0
        self._placed = 0

    # ---- the agent's thread ----

    def complete(self, tokens: int | None) -> bool:
        """As many layer-tokens of the newest generation are in place as the range has, or its first `tokens` tokens
        where that will do.

        The sidecar checks the ranges one by one against the SEAL; this is a second count on what was really written.
        """
        whole = self.token_stop - self.token_start
        if tokens is not None and not (self.resume_tokens and 0 < tokens < whole and tokens % self.resume_tokens == 0):
            return False
        return self._placed == (whole if tokens is None else tokens) * len(self._layout.shapes)

    def kept_tokens(self) -> int | None:
        """How many tokens of the prompt a complete load has brought, None for all.

        Raises:
            CorruptPayload: not as many as every layer must have.
        """
        if not isinstance(self._memory, Compaction):
            return None
        self._memory.check()
        return self._memory.kept

    def admit(self, header: DataHeader) -> LayerShape:
        """The shape in which this chunk may be written.

        Raises:
            LayoutError: it belongs to another transfer, an older generation, tokens or layers that were not asked
                for, or has not our shape; nothing may be written.
        """
        if header.transfer_id != self.params.transfer_id:
            raise LayoutError(f"chunk of transfer {header.transfer_id} in place of {self.params.transfer_id}")
        if header.generation < self._generation:
            raise LayoutError(f"chunk of generation {header.generation}, {self._generation} is being loaded")
        if not self.token_start <= header.token_start < header.token_stop <= self.token_stop:
            raise LayoutError(
                f"chunk of tokens {header.token_start} to {header.token_stop}, "
                f"asked for are {self.token_start} to {self.token_stop}"
            )
        shape = self._layout.shape(header.layer)
        theirs = (header.parts, header.head_stop, header.head_dim, header.dtype)
        for layer in range(header.layer, header.layer + header.layer_count):
            ours = self._layout.shape(layer)
            if theirs != (ours.parts, ours.heads, ours.head_dim, ours.dtype):
                raise LayoutError(f"chunk of layer {layer} has parts, heads, head_dim, dtype {theirs}, ours is {ours}")
        return shape

    def begin(self, header: DataHeader) -> None:
        """An admitted chunk is about to be written. A newer generation starts from nothing."""
        if header.generation > self._generation:
            self._generation = header.generation
            self._placed = 0
            if isinstance(self._memory, Compaction):
                self._memory.restart()

    def placed(self, header: DataHeader) -> None:
        """The chunk's rows are in place."""
        self._placed += header.layer_count * (header.token_stop - header.token_start)
