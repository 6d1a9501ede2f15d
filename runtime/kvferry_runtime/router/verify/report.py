"""What was found, in the words of the report that the operator reads. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvferry_contract.endpoints import Group
from kvferry_contract.pairs import Pair as ReportedPair
from kvferry_contract.pairs import PairState, SidecarFacts
from kvferry_runtime.router.pairing import Pair
from kvferry_runtime.router.reasons import Finding
from kvferry_runtime.router.verify.schedule import Standing
from kvferry_runtime.router.verify.sidecars import State
from kvferry_runtime.router.verify.verdict import Figures, Verdict

MAX_MESSAGE = 200
"""Characters; with the most pairs that there can be, the report stays within what the operator reads."""
_NOTHING = Figures(transfer_id="", bytes_raw=0, bytes_wire=0, chunks=0, codec="", lanes=())


def pair_of(pair: Pair, standing: Standing | None) -> ReportedPair:
    """standing: None before its first canary."""
    verdict = standing.verdict if standing and standing.verdict else None
    figures = verdict.figures if verdict and verdict.figures else _NOTHING
    return ReportedPair(
        prefill=pair.prefill.pod,
        decode=pair.decode.pod,
        revision=pair.decode.revision,
        state=state_of(standing),
        reason=verdict.reason.value if verdict and verdict.reason else "",
        message=_message(standing, verdict)[:MAX_MESSAGE],
        changed_unix=standing.changed_unix if standing else 0.0,
        transfer_id=figures.transfer_id,
        bytes_raw=figures.bytes_raw,
        bytes_wire=figures.bytes_wire,
        chunks=figures.chunks,
        codec=figures.codec,
        lanes=figures.lanes,
    )


def state_of(standing: Standing | None) -> PairState:
    if standing is None or standing.verdict is None:
        return PairState.PENDING
    return PairState.VERIFIED if standing.verdict.finding is Finding.VERIFIED else PairState.FAILED


def facts_of(groups: Iterable[Group], states: Mapping[str, State]) -> tuple[SidecarFacts, ...]:
    """One for each sidecar that answered, of every stage of every group. states: by the sidecar's HTTP address."""
    return tuple(
        SidecarFacts(
            pod=state.group.rpartition("/")[2],
            role=group.role,
            fingerprint=state.fingerprint,
            memlock_bytes=state.memlock_bytes,
            devices=state.devices,
            lanes=state.lanes,
            sent=state.totals.sent,
            bytes_raw=state.totals.bytes_raw,
            bytes_wire=state.totals.bytes_wire,
            wire_seconds=state.totals.wire_seconds,
            hidden_seconds=state.totals.hidden_seconds,
            max_relative_error=state.totals.max_relative_error,
        )
        for group in groups
        for address in group.sidecar_http
        if (state := states.get(address)) is not None
    )


def _message(standing: Standing | None, verdict: Verdict | None) -> str:
    if verdict is not None:
        return verdict.message
    return standing.told if standing is not None else ""
