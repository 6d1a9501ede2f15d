"""What both ends recorded of one canary: a transfer for each stage of decode, from some of prefill's stages. Pure.

The router knows neither split. Which stages share layers follows from the records: each stage of decode says from whom
it loaded, and its sidecar commits only when what came covers all layers that it holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvferry_runtime.router.verify.sidecars import Record


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """What one stage of decode loaded. received: its record. sent: that of each prefill stage that it loaded from, by
    number. None where a sidecar has none. strangers: addresses it loaded from that are not of the prefill group."""

    received: Record | None
    sent: Mapping[int, Record | None]
    strangers: tuple[str, ...] = ()

    @property
    def records(self) -> list[Record]:
        return [record for record in (self.received, *self.sent.values()) if record is not None]

    @property
    def missing(self) -> list[int]:
        """Prefill stages that do not know what was loaded from them."""
        return [stage for stage, record in self.sent.items() if record is None]

    @property
    def complete(self) -> bool:
        """Whether all of its ends have recorded the end."""
        return bool(self.sent) and len(self.records) == 1 + len(self.sent) and all(one.over for one in self.records)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a canary that both engines answered.

    mode, why: what the decode engine says of itself; empty where it says nothing. transfers: by stage of decode.
    prefill_stages: how many there are. unheard: sidecars that did not answer.
    """

    transfer_id: str
    mode: str
    why: str
    transfers: tuple[StageTransfer, ...]
    prefill_stages: int = 1
    unheard: tuple[str, ...] = ()

    @property
    def known(self) -> list[Record]:
        return [record for transfer in self.transfers for record in transfer.records]

    @property
    def loaded(self) -> bool:
        """Whether any stage of decode asked its sidecar for KV."""
        return any(transfer.received is not None for transfer in self.transfers)

    @property
    def complete(self) -> bool:
        return all(transfer.complete for transfer in self.transfers)

    @property
    def settled(self) -> bool:
        """Whether waiting cannot tell more."""
        moved = self.mode not in ("local", "recomputed") and (bool(self.mode) or self.loaded)
        return self.complete or not moved or self.broken is not None

    @property
    def broken(self) -> Record | None:
        """A record of an end that was none."""
        return next((record for record in self.known if record.over and record.reason), None)

    @property
    def idle(self) -> list[int]:
        """Prefill stages from which nobody loaded. Each holds a layer, so there should be none."""
        busy = {stage for transfer in self.transfers for stage in transfer.sent}
        return [stage for stage in range(self.prefill_stages) if stage not in busy]


def sources(received: Record | None, sidecars: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """From which prefill stages a stage of decode loaded, and from which addresses beside them.

    sidecars: of the prefill group, by stage, as decode was told.
    """
    peers = _parts(received.peer) if received is not None else []
    stages = {address: stage for stage, address in enumerate(sidecars)}
    return tuple(stages[peer] for peer in peers if peer in stages), tuple(peer for peer in peers if peer not in stages)


def digests(received: Record, stages: Iterable[int]) -> dict[int, str]:
    """What decode computed of each stage's part. stages: as `sources` gave them."""
    return dict(zip(stages, _parts(received.digest), strict=False))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]
