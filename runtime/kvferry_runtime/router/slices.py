"""From EndpointSlices to the groups that the router may use. Pure.

The slices are those of a model's headless Services, one for each role, revision and pipeline stage, whose labels they
inherit. Such a Service publishes not-ready addresses, so `ready` is always true there; `serving` (the pod's readiness)
and `terminating` tell the truth.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group

LABEL_MODEL = "kvferry.io/model"
_LABEL_ROLE = "kvferry.io/role"
_LABEL_REVISION = "kvferry.io/revision"
_LABEL_STAGE = "kvferry.io/stage"
_ROLES = frozenset(role.value for role in Role)
_FAMILIES = ("IPv4", "IPv6")
_ENGINE_PORT, _PEER_PORT, _SIDECAR_PORT = "http", "peer", "sidecar-http"


class Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    labels: dict[str, str] = {}


class Conditions(msgspec.Struct):
    """Absent means unknown: then `ready` counts as true, `serving` as what `ready` says, `terminating` as false."""

    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class TargetRef(msgspec.Struct):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Endpoint(msgspec.Struct, rename="camel"):
    addresses: list[str] = []
    conditions: Conditions = msgspec.field(default_factory=Conditions)
    hostname: str | None = None
    target_ref: TargetRef | None = None


class Port(msgspec.Struct):
    name: str | None = None
    port: int | None = None


class Slice(msgspec.Struct, rename="camel"):
    """The part of a `discovery.k8s.io/v1` EndpointSlice that is read."""

    metadata: Metadata
    address_type: str = ""
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


@dataclass(frozen=True, slots=True)
class _Member:
    """One pod of one stage, in one address family. ports: by name. key: role, revision, ordinal of its group."""

    key: tuple[str, str, int]
    stage: int
    pod: str
    uid: str
    address: str
    family: str
    ports: dict[str, int]
    serving: bool
    terminating: bool

    def at(self, port: str) -> str | None:
        """`host:port` of a port by its name; None where the pod has none."""
        number = self.ports.get(port)
        host = f"[{self.address}]" if ":" in self.address else self.address
        return None if number is None else f"{host}:{number}"


def groups_of(slices: Iterable[Slice], family: str = "IPv4") -> tuple[Group, ...]:
    """One group for each role, revision and ordinal; ready when a serving pod is there for each of the role's stages.

    A pod that is named by several slices (which move endpoints among each other) counts as the worse of what they say,
    and a pod that took the name of one that is ending counts in its place.

    family: `IPv4` or `IPv6`, of the addresses that are preferred where a pod has both.
    """
    ours = [found for each in slices if (found := _stage_of(each)) is not None]
    stages: dict[tuple[str, str], set[int]] = {}
    for (role, revision, stage), _ in ours:
        stages.setdefault((role, revision), set()).add(stage)
    members = sorted(
        (member for place, each in ours for member in _members(place, each)),
        key=lambda member: (*member.key, member.stage),
    )
    groups = []
    for key, of_group in groupby(members, key=lambda member: member.key):
        pods = [_chosen(list(same), family) for _, same in groupby(of_group, key=lambda member: member.stage)]
        group = _group(key, pods, stages[key[:2]])
        if group is not None:
            groups.append(group)
    return tuple(groups)


def _stage_of(each: Slice) -> tuple[tuple[str, str, int], Slice] | None:
    """Role, revision and stage of a slice; None for one that is not of a stage's Service."""
    labels = each.metadata.labels
    role, revision, stage = (labels.get(name, "") for name in (_LABEL_ROLE, _LABEL_REVISION, _LABEL_STAGE))
    if role not in _ROLES or not revision or not stage.isdecimal() or each.address_type not in _FAMILIES:
        return None
    return (role, revision, int(stage)), each


def _members(place: tuple[str, str, int], each: Slice) -> Iterator[_Member]:
    role, revision, stage = place
    ports = {port.name: port.port for port in each.ports or () if port.name and port.port}
    for endpoint in each.endpoints or ():
        target = endpoint.target_ref
        pod = target.name if target is not None and target.kind == "Pod" else endpoint.hostname or ""
        ordinal = pod.rpartition("-")[2]
        if not ordinal.isdecimal() or not endpoint.addresses:
            continue
        conditions = endpoint.conditions
        serving = conditions.ready is not False if conditions.serving is None else conditions.serving
        yield _Member(
            key=(role, revision, int(ordinal)),
            stage=stage,
            pod=pod,
            uid=target.uid if target is not None else "",
            # the first one alone: others are said to be the same pod, by rules that have changed over time
            address=endpoint.addresses[0],
            family=each.address_type,
            ports=ports,
            serving=serving,
            terminating=bool(conditions.terminating),
        )


def _chosen(same: list[_Member], family: str) -> _Member:
    """The member that stands for one pod's name, out of all mentions of it."""
    incarnations: dict[str, list[_Member]] = {}
    for member in same:
        incarnations.setdefault(member.uid, []).append(member)
    alive = min(incarnations.values(), key=lambda mentions: _order(mentions, family))
    best = min(alive, key=lambda member: (member.family != family, not member.ports, member.address))
    return _Member(
        key=best.key,
        stage=best.stage,
        pod=best.pod,
        uid=best.uid,
        address=best.address,
        family=best.family,
        ports=best.ports,
        serving=all(member.serving for member in alive),
        terminating=any(member.terminating for member in alive),
    )


def _order(mentions: list[_Member], family: str) -> tuple[bool, bool, bool, str]:
    return (
        any(member.terminating for member in mentions),
        not all(member.serving for member in mentions),
        not any(member.family == family for member in mentions),
        mentions[0].uid,
    )


def _group(key: tuple[str, str, int], pods: list[_Member], stages: Collection[int]) -> Group | None:
    """pods: one for each stage that has one, in order. None where the engine cannot be reached at all."""
    role, revision, ordinal = key
    first = pods[0]
    engine = first.at(_ENGINE_PORT) if first.stage == 0 else None
    if engine is None:
        return None
    whole = {pod.stage for pod in pods} == set(range(max(stages) + 1))
    return Group(
        role=role,
        ordinal=ordinal,
        revision=revision,
        ready=whole and all(pod.serving for pod in pods),
        terminating=any(pod.terminating for pod in pods),
        engine=engine,
        sidecars=_all_at(pods, _PEER_PORT),
        pod=first.pod,
        sidecar_http=_all_at(pods, _SIDECAR_PORT),
    )


def _all_at(pods: list[_Member], port: str) -> tuple[str, ...]:
    """Addresses of a port of every stage; none where a stage lacks it."""
    found = [pod.at(port) for pod in pods]
    return tuple(address for address in found if address is not None) if None not in found else ()
