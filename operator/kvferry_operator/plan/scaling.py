"""How many groups each role should have, and who may say so. Pure.

Static: `replicas` of the object is the truth, and the operator owns `spec.replicas` of the workloads. An autoscaler
then scales the object itself: its scale subresource is `spec.decode.replicas`, its selector picks one pod for each
decode group, and what it writes is followed like any other edit, through rollouts too. One object has one scale
subresource, so prefill is not reached that way.

External: an autoscaler for each role owns `spec.replicas` of the first stage's StatefulSet; `replicas` of the object
only says where a role starts. (An autoscaler on the object would write a number that nobody follows: use Static for
that.) Later stages follow the first. `scaling.min`, `scaling.max` and `ratio` are kept by scaling back what leaves
them; an autoscaler with the same bounds never notices. While a new revision comes up the operator leads the numbers,
to the one that the autoscaler had chosen, and hands them over again when it is done.

Handing over is done in two steps, since a field that its only owner leaves out of an apply falls back to its default,
which is 1 here: first the same number is applied under a second field manager, which becomes an owner too, together
with an annotation that says so; only when that is seen is the number left out of the operator's own apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvferry_contract.config import Role
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel, Ratio, RoleSpec, ScalingMode
from kvferry_operator.desired.stage import Manifest, roles
from kvferry_operator.observation.fleet import Cohort, Fleet, Workload

SCALE_MANAGER = f"{names.MANAGER}-scale"
"""Field manager that keeps a number in place until an autoscaler writes its own."""
EXTERNAL = ScalingMode.EXTERNAL.value
_ANY = 1 << 31
"""More groups than there can be."""


def wanted(model: DisaggregatedModel, fleet: Fleet) -> dict[Role, int]:
    """Groups of each role that the object has: what it says, or what an autoscaler chose, within the bounds."""
    chosen = {role: _chosen(spec, fleet.of_role(role)) for role, spec in roles(model)}
    return _in_ratio(model, chosen)


def is_external(spec: RoleSpec) -> bool:
    return spec.scaling.mode is ScalingMode.EXTERNAL


def handed_over(workload: Workload) -> bool:
    return workload.lead == EXTERNAL


def leading(manifest: Manifest, replicas: int, wanted: int) -> Manifest:
    """A StatefulSet whose number the operator owns: `replicas` now, on the way to `wanted`.

    The way's end is written down because it cannot be seen in the middle of a rollout, when an autoscaler's number
    is spread over two revisions.
    """
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_GROUPS: str(wanted)}
    return {
        **manifest,
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**manifest["spec"], "replicas": replicas},
    }


def following(manifest: Manifest) -> Manifest:
    """The same with its number left to whoever wrote it last."""
    spec = {key: value for key, value in manifest["spec"].items() if key != "replicas"}
    return {**manifest, "spec": spec}


def hand_over(model: DisaggregatedModel, workload: Workload) -> Manifest:
    """What to apply under `SCALE_MANAGER`. A workload that changed since it was seen is refused with a conflict, so
    that a number which was written in between is not undone; a later pass tries again."""
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {
            "name": workload.name,
            "namespace": model.namespace,
            "uid": workload.uid,
            "resourceVersion": workload.version,
            "annotations": {names.ANNOTATION_GROUPS: EXTERNAL},
        },
        "spec": {"replicas": workload.replicas},
    }


def ratio_bounds(ratio: Ratio, decode: int) -> tuple[int, int]:
    """Fewest and most prefill groups for that many decode groups; the fewest wins where both cannot be kept."""
    if decode == 0:
        return (0, 0) if ratio.min is not None or ratio.max is not None else (0, _ANY)
    low = 1 if ratio.min is None else max(1, math.ceil(_exact(ratio.min * decode)))
    high = _ANY if ratio.max is None else max(low, math.floor(_exact(ratio.max * decode)))
    return low, high


def _exact(value: float) -> float:
    """0.1 * 30 is 3."""
    return round(value, 6)


def _chosen(spec: RoleSpec, cohorts: tuple[Cohort, ...]) -> int:
    if not is_external(spec):
        return spec.replicas
    return _clamped(spec, _last_said(cohorts, spec.replicas))


def _last_said(cohorts: tuple[Cohort, ...], start: int) -> int:
    """The number on the role's newest revision: its own where it was handed over, else the one it is being led to.

    An older revision that is still there may have been handed over too, but is being scaled down by now.
    """
    known = [cohort.workloads for cohort in cohorts if cohort.workloads]
    if not known:
        return start
    newest = max(known, key=lambda each: (min(one.created for one in each), each[0].revision))
    first = newest[0]
    lead = first.lead
    return int(lead) if lead.isascii() and lead.isdigit() and len(lead) < 10 else first.replicas


def _clamped(spec: RoleSpec, number: int) -> int:
    low = spec.scaling.min or 0
    high = _ANY if spec.scaling.max is None else spec.scaling.max
    return min(max(number, low), high)


def _in_ratio(model: DisaggregatedModel, chosen: Mapping[Role, int]) -> dict[Role, int]:
    """Prefill follows decode where it is scaled from outside, else decode follows prefill, else nobody does."""
    counts, specs = dict(chosen), dict(roles(model))
    ratio = model.spec.ratio
    if Role.PREFILL not in counts or (ratio.min is None and ratio.max is None):
        return counts
    prefill, decode = counts[Role.PREFILL], counts[Role.DECODE]
    if is_external(specs[Role.PREFILL]):
        low, high = ratio_bounds(ratio, decode)
        counts[Role.PREFILL] = _clamped(specs[Role.PREFILL], min(max(prefill, low), high))
    elif is_external(specs[Role.DECODE]):
        counts[Role.DECODE] = _clamped(specs[Role.DECODE], _decode_in_ratio(ratio, prefill, decode))
    return counts


def _decode_in_ratio(ratio: Ratio, prefill: int, decode: int) -> int:
    """The nearest number of decode groups that so many prefill groups allow; the fewest wins."""
    if prefill == 0:
        return 0
    low = 1 if not ratio.max else max(1, math.ceil(_exact(prefill / ratio.max)))
    high = _ANY if not ratio.min else max(low, math.floor(_exact(prefill / ratio.min)))
    return min(max(decode, low), high)
