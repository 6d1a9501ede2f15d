"""What one canary says of a pairing, judged by both sidecars' records of its transfer. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.sidecars import Record
from kvferry_runtime.sidecar import lanes
from kvferry_runtime.transport.base import Lane

_NOBODYS_FAULT = frozenset({Reason.DRAINING, Reason.CANCELLED})
"""A group that ends, or a router that does: the pairing was not found to be broken."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a transfer that both ends committed. codec: `none` where nothing was saved."""

    transfer_id: str
    bytes_raw: int
    bytes_wire: int
    chunks: int
    codec: str
    lanes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """reason: of a failure alone. message: for people, empty when verified."""

    finding: Finding
    reason: Reason | None = None
    message: str = ""
    figures: Figures | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of a canary that both engines answered.

    mode, why: what the decode engine says of itself; empty where it says nothing. sent, received: the records of each
    prefill and decode stage, None where its sidecar has none. unheard: sidecars that did not answer.
    """

    transfer_id: str
    mode: str
    why: str
    sent: tuple[Record | None, ...]
    received: tuple[Record | None, ...]
    unheard: tuple[str, ...] = ()

    @property
    def known(self) -> list[Record]:
        return [record for record in (*self.received, *self.sent) if record is not None]

    @property
    def complete(self) -> bool:
        """Whether every stage has recorded the end."""
        return all(record is not None and record.over for record in (*self.sent, *self.received))

    @property
    def settled(self) -> bool:
        """Whether waiting cannot tell more."""
        moved = self.mode not in ("local", "recomputed") and (bool(self.mode) or any(self.received))
        return self.complete or not moved or self.broken is not None

    @property
    def broken(self) -> Record | None:
        """A record of an end that was none."""
        return next((record for record in self.known if record.over and record.reason), None)


def failed(reason: Reason, message: str) -> Verdict:
    finding = Finding.UNDECIDED if reason in _NOBODYS_FAULT else Finding.FAILED
    return Verdict(finding, reason if finding is Finding.FAILED else None, message)


def undecided(message: str) -> Verdict:
    return Verdict(Finding.UNDECIDED, message=message)


def judge(evidence: Evidence, transport: TransportKind) -> Verdict:
    """transport: what the model asks for; bytes that took another way are a failure that says so."""
    broken = evidence.broken
    if evidence.mode == "recomputed":
        reason = reason_of(evidence.why)
        return failed(reason, broken.message if broken else f"the decode engine computed the prompt itself: {reason}")
    if broken is not None:
        return failed(reason_of(broken.reason), broken.message)
    if evidence.mode == "local":
        return undecided("the decode engine held the prompt already, nothing was moved")
    if evidence.unheard:
        return undecided(f"no answer from the sidecar at {', '.join(evidence.unheard)}")
    if not evidence.mode and not any(evidence.received):
        return failed(
            Reason.NO_CONNECTOR,
            "the decode engine answered without fetching any KV: is kvferry's connector loaded in it?",
        )
    if not evidence.complete:
        return undecided("a sidecar has no record of the transfer's end")
    return _compare(evidence, transport)


def reason_of(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        return Reason.INTERNAL


def _compare(evidence: Evidence, transport: TransportKind) -> Verdict:
    sent, received = _Total.of(evidence.sent), _Total.of(evidence.received)
    if sent != received or not sent.committed:
        return failed(Reason.CORRUPT, f"the two ends differ: prefill recorded {sent}, decode {received}")
    records = evidence.known
    figures = Figures(
        transfer_id=evidence.transfer_id,
        bytes_raw=sent.bytes_raw,
        bytes_wire=sent.bytes_wire,
        chunks=sent.chunks,
        # a codec that saved nothing did not carry anything
        codec=next((record.codec for record in evidence.sent if record), "") if sent.saved else "none",
        lanes=tuple(dict.fromkeys(lane for record in records for lane in record.lanes)),
    )
    problem = lanes.fallback(transport, [_lane(text) for text in figures.lanes])
    if problem is not None:
        return Verdict(Finding.FAILED, Reason.FELL_BACK, problem, figures)
    return Verdict(Finding.VERIFIED, figures=figures)


@dataclass(frozen=True, slots=True)
class _Total:
    """What all stages of one side recorded together. digests: one for each prefill stage, in any order."""

    committed: bool
    chunks: int
    bytes_raw: int
    bytes_wire: int
    digests: tuple[str, ...]

    @classmethod
    def of(cls, records: Sequence[Record | None]) -> _Total:
        there = [record for record in records if record is not None]
        return cls(
            committed=all(record.state == "committed" for record in there),
            chunks=sum(record.chunks for record in there),
            bytes_raw=sum(record.bytes_raw for record in there),
            bytes_wire=sum(record.bytes_wire for record in there),
            digests=tuple(sorted(_digests(there))),
        )

    @property
    def saved(self) -> bool:
        return self.bytes_wire < self.bytes_raw

    def __str__(self) -> str:
        state = "committed" if self.committed else "not committed"
        digests = ",".join(self.digests)
        return f"{self.chunks} chunks, {self.bytes_raw} bytes, {self.bytes_wire} on the wire, {digests}, {state}"


def _digests(records: Iterable[Record]) -> list[str]:
    return [digest for record in records for digest in record.digest.split(",") if digest]


def _lane(text: str) -> Lane:
    transport, _, device = text.partition(":")
    return Lane(transport, device)
