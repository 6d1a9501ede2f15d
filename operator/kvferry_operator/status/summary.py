"""The conditions that sum up (Ready, Reconciling, Stalled, Available, Progressing), and those of each role. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvferry_contract.config import Role
from kvferry_operator.plan.scaling import ratio_bounds
from kvferry_operator.status.blockers import PAUSED, Blocker
from kvferry_operator.status.conditions import Finding, Is, Type, truth
from kvferry_operator.status.pods import Outlook
from kvferry_operator.status.roles import ROUTER, RoleState
from kvferry_operator.status.scene import Scene

_ROLE_TYPES = {
    Role.PREFILL.value: Type.PREFILL_READY,
    Role.DECODE.value: Type.DECODE_READY,
    ROUTER: Type.ROUTER_READY,
}


def summary(scene: Scene, blockers: Sequence[Blocker]) -> Iterator[Finding]:
    yield _ready(scene, blockers)
    yield from _motion(scene, blockers)
    yield _available(scene)
    yield _progressing(scene, blockers)


def checks(scene: Scene) -> Iterator[Finding]:
    yield _spec_valid(scene)
    for state in scene.roles:
        yield _role(state)


def _ready(scene: Scene, blockers: Sequence[Blocker]) -> Finding:
    if blockers:
        return Finding(Type.READY, Is.FALSE, blockers[0].reason, " | ".join(each.message for each in blockers))
    if scene.is_empty:
        return Finding(Type.READY, Is.TRUE, "ScaledToZero", "no group is asked for, and none is there")
    return Finding(Type.READY, Is.TRUE, "AsAskedFor", "every group is of the current revision and ready")


def _motion(scene: Scene, blockers: Sequence[Blocker]) -> Iterator[Finding]:
    """Reconciling and Stalled, of which at most one is True."""
    if scene.is_paused:
        yield Finding(Type.RECONCILING, Is.FALSE, "Paused", PAUSED)
        yield Finding(Type.STALLED, Is.FALSE, "NotStalled", "nothing needs a person")
        return
    stuck = next((each for each in blockers if each.outlook is Outlook.NEEDS_HELP), None)
    moving = next((each for each in blockers if each.outlook is Outlook.PASSES), None) or _surplus(scene)
    if stuck is not None:
        yield Finding(Type.RECONCILING, Is.FALSE, "Stalled", "nothing goes on before somebody has acted; see Stalled")
        yield Finding(Type.STALLED, Is.TRUE, stuck.reason, stuck.message)
        return
    if moving is not None:
        yield Finding(Type.RECONCILING, Is.TRUE, moving.reason, moving.message)
    elif blockers:
        yield Finding(Type.RECONCILING, Is.FALSE, "Waiting", blockers[0].message)
    else:
        yield Finding(Type.RECONCILING, Is.FALSE, "Settled", "there is nothing left to do")
    yield Finding(Type.STALLED, Is.FALSE, "NotStalled", "nothing needs a person")


def _surplus(scene: Scene) -> Blocker | None:
    """Groups above the wanted number drain; that makes nobody less ready."""
    names = [state.name for state in scene.roles if state.surplus]
    if not names:
        return None
    return Blocker("ScalingDown", f"{' and '.join(names)}: groups that are not wanted any more drain", Outlook.PASSES)


def _available(scene: Scene) -> Finding:
    if scene.is_empty and not scene.serving_revision():
        return Finding(Type.AVAILABLE, Is.FALSE, "ScaledToZero", "no group is asked for")
    if not scene.serving_revision():
        lacking = [state.name for state in scene.groups if not state.ready]
        what = f"no {' and no '.join(lacking)} group is ready" if lacking else "no two ready groups have one revision"
        return Finding(Type.AVAILABLE, Is.FALSE, "NoPair", what)
    if scene.router.desired and not scene.router.ready:
        return Finding(Type.AVAILABLE, Is.FALSE, "RouterNotReady", "groups are ready, but no router is")
    return Finding(Type.AVAILABLE, Is.TRUE, "Serving", "requests are answered by groups of one revision")


def _progressing(scene: Scene, blockers: Sequence[Blocker]) -> Finding:
    """Whether what the object asks for is on its way."""
    if scene.is_paused:
        return Finding(Type.PROGRESSING, Is.FALSE, "Paused", PAUSED)
    stuck = next((each for each in blockers if each.outlook is not Outlook.PASSES), None)
    if not blockers and _surplus(scene) is None:
        return Finding(Type.PROGRESSING, Is.FALSE, "Complete", "everything is as it was asked for")
    if stuck is not None:
        return Finding(Type.PROGRESSING, Is.FALSE, stuck.reason, stuck.message)
    if any(state.outdated for state in scene.groups):
        message = f"revision {scene.revisions.update} replaces {scene.revisions.current}"
        return Finding(Type.PROGRESSING, Is.TRUE, "RollingOut", message)
    if not any(state.ready for state in scene.groups):
        return Finding(Type.PROGRESSING, Is.TRUE, "Installing", f"groups of revision {scene.revisions.update} come up")
    return Finding(Type.PROGRESSING, Is.TRUE, "ComingUp", "what is wanted is on its way; see Reconciling")


def _spec_valid(scene: Scene) -> Finding:
    if scene.invalid is None:
        return Finding(Type.SPEC_VALID, Is.TRUE, "Valid", "the object can be used as it is")
    return Finding(Type.SPEC_VALID, Is.FALSE, "SpecInvalid", "; ".join(map(str, scene.invalid.errors)))


def _role(state: RoleState) -> Finding:
    kind = _ROLE_TYPES[state.name]
    if state.trouble is not None:
        return Finding(kind, Is.FALSE, state.trouble.reason, state.trouble.message)
    if state.outdated:
        return Finding(kind, Is.FALSE, "RollingOut", "pods of an older revision are still there")
    if not state.desired:
        return Finding(kind, Is.TRUE, "ScaledToZero", "nothing is asked for")
    return Finding(kind, truth(state.is_ready), "Complete", "everything is there, of the current revision, and ready")


def ratio(scene: Scene) -> Finding:
    model = scene.model
    if model is None:
        return Finding(Type.RATIO_SATISFIED, Is.UNKNOWN, "SpecInvalid", "nothing is known of an object that is invalid")
    if scene.is_aggregated or (model.spec.ratio.min is None and model.spec.ratio.max is None):
        return Finding(Type.RATIO_SATISFIED, Is.TRUE, "NotRequested", "no ratio of the roles is asked for")
    prefill, decode = scene.wanted.get(Role.PREFILL, 0), scene.wanted.get(Role.DECODE, 0)
    low, high = ratio_bounds(model.spec.ratio, decode)
    if low <= prefill <= high:
        return Finding(Type.RATIO_SATISFIED, Is.TRUE, "WithinBounds", "the roles' groups keep to spec.ratio")
    return Finding(
        Type.RATIO_SATISFIED,
        Is.FALSE,
        "OutOfBounds",
        f"{prefill} prefill groups for {decode} decode groups are outside spec.ratio: change replicas, or let "
        "scaling.mode External follow it",
    )
