"""TransferVerified: whether KV is proved to cross between the groups that serve, as the router found out. Pure.

A proof holds for the pods that it was made with. As long as every one of them is the same and has not been unready
since, it stands, also while the router starts anew or does not answer: only a failure that is reported takes it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from kvferry_contract.config import Role
from kvferry_contract.pairs import Pair, PairState
from kvferry_operator.observation.live import JsonObject, condition
from kvferry_operator.observation.times import moment_of
from kvferry_operator.status.conditions import Finding, Is, Type, entry_of
from kvferry_operator.status.pods import Outlook, steady
from kvferry_operator.status.scene import Scene

REASONS: Mapping[str, str] = {
    "fingerprint_mismatch": "FingerprintMismatch",
    "no_connector": "NoConnector",
    "fell_back": "FellBackToTcp",
    "handshake_failed": "HandshakeFailed",
    "corrupt": "Corrupt",
    "internal": "Internal",
    "denied": "Denied",
    "peer_unreachable": "PeerUnreachable",
    "peer_lost": "PeerLost",
    "sidecar_lost": "SidecarLost",
    "engine_lost": "EngineLost",
    "no_capacity": "NoCapacity",
    "deadline": "Deadline",
    "draining": "Draining",
    "cancelled": "Cancelled",
}
"""Reasons of the runtime, the most telling first."""
_OTHER = "Failed"
NEEDS_HELP = frozenset({"FingerprintMismatch", "NoConnector", "FellBackToTcp", "HandshakeFailed"})
"""No patience mends these: they follow from how both sides were set up."""


def verified(scene: Scene) -> Finding:
    """What the router's report says of the pairs that are wanted."""
    if scene.model is None:
        return _finding(Is.UNKNOWN, "SpecInvalid", "nothing is known of an object that is invalid")
    if scene.is_aggregated:
        return _finding(Is.FALSE, "NotRequired", "mode is Aggregated: transfer is off, decode computes prompts itself")
    if scene.is_empty:
        return _finding(Is.UNKNOWN, "ScaledToZero", "there are no groups")
    pairs = current_pairs(scene)
    failed = [pair for pair in pairs if pair.state is PairState.FAILED]
    if failed:
        return _failed(failed)
    if all_proved(scene, pairs) or proof_stands(scene):
        return _finding(
            Is.TRUE, "Verified", "both ends counted the same bytes and digests for every prefill and decode"
        )
    return _pending(scene)


def current_pairs(scene: Scene) -> list[Pair]:
    """Reported pairs of groups that are ready and of the revision that is wanted, in a stable order."""
    if scene.report is None:
        return []
    prefill, decode = (_names(scene, role) for role in (Role.PREFILL, Role.DECODE))
    found = [pair for pair in scene.report.pairs if pair.prefill in prefill and pair.decode in decode]
    return sorted(found, key=lambda pair: (pair.prefill, pair.decode))


def all_proved(scene: Scene, pairs: Iterable[Pair]) -> bool:
    """Whether no pair waits for its proof, and every ready group is part of a pair that was proved."""
    found = list(pairs)
    if not found or any(pair.state is not PairState.VERIFIED for pair in found):
        return False
    proved = {pair.prefill for pair in found} | {pair.decode for pair in found}
    return all(name in proved for role in (Role.PREFILL, Role.DECODE) for name in _names(scene, role))


def proof_stands(scene: Scene) -> bool:
    """Whether the proof that status tells of was made with the very pods that are ready now."""
    previous = scene.previous
    if entry_of(previous, Type.TRANSFER_VERIFIED).get("status") != Is.TRUE:
        return False
    if (previous.get("revisions") or {}).get("update") != scene.revisions.update:
        return False
    proved = moment_of((previous.get("transfer") or {}).get("verifiedTime"))
    if proved is None or not all(_names(scene, role) for role in (Role.PREFILL, Role.DECODE)):
        return False
    return all(since <= proved for since in ready_since(scene))


def ready_since(scene: Scene) -> Iterator[datetime]:
    """Since when each pod of a ready group that is wanted has been ready, as far as it can be read."""
    for cohort in scene.updated():
        for group in cohort.groups:
            for pod in group.pods if group.ready else ():
                moment = moment_of(condition(pod, "Ready").get("lastTransitionTime"))
                if moment is not None:
                    yield moment


def _finding(status: Is, reason: str, message: str) -> Finding:
    return Finding(Type.TRANSFER_VERIFIED, status, reason, message)


def _names(scene: Scene, role: Role) -> set[str]:
    """First pods of the ready groups of a role at the revision that is wanted: a group goes by its first pod."""
    cohort = scene.fleet.cohort(role, scene.revisions.update)
    return {_name(group.pods[0]) for group in cohort.groups if group.ready}


def _name(pod: JsonObject) -> str:
    return str(pod["metadata"]["name"])


def _failed(failed: list[Pair]) -> Finding:
    order = list(REASONS)

    def rank(pair: Pair) -> tuple[int, str, str]:
        return order.index(pair.reason) if pair.reason in REASONS else len(order), pair.prefill, pair.decode

    first = min(failed, key=rank)
    more = f"; {len(failed) - 1} more pairs fail" if len(failed) > 1 else ""
    why = steady(first.message) or "the router gives no reason"
    return _finding(Is.FALSE, REASONS.get(first.reason, _OTHER), f"from {first.prefill} to {first.decode}: {why}{more}")


def _pending(scene: Scene) -> Finding:
    states = {state.name: state for state in scene.groups}
    prefill, decode = states.get(Role.PREFILL), states.get(Role.DECODE)
    lost = prefill and not prefill.ready and prefill.trouble and prefill.trouble.outlook is not Outlook.PASSES
    if lost and decode and decode.ready:
        return _finding(Is.FALSE, "DecodeOnly", "no prefill group is ready: decode computes prompts itself")
    if not all(_names(scene, role) for role in (Role.PREFILL, Role.DECODE)):
        return _finding(Is.UNKNOWN, "Pending", "waits for a ready prefill and a ready decode group")
    answer = scene.observed.report
    if answer is not None and answer.report is None:
        why = steady(answer.why) or "it does not answer"
        return _finding(Is.UNKNOWN, "RouterUnreachable", f"the router cannot be asked what it has proved: {why}")
    if answer is None:
        return _finding(Is.UNKNOWN, "Pending", "waits for a ready router, which proves each pair")
    told = next((f": {steady(pair.message)}" for pair in current_pairs(scene) if pair.message), "")
    return _finding(Is.UNKNOWN, "Pending", f"the router has not proved every pair yet{told}")
