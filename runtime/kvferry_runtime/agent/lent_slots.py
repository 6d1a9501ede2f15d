"""The slots that the sidecar lends to the agent: a chunk goes in or out, then an answer gives the slot back.

Every `Fill` and every `Arrived` is answered exactly once, also for a transfer that is over here; only when the sidecar
is gone nobody waits for answers any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

from kvferry_runtime.agent.link import SidecarLink
from kvferry_runtime.agent.loads import Load
from kvferry_runtime.agent.methods import Methods
from kvferry_runtime.agent.sends import Send
from kvferry_runtime.agent.slot_codec import slot_header
from kvferry_runtime.agent.slot_work import SlotCopier, SlotWork
from kvferry_runtime.codec.registry import name_of
from kvferry_runtime.errors import CodecError, FrameError, LayoutError, Reason, TransferFailed
from kvferry_runtime.layout import KvLayout
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Arrived, Check, Consumed, Fill, Filled
from kvferry_runtime.wire.data import DataHeader

_log = logging.getLogger(__name__)

OnFailure = Callable[[Send | Load, SidecarLink, TransferFailed], None]
_Settle = Callable[[SidecarLink], bool]
"""Answers if the chunk is where it belongs. Returns whether it was."""


class LentSlots:
    """on_failure: told of a transfer whose memory could not be read or written, after the slot was given back."""

    def __init__(self, layout: KvLayout, copier: SlotCopier, methods: Methods, on_failure: OnFailure) -> None:
        self._layout = layout
        self._methods = methods
        self._copier = copier
        self._on_failure = on_failure
        self._working: dict[Send | Load, list[_Settle]] = {}

    @property
    def busy(self) -> bool:
        """Whether copies from or into slots go on, also after `forget`."""
        return self._copier.busy

    def attached(self, ring: RingMemory) -> None:
        """The slots that will be lent are those of this ring."""
        self._copier.attached(ring)

    def fill(self, message: Fill, send: Send | None, link: SidecarLink) -> None:
        """Write a chunk into the slot that was lent for it; nothing for a transfer that is over."""
        chunk = send.chunk(message.sequence) if send is not None else None
        if send is None or chunk is None or send.memory is None:
            _answer_fill(message, None, link)
        else:
            self._settle_fill(message, send, partial(self._begin_fill, message, send, chunk, link), link)

    def place(self, message: Arrived, load: Load | None, link: SidecarLink) -> None:
        """Write the chunk in this slot into the engine's memory, if it may be."""
        try:
            header = slot_header(link.ring, message.slot)
        except FrameError as error:
            _log.warning("refused a chunk: %s", error, extra={"transfer_id": message.transfer_id})
            _answer_arrived(message, 0, False, link)
            return
        if load is None or load.memory is None:
            _answer_arrived(message, header.sequence, False, link)
        else:
            self._settle_place(message, load, header, partial(self._begin_place, message, load, header, link), link)

    def look(self, transfer: Send | Load, link: SidecarLink) -> None:
        """Answer for what has ended in the background.

        Raises:
            RingUnavailable: the sidecar went away.
        """
        going_on = [settle for settle in self._working.pop(transfer, ()) if not settle(link)]
        if going_on:
            self._working[transfer] = going_on

    def forget(self) -> None:
        """The sidecar is gone, and with it whoever waits for an answer."""
        self._working.clear()

    def _begin_fill(
        self, message: Fill, send: Send, chunk: Chunk, link: SidecarLink
    ) -> DataHeader | SlotWork[DataHeader]:
        assert send.memory is not None, "checked before"
        begun = time.thread_time()  # what others take of the core slows every method down
        outcome = self._copier.fill(
            link.ring, message.slot, self._layout, send.memory, message.transfer_id, message.generation, chunk,
            message.codec,
        )  # fmt: skip
        if isinstance(outcome, DataHeader):
            self._observe(outcome, time.thread_time() - begun)
        return outcome

    def _look_fill(self, work: SlotWork[DataHeader]) -> DataHeader | None:
        header = work.result()
        if header is not None:
            self._observe(header, work.seconds)
        return header

    def _observe(self, header: DataHeader, seconds: float) -> None:
        self._methods.observed(name_of(header.codec), header.raw_bytes, header.wire_bytes, seconds)

    def _settle_fill(
        self, message: Fill, send: Send, attempt: Callable[[], DataHeader | SlotWork[DataHeader] | None],
        link: SidecarLink,
    ) -> bool:  # fmt: skip
        try:
            outcome = attempt()
        except Exception as error:
            _log.exception("cannot read the engine's KV", extra={"transfer_id": message.transfer_id})
            _answer_fill(message, None, link)
            self._on_failure(send, link, TransferFailed(Reason.INTERNAL, f"cannot read the engine's KV: {error}"))
            return True
        if outcome is None:
            return False
        if isinstance(outcome, SlotWork):
            self._go_on(send, outcome, partial(self._settle_fill, message, send, partial(self._look_fill, outcome)))
            return False
        _answer_fill(message, outcome, link, self._copier.take_check(message.slot))
        return True

    def _begin_place(
        self, message: Arrived, load: Load, header: DataHeader, link: SidecarLink
    ) -> bool | SlotWork[bool] | None:
        assert load.memory is not None, "checked before"
        shape = load.admit(header)
        load.begin(header)
        return self._copier.read(link.ring, message.slot, header, shape, load.memory) or True

    def _settle_place(
        self, message: Arrived, load: Load, header: DataHeader, attempt: Callable[[], bool | SlotWork[bool] | None],
        link: SidecarLink,
    ) -> bool:  # fmt: skip
        failure: TransferFailed | None = None
        ok = False
        try:
            outcome = attempt()
            if outcome is None:
                return False
            if isinstance(outcome, SlotWork):
                self._go_on(load, outcome, partial(self._settle_place, message, load, header, outcome.result))
                return False
            load.placed(header)
            ok = True
        except (CodecError, LayoutError) as error:
            _log.warning("refused a chunk: %s", error, extra={"transfer_id": message.transfer_id})
        except Exception as error:
            _log.exception("cannot write the engine's KV", extra={"transfer_id": message.transfer_id})
            failure = TransferFailed(Reason.INTERNAL, f"cannot write the engine's KV: {error}")
        _answer_arrived(message, header.sequence, ok, link)
        if failure is not None:
            self._on_failure(load, link, failure)
        return True

    def _go_on(self, transfer: Send | Load, work: SlotWork[DataHeader] | SlotWork[bool], settle: _Settle) -> None:
        self._working.setdefault(transfer, []).append(settle)
        work.when_ready(transfer.changed)


def _answer_fill(message: Fill, header: DataHeader | None, link: SidecarLink, check: Check | None = None) -> None:
    link.send(
        Filled(
            transfer_id=message.transfer_id,
            slot=message.slot,
            sequence=message.sequence,
            raw_bytes=0 if header is None else header.raw_bytes,
            wire_bytes=0 if header is None else header.wire_bytes,
            digest=0 if header is None else header.digest,
            check=check,
        )
    )


def _answer_arrived(message: Arrived, sequence: int, ok: bool, link: SidecarLink) -> None:
    link.send(Consumed(transfer_id=message.transfer_id, slot=message.slot, sequence=sequence, ok=ok))
