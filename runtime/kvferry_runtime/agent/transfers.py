"""The open transfers of one agent, and what each message of the sidecar does to them.

Runs in the agent's thread alone. Every transfer leaves through `_end_send` or `_end_load`, which call `on_done`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.agent.lent_slots import LentSlots
from kvferry_runtime.agent.link import SidecarLink
from kvferry_runtime.agent.loads import Load
from kvferry_runtime.agent.methods import Methods
from kvferry_runtime.agent.sends import Cutting, Send
from kvferry_runtime.agent.slot_work import SlotCopier
from kvferry_runtime.auto.compute import Prefills
from kvferry_runtime.errors import CorruptPayload, LayoutError, Reason, RingError, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.ring import packets
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import (
    MAX_BATCH,
    Arrived,
    Cancel,
    Chosen,
    ChunksReady,
    Fetch,
    Fill,
    Loaded,
    LoadFailed,
    Offer,
    ReadyChunk,
    SealOffer,
    Sent,
)

MAX_OPEN = 4096
"""Open transfers of one kind; far more than an engine can have requests."""

_MAX_TEXT = 256
_log = logging.getLogger(__name__)


class OpenTransfers:
    """on_end: called for each transfer that is over, before its `on_done`."""

    def __init__(
        self, layout: KvLayout, codec: SlotCopier, methods: Methods, on_end: Callable[[Send | Load], None]
    ) -> None:
        self._layout = layout
        self._methods = methods
        self._prefills = Prefills()
        self._on_end = on_end
        self._slots = LentSlots(layout, codec, methods, self._cancel)
        self._sends: dict[str, Send] = {}
        self._loads: dict[str, Load] = {}
        self._unanswered_sends: set[str] = set()
        self._unanswered_loads: set[str] = set()
        """Ended here, but the sidecar may still name them: a late chunk must not be taken for another transfer's."""

    # ---- what the engine did ----

    def look(self, transfer: Send | Load, link: SidecarLink | None) -> None:
        """Do what the engine's last calls on this transfer ask for. link: None without an attached sidecar.

        Raises:
            RingUnavailable: the sidecar went away.
        """
        if link is not None:
            self._slots.look(transfer, link)
        if isinstance(transfer, Send):
            self._look_send(transfer, link)
        else:
            self._look_load(transfer, link)

    def _look_send(self, send: Send, link: SidecarLink | None) -> None:
        if send.done:
            return
        if send.cancelled is not None:
            self._cancel(send, link, TransferFailed(Reason.CANCELLED, send.cancelled))
            return
        if link is None:
            self._end_send(send, _no_connector())
            return
        if not send.offered:
            if refusal := _refusal(send.params.transfer_id, self._sends, self._unanswered_sends):
                self._end_send(send, refusal)
                return
            self._sends[send.params.transfer_id] = send
            send.offered = True
            expected = self._prefills.expected(send.layers, send.tokens)
            link.send(
                Offer(
                    transfer_id=send.params.transfer_id,
                    first_layer=send.layers.start,
                    layer_count=len(send.layers),
                    tokens=send.tokens,
                    estimated_bytes=send.estimated_bytes,
                    codec=self._methods.codec,
                    layerwise=send.layerwise,
                    deadline_ms=send.params.deadline_ms,
                    methods=self._methods.offered(),
                    compute_us=int(expected.compute * 1e6),
                    tail_us=int(expected.tail * 1e6),
                )
            )
        self._announce(send, link)

    def _announce(self, send: Send, link: SidecarLink) -> None:
        chunk_bytes = link.ring.chunk_bytes
        try:
            messages = self._announcements(send, chunk_bytes)
        except LayoutError as error:
            self._cancel(send, link, TransferFailed(Reason.INTERNAL, str(error)))
            return
        except Exception as error:
            # a defect in one transfer's plan must not end those of all others
            _log.exception("cannot announce chunks", extra={"transfer_id": send.params.transfer_id})
            self._cancel(send, link, TransferFailed(Reason.INTERNAL, f"its chunks cannot be announced: {error!r}"))
            return
        for message in messages:
            link.send(message)

    def _announcements(self, send: Send, chunk_bytes: int) -> list[ChunksReady | SealOffer]:
        """What is to be said of this transfer now. Raises LayoutError: one token does not fit into a chunk."""
        messages: list[ChunksReady | SealOffer] = []
        for band in send.new_chunks(chunk_bytes):
            ready = [ReadyChunk(sequence=chunk.sequence, raw_bytes=chunk.raw_bytes) for chunk in band.chunks]
            for start in range(0, len(ready), MAX_BATCH):
                batch, last = ready[start : start + MAX_BATCH], start + MAX_BATCH >= len(ready)
                cut = band.cut if last else None
                messages.append(ChunksReady(transfer_id=send.params.transfer_id, chunks=batch, cut=cut))
        if seal := send.take_seal():
            self._prefills.observed(send.layers, send.tokens, send.took)
            messages.append(seal)
        return messages

    def _look_load(self, load: Load, link: SidecarLink | None) -> None:
        if load.done:
            return
        if load.cancelled is not None:
            self._cancel(load, link, TransferFailed(Reason.CANCELLED, load.cancelled))
        elif link is None:
            self._end_load(load, _no_connector())
        elif not load.fetched:
            if refusal := _refusal(load.params.transfer_id, self._loads, self._unanswered_loads):
                self._end_load(load, refusal)
                return
            fetch = Fetch(
                transfer_id=load.params.transfer_id,
                peers=list(load.params.peers),
                token_start=load.token_start,
                token_stop=load.token_stop,
                deadline_ms=load.params.deadline_ms,
                resume_tokens=load.resume_tokens,
            )
            try:
                packets.check_from_agent(fetch)
            except RingError as error:
                self._end_load(load, TransferFailed(Reason.INTERNAL, f"this transfer cannot be asked for: {error}"))
                return
            self._loads[load.params.transfer_id] = load
            load.fetched = True
            link.send(fetch)

    # ---- what the sidecar said ----

    def attached(self, ring: RingMemory) -> None:
        """It accepted this agent, and will lend slots of this ring."""
        self._slots.attached(ring)

    def chosen(self, message: Chosen, link: SidecarLink) -> None:
        """An offer is bound to a peer: its chunks can be cut and announced."""
        send = self._sends.get(message.transfer_id)
        if send is not None:
            send.choose(Cutting(message.layerwise, message.exact_apart, message.band_tokens))
            self._announce(send, link)

    def fill(self, message: Fill, link: SidecarLink) -> None:
        """Write a chunk into the slot that was lent for it."""
        self._slots.fill(message, self._sends.get(message.transfer_id), link)

    def arrived(self, message: Arrived, link: SidecarLink) -> None:
        """Write the chunk in this slot into the engine's memory, if it may be."""
        self._slots.place(message, self._loads.get(message.transfer_id), link)

    def sent(self, message: Sent) -> None:
        self._unanswered_sends.discard(message.transfer_id)
        send = self._sends.get(message.transfer_id)
        if send is not None:
            self._end_send(send, None if message.committed else _failure(message.reason, message.message))

    def loaded(self, message: Loaded) -> None:
        self._unanswered_loads.discard(message.transfer_id)
        load = self._loads.get(message.transfer_id)
        if load is None:
            return
        if not load.complete(message.tokens):
            self._end_load(load, TransferFailed(Reason.INTERNAL, "declared loaded before every chunk was written"))
            return
        try:
            kept_tokens = load.kept_tokens()
        except CorruptPayload as error:
            self._end_load(load, TransferFailed(Reason.CORRUPT, str(error)))
            return
        self._end_load(
            load,
            LoadResult(
                first_token=None if message.first_token < 0 else message.first_token,
                chunks=message.chunks,
                raw_bytes=message.raw_bytes,
                wire_bytes=message.wire_bytes,
                kept_tokens=kept_tokens,
                tokens=message.tokens,
            ),
        )

    def failed(self, message: LoadFailed) -> None:
        self._unanswered_loads.discard(message.transfer_id)
        load = self._loads.get(message.transfer_id)
        if load is not None:
            self._end_load(load, _failure(message.reason, message.message))

    # ---- ends ----

    @property
    def busy(self) -> bool:
        """Whether copies from or into slots go on, also after `end_all`."""
        return self._slots.busy

    def expire(self, now: float, link: SidecarLink | None) -> None:
        """End what the sidecar should have ended long ago. now: monotonic seconds.

        Raises:
            RingUnavailable: the sidecar went away.
        """
        for transfer in self._all():
            if now >= transfer.expires:
                failure = TransferFailed(Reason.DEADLINE, f"no answer within {transfer.params.deadline_ms} ms")
                self._cancel(transfer, link, failure)

    def end_all(self, reason: Reason, message: str) -> None:
        """The sidecar is gone, and with it all that it had to say."""
        self._slots.forget()
        self._unanswered_sends.clear()
        self._unanswered_loads.clear()
        for transfer in self._all():
            self.end(transfer, TransferFailed(reason, message))

    def end(self, transfer: Send | Load, failure: TransferFailed) -> None:
        """Give its memory back; nothing is said to the sidecar."""
        if isinstance(transfer, Send):
            self._end_send(transfer, failure)
        else:
            self._end_load(transfer, failure)

    def cancel_all(self, link: SidecarLink | None, message: str) -> None:
        """Raises RingUnavailable: the sidecar went away."""
        for transfer in self._all():
            self._cancel(transfer, link, TransferFailed(Reason.CANCELLED, message))

    def _all(self) -> list[Send | Load]:
        return [*self._sends.values(), *self._loads.values()]

    def _cancel(self, transfer: Send | Load, link: SidecarLink | None, failure: TransferFailed) -> None:
        """End it here at once, unless it is over: then the sidecar may have said its last word on it.

        Only this thread touches its memory. The sidecar is told, and its answer ignored.
        """
        if transfer.done:
            return
        known = transfer.offered if isinstance(transfer, Send) else transfer.fetched
        self.end(transfer, failure)
        if known and link is not None:
            unanswered = self._unanswered_sends if isinstance(transfer, Send) else self._unanswered_loads
            unanswered.add(transfer.params.transfer_id)
            link.send(Cancel(transfer_id=transfer.params.transfer_id, reason=failure.message[:_MAX_TEXT]))

    def _end_send(self, send: Send, failure: TransferFailed | None) -> None:
        if self._sends.get(send.params.transfer_id) is send:
            del self._sends[send.params.transfer_id]
        self._on_end(send)
        send.finish(failure)

    def _end_load(self, load: Load, outcome: LoadResult | TransferFailed) -> None:
        if self._loads.get(load.params.transfer_id) is load:
            del self._loads[load.params.transfer_id]
        self._on_end(load)
        load.finish(outcome)


def _refusal(
    transfer_id: str, open_transfers: dict[str, Send] | dict[str, Load], unanswered: set[str]
) -> TransferFailed | None:
    if transfer_id in open_transfers or transfer_id in unanswered:
        return TransferFailed(Reason.INTERNAL, "this transfer id is already in use")
    if len(open_transfers) + len(unanswered) >= MAX_OPEN:
        return TransferFailed(Reason.NO_CAPACITY, f"{MAX_OPEN} transfers are open, no more are possible")
    return None


def _no_connector() -> TransferFailed:
    return TransferFailed(Reason.NO_CONNECTOR, "no sidecar is attached")


def _failure(reason: str, message: str) -> TransferFailed:
    try:
        return TransferFailed(Reason(reason), message)
    except ValueError:
        return TransferFailed(Reason.INTERNAL, f"{reason}: {message}")
