"""What one canary says of a pairing, judged by what the sidecars of all stages recorded of its transfer. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvferry_contract.config import TransportKind
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.evidence import Evidence, StageTransfer, digests
from kvferry_runtime.router.verify.sidecars import Record
from kvferry_runtime.sidecar import lanes
from kvferry_runtime.transport.base import Lane

_NOBODYS_FAULT = frozenset({Reason.DRAINING, Reason.CANCELLED})
"""A group that ends, or a router that does: the pairing was not found to be broken."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of a transfer that both ends committed, all stages together. codec: `none` where nothing was saved; several, with
    commas between them, where the stages' differ."""

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
    if not evidence.mode and not evidence.loaded:
        return failed(
            Reason.NO_CONNECTOR,
            "the decode engine answered without fetching any KV: is kvferry's connector loaded in it?",
        )
    if gap := _gap(evidence):
        return failed(Reason.CORRUPT, gap)
    if not evidence.complete:
        return undecided("a sidecar has no record of the transfer's end")
    return _compare(evidence, transport)


def reason_of(text: str) -> Reason:
    try:
        return Reason(text)
    except ValueError:
        return Reason.INTERNAL


def _gap(evidence: Evidence) -> str:
    """Which stage should have recorded a part of the transfer and did not; empty where none is missing."""
    several = len(evidence.transfers) > 1
    for number, transfer in enumerate(evidence.transfers):
        decode = _stage("decode", number, several)
        if transfer.received is None:
            return f"{decode} has no record of the transfer: none of its layers were fetched"
        if transfer.strangers:
            return f"{decode} loaded from {', '.join(transfer.strangers)}, which is no sidecar of this prefill group"
        if transfer.missing:
            prefill = _stage("prefill", transfer.missing[0], evidence.prefill_stages > 1)
            return f"{prefill} has no record of what it sent to {decode}"
    if evidence.idle:
        return f"{_stage('prefill', evidence.idle[0], True)} sent nothing: no stage of decode loaded from it"
    return ""


def _stage(role: str, number: int, several: bool) -> str:
    return f"{role} stage {number}" if several else role


def _compare(evidence: Evidence, transport: TransportKind) -> Verdict:
    several = len(evidence.transfers) > 1
    for number, transfer in enumerate(evidence.transfers):
        if difference := _difference(transfer):
            at = f" of {_stage('decode', number, several)}" if several else ""
            return failed(Reason.CORRUPT, f"the two ends{at} differ: {difference}")
    sent = [record for transfer in evidence.transfers for record in transfer.sent.values() if record is not None]
    figures = Figures(
        transfer_id=evidence.transfer_id,
        bytes_raw=sum(record.bytes_raw for record in sent),
        bytes_wire=sum(record.bytes_wire for record in sent),
        chunks=sum(record.chunks for record in sent),
        # a codec that saved nothing did not carry anything
        codec=",".join(sorted({record.codec if record.bytes_wire < record.bytes_raw else "none" for record in sent})),
        lanes=tuple(dict.fromkeys(lane for record in evidence.known for lane in record.lanes)),
    )
    problem = lanes.fallback(transport, [_lane(text) for text in figures.lanes])
    if problem is not None:
        return Verdict(Finding.FAILED, Reason.FELL_BACK, problem, figures)
    return Verdict(Finding.VERIFIED, figures=figures)


def _difference(transfer: StageTransfer) -> str:
    """How one stage of decode and those that sent to it differ; empty where they recorded the same."""
    sent = {stage: record for stage, record in transfer.sent.items() if record is not None}
    assert transfer.received is not None
    theirs = _Account.of(sent.values(), {stage: record.digest for stage, record in sent.items()})
    ours = _Account.of([transfer.received], digests(transfer.received, transfer.sent))
    return "" if theirs == ours and ours.committed else f"prefill recorded {theirs}, decode {ours}"


@dataclass(frozen=True, slots=True)
class _Account:
    """What one side of a transfer recorded. digests: by prefill stage."""

    committed: bool
    chunks: int
    bytes_raw: int
    bytes_wire: int
    digests: Mapping[int, str]

    @classmethod
    def of(cls, records: Collection[Record], digests: Mapping[int, str]) -> _Account:
        return cls(
            committed=all(record.state == "committed" for record in records),
            chunks=sum(record.chunks for record in records),
            bytes_raw=sum(record.bytes_raw for record in records),
            bytes_wire=sum(record.bytes_wire for record in records),
            digests=digests,
        )

    def __str__(self) -> str:
        state = "committed" if self.committed else "not committed"
        digests = ",".join(digest for _, digest in sorted(self.digests.items()))
        return f"{self.chunks} chunks, {self.bytes_raw} bytes, {self.bytes_wire} on the wire, {digests}, {state}"


def _lane(text: str) -> Lane:
    transport, _, device = text.partition(":")
    return Lane(transport, device)
