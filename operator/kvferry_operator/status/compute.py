"""Step 5 of a pass: the whole status. Pure; the same observation gives the same status at any time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import SpecInvalid
from kvferry_operator.observation.live import labels
from kvferry_operator.observation.observed import Observed, Results
from kvferry_operator.plan.rollout import Step
from kvferry_operator.status import figures, summary
from kvferry_operator.status.blockers import Blocker, blockers
from kvferry_operator.status.conditions import Finding, Type, render
from kvferry_operator.status.fabric import fabric
from kvferry_operator.status.roles import RoleState
from kvferry_operator.status.scene import Scene
from kvferry_operator.status.transfer import verified

_HTTP = 80
_MAX_REVISION = 63


def compute(
    model: DisaggregatedModel | None,
    invalid: SpecInvalid | None,
    observed: Observed,
    step: Step | None,
    results: Results,
    now: datetime,
) -> Manifest:
    """The status that the object should have; times and figures of the present one are kept where they still hold.

    model: None if `invalid` says why it cannot be read. step: what was planned; None when nothing was.
    """
    scene = Scene(model, invalid, observed, step, results)
    fabric_ready, transfer_verified = fabric(scene), verified(scene)
    blocking = blockers(scene, fabric_ready, transfer_verified)
    found = [
        *summary.summary(scene, blocking),
        *summary.checks(scene),
        fabric_ready,
        transfer_verified,
        summary.ratio(scene),
    ]
    order = list(Type)
    found.sort(key=lambda finding: order.index(finding.type))
    status: Manifest = {
        "observedGeneration": observed.generation,
        "phase": _phase(scene, found, blocking),
        "endpoint": _endpoint(scene),
        "selector": names.scale_selector(observed.key[1]),
        "decodeReplicas": _decode_replicas(observed),
        "summary": {state.name: _column(state) for state in scene.groups},
        "conditions": render(found, observed.status, observed.generation, now),
        "roles": [state.entry() for state in scene.roles],
        "revisions": _revisions(scene),
        "fingerprint": figures.fingerprint(scene),
        "transfer": figures.transfer(scene, transfer_verified, now),
    }
    return {key: value for key, value in status.items() if value not in ("", {})}


def _phase(scene: Scene, found: Sequence[Finding], blocking: Sequence[Blocker]) -> str:
    """One word for people."""
    by_type = {finding.type: finding for finding in found}
    if scene.invalid is not None:
        return "Invalid"
    if scene.is_paused:
        return "Paused"
    if by_type[Type.READY].holds:
        return by_type[Type.READY].reason if scene.is_empty else "Ready"
    if by_type[Type.STALLED].holds:
        return "Stalled"
    if by_type[Type.PROGRESSING].holds:
        reason = by_type[Type.PROGRESSING].reason
        return "Verifying" if blocking[0].reason == "TransferPending" else reason
    return "Degraded" if by_type[Type.AVAILABLE].holds else "Waiting"


def _endpoint(scene: Scene) -> str:
    """Without a port where the router's Service has the usual one; without the cluster's domain, which nobody knows."""
    namespace, name = scene.observed.key
    host = f"http://{names.router(name)}.{namespace}.svc"
    if scene.model is None:
        return str(scene.previous.get("endpoint") or "")
    port = scene.model.spec.router.service.port
    return host if port == _HTTP else f"{host}:{port}"


def _revisions(scene: Scene) -> Manifest:
    named = {"current": scene.revisions.current, "update": scene.revisions.update}
    return {key: value[:_MAX_REVISION] for key, value in named.items() if value}


def _decode_replicas(observed: Observed) -> int:
    """Exactly the pods that `selector` picks, since an autoscaler divides by their number."""
    wanted = names.selector(observed.key[1], "decode", stage_index=0).items()
    return sum(wanted <= labels(pod).items() for pod in observed.pods)


def _column(state: RoleState) -> str:
    return f"{state.ready}/{state.desired}"[:32]
