"""What keeps an object from being as it was asked for, the most important first: Ready, Stalled and Reconciling follow
from it. Pure.

The rules for who has to act:

* A person: an invalid object, a name that somebody else has, a missing permission, an object that the API server
  refuses, an image that cannot be pulled, a container whose configuration is missing, one that ended badly three times,
  nodes without the devices that are asked for, two sides that do not fit together, a rollout that broken groups block.
* Nobody, it passes: an API server that does not answer, groups that start, drain, or ended badly once or twice, pairs
  that were not proved yet.
* Nobody that we know of: a pod that fits on no node (an autoscaler may add one), a probe that does not pass, a node
  that does not answer, a peer that cannot be reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvferry_operator.errors import ClusterError, Forbidden, Refused
from kvferry_operator.status import fabric, transfer
from kvferry_operator.status.conditions import Finding
from kvferry_operator.status.pods import Outlook, steady
from kvferry_operator.status.scene import Scene

PAUSED = "spec.paused is true: what runs goes on, and changes of the object wait; set it to false to go on"
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Blocker:
    """outlook: what ends it."""

    reason: str
    message: str
    outlook: Outlook


def blockers(scene: Scene, fabric_ready: Finding, verified: Finding) -> list[Blocker]:
    """Everything that stands between the object and Ready."""
    if scene.invalid is not None or scene.model is None:
        errors = "; ".join(map(str, scene.invalid.errors)) if scene.invalid else "the object cannot be read"
        return [
            Blocker("SpecInvalid", f"what runs stays as it is until the object is mended: {errors}", Outlook.NEEDS_HELP)
        ]
    found = [
        *_of_writes(scene),
        *_of_roles(scene),
        *_of_rollout(scene),
        *_of_fabric(scene, fabric_ready),
        *_of_transfer(scene, verified),
    ]
    if scene.is_paused and (found or scene.step is None):
        # without a plan it is not known whether what runs is what the object asks for by now
        return [Blocker("Paused", PAUSED, Outlook.WAITS), *found]
    return found


def _of_writes(scene: Scene) -> Iterator[Blocker]:
    conflicts = sorted(scene.results.conflicts)
    if conflicts:
        yield Blocker(
            "NameConflict",
            f"{_list(conflicts)} exists and is not ours: delete or rename it, or give this object another name",
            Outlook.NEEDS_HELP,
        )
    failures = sorted(scene.results.failures, key=lambda each: (each.kind, each.name))
    for kind, reason in ((Forbidden, "Forbidden"), (Refused, "ApplyRefused")):
        found = [each for each in failures if isinstance(each.error, kind)]
        if found:
            more = f" ({len(found) - 1} more objects fail like it)" if len(found) > 1 else ""
            yield Blocker(
                reason, f"{found[0].kind}/{found[0].name}: {steady(str(found[0].error))}{more}", Outlook.NEEDS_HELP
            )
    passing = [f"{each.kind}/{each.name}" for each in failures if _passes(each.error)]
    if passing:
        yield Blocker("ApplyFailed", f"{_list(passing)} could not be written and is tried again", Outlook.PASSES)


def _passes(error: ClusterError) -> bool:
    return not isinstance(error, Forbidden | Refused)


def _of_roles(scene: Scene) -> Iterator[Blocker]:
    """All roles' troubles as one, told by the reason of the most telling."""
    found = [(state.name, state.trouble) for state in scene.roles if state.trouble is not None]
    if found:
        worst = min((trouble for _, trouble in found), key=lambda each: each.rank)
        message = "; ".join(f"{name}: {trouble.message}" for name, trouble in found)
        yield Blocker(worst.reason, message, max(trouble.outlook for _, trouble in found))


def _of_rollout(scene: Scene) -> Iterator[Blocker]:
    if scene.step is not None and scene.step.waits:
        yield Blocker("RolloutBlocked", scene.step.waits, Outlook.NEEDS_HELP)
    outdated = [state.name for state in scene.roles if state.outdated]
    if outdated:
        yield Blocker(
            "RollingOut", f"{' and '.join(outdated)}: pods of an older revision are still there", Outlook.PASSES
        )


def _of_fabric(scene: Scene, finding: Finding) -> Iterator[Blocker]:
    if finding.reason == "NodesLackDevices" or fabric.blocks_ready(scene, finding):
        yield Blocker(finding.reason, finding.message, Outlook.NEEDS_HELP)


def _of_transfer(scene: Scene, finding: Finding) -> Iterator[Blocker]:
    assert scene.model is not None
    required = scene.model.spec.transfer.verify.required and not scene.is_aggregated and not scene.is_empty
    if required and not finding.holds:
        yield Blocker(_reason(finding), finding.message, _outlook(finding))


def _reason(finding: Finding) -> str:
    return "TransferPending" if finding.reason == "Pending" else finding.reason


def _outlook(finding: Finding) -> Outlook:
    if finding.reason in transfer.NEEDS_HELP:
        return Outlook.NEEDS_HELP
    return Outlook.PASSES if finding.reason == "Pending" else Outlook.WAITS


def _list(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
