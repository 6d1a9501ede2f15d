"""Which children are not wanted any more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvferry_operator.api import names
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.kube import kinds
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.observation.fleet import Fleet, JsonObject
from kvferry_operator.observation.live import is_leaving, labels, place_of

_KINDS = {kind.kind: kind for kind in kinds.CHILDREN}
_CONFIG_MAP, _NETWORK_POLICY = "ConfigMap", "NetworkPolicy"


@dataclass(frozen=True, slots=True)
class ChildRef:
    """A child to remove."""

    kind: Kind
    name: str
    uid: str


def unwanted(fleet: Fleet, objects: Iterable[Manifest], update: str) -> Iterator[ChildRef]:
    """Children of ours that can go, in the order in which they should. objects: wanted, of the revision `update`.

    Those of an old revision stay until its last pod is gone, since pods find each other and their settings by them; a
    ConfigMap stays as long as any pod or workload has it.
    """
    wanted = {(each["kind"], each["metadata"]["name"]) for each in objects}
    busy = {each.revision for each in fleet.cohorts if each.occupied} - {update}
    mounted = set(_mounted(fleet, update))
    filters = any(kind == _NETWORK_POLICY for kind, _ in wanted)
    # a policy of stages closes all other ports of its pods, so that it never outlives the one that opens them
    for child in sorted(fleet.children, key=_is_stage_policy, reverse=True):
        kind, name = str(child.get("kind")), str(child["metadata"]["name"])
        if kind not in _KINDS or (kind, name) in wanted or is_leaving(child):
            continue
        if not _is_needed(child, busy, update, filters) and (kind != _CONFIG_MAP or name not in mounted):
            yield ChildRef(_KINDS[kind], name, str(child["metadata"]["uid"]))


def _is_needed(child: JsonObject, busy: set[str], update: str, filters: bool) -> bool:
    """Whether pods of its revision need a child that no object names. busy: old revisions that have pods. filters:
    whether the model has network policies at all."""
    place = place_of(child)
    if place is None:
        return filters and _is_stage_policy(child) and labels(child)[names.LABEL_REVISION] in busy
    # of the revision that is wanted nothing can be left over but a ConfigMap with settings of before
    return place[1] in busy or (place[1] == update and child.get("kind") != _CONFIG_MAP)


def _is_stage_policy(child: JsonObject) -> bool:
    return child.get("kind") == _NETWORK_POLICY and names.LABEL_REVISION in labels(child)


def _mounted(fleet: Fleet, update: str) -> Iterator[str]:
    """Names of the ConfigMaps that pods mount, or would if they were made now."""
    templates = (child["spec"]["template"] for child in fleet.children if _makes_pods(child, update))
    specs: list[JsonObject] = [each.get("spec") or {} for each in (*templates, *fleet.pods)]
    for spec in specs:
        for volume in spec.get("volumes") or ():
            if volume.get("configMap"):
                yield str(volume["configMap"].get("name"))


def _makes_pods(child: JsonObject, update: str) -> bool:
    place = place_of(child)
    return place is not None and place[1] == update and "template" in (child.get("spec") or {})
