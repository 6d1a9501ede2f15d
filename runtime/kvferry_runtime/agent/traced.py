"""The agent's part of a timeline: seen from outside, so that nothing is done where none is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from kvferry_runtime.agent.base import KvMemory, SendHandle
from kvferry_runtime.agent.slot_work import Method, Result, SlotCopier, SlotWork
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.trace.events import Event, Phase
from kvferry_runtime.trace.recorder import Recorder
from kvferry_runtime.wire.data import DataHeader


class Computed:
    """When the engine, which computes one thing after the other, was last known to have ended something."""

    def __init__(self) -> None:
        self._since_ns = 0

    def begins(self) -> None:
        """What is computed next does not begin before now."""
        self._since_ns = time.monotonic_ns()

    def ended(self) -> tuple[int, int]:
        """From when to when that which ends now was computed, in nanoseconds of the monotonic clock."""
        began, self._since_ns = self._since_ns, time.monotonic_ns()
        return began, self._since_ns


class TracedSend(SendHandle):
    """Records when each layer was computed: from the layer before (or the offer) to the moment it was announced.

    What follows the last layer's KV until `seal` (its attention, the head) counts as that layer's too. On a GPU it is
    the host's time, which runs ahead of the device's.
    """

    def __init__(
        self,
        send: SendHandle,
        recorder: Recorder,
        computed: Computed,
        transfer_id: str,
        tokens: int,
        last_layer: int | None,
    ) -> None:
        """computed: shared by all sends of one engine. last_layer: of the pass, None if this send does not have it."""
        self._send = send
        self._recorder = recorder
        self._computed = computed
        self._transfer_id = transfer_id
        self._tokens = tokens
        self._last_layer = last_layer
        computed.begins()

    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        self._record(layer, token_start, token_stop)
        self._send.layer_final(layer, token_start, token_stop)

    def seal(self, first_token: int | None) -> None:
        if self._last_layer is not None:
            self._record(self._last_layer, 0, self._tokens)
        self._send.seal(first_token)

    def cancel(self, reason: str) -> None:
        self._send.cancel(reason)

    def _record(self, layer: int, token_start: int, token_stop: int) -> None:
        began, ended = self._computed.ended()
        self._recorder.add(
            Event(Phase.COMPUTED, self._transfer_id, layer, 1, token_start, token_stop, -1, began, ended)
        )


class TracedCopier(SlotCopier):
    """Records when each chunk was gathered, encoded and decoded by another copier.

    A chunk that the other one copies in the background ends when the agent hears of it.
    """

    def __init__(self, copier: SlotCopier, recorder: Recorder, sees_rows: bool) -> None:
        """sees_rows: the other one asks memory for rows, so that the time of gathering them can be told apart."""
        self._copier = copier
        self._recorder = recorder
        self._sees_rows = sees_rows

    @property
    def method(self) -> Method:
        return self._copier.method

    @property
    def codecs(self) -> Mapping[str, Method]:
        return self._copier.codecs

    @property
    def busy(self) -> bool:
        return self._copier.busy

    def attached(self, ring: RingMemory) -> None:
        self._copier.attached(ring)

    def take_check(self, slot: int) -> Check | None:
        return self._copier.take_check(slot)

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        return self._copier.speed(method, shape)

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> DataHeader | SlotWork[DataHeader]:  # fmt: skip
        timed = _TimedRows(memory)
        seen = timed if self._sees_rows else memory
        work = self._copier.fill(ring, slot, layout, seen, transfer_id, generation, chunk, method)

        def encoded(header: DataHeader) -> None:
            if self._sees_rows:
                self._record(Phase.GATHERED, header, timed.began, timed.found, header.raw_bytes)
            self._record(Phase.ENCODED, header, timed.found, time.monotonic_ns(), header.wire_bytes)

        if isinstance(work, SlotWork):
            return _TracedWork(work, encoded)
        encoded(work)
        return work

    def read(
        self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory
    ) -> SlotWork[bool] | None:
        began = time.monotonic_ns()

        def decoded(_: bool) -> None:
            self._record(Phase.DECODED, header, began, time.monotonic_ns(), header.raw_bytes)

        work = self._copier.read(ring, slot, header, shape, memory)
        if work is not None:
            return _TracedWork(work, decoded)
        decoded(True)
        return None

    def _record(self, phase: Phase, header: DataHeader, began_ns: int, ended_ns: int, size: int) -> None:
        self._recorder.add(
            Event(
                phase, header.transfer_id, header.layer, header.layer_count, header.token_start, header.token_stop,
                header.sequence, began_ns, ended_ns, size,
            )
        )  # fmt: skip


class _TimedRows(KvMemory):
    """An engine's memory that remembers when it was last asked for rows."""

    def __init__(self, memory: KvMemory) -> None:
        self._memory = memory
        self.began = self.found = time.monotonic_ns()

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        rows = self._memory.rows(layer, part, token_start, token_stop)
        self.found = time.monotonic_ns()
        return rows


class _TracedWork(SlotWork[Result]):
    """Work in the background, and what to do once it has ended well."""

    def __init__(self, work: SlotWork[Result], on_result: Callable[[Result], None]) -> None:
        self._work = work
        self._on_result = on_result

    def result(self) -> Result | None:
        result = self._work.result()
        if result is not None:
            self._on_result(result)
        return result

    @property
    def seconds(self) -> float:
        return self._work.seconds

    def when_ready(self, look: Callable[[], None]) -> None:
        self._work.when_ready(look)
