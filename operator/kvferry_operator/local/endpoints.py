"""From pods and their readiness to the groups that the router may use. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby

from kvferry_contract import ports
from kvferry_contract.config import Role
from kvferry_contract.endpoints import Group
from kvferry_operator.api import names
from kvferry_operator.local.pods import Pod


def groups_of(pods: Iterable[Pod], addresses: Mapping[str, str], ready: Mapping[str, bool]) -> tuple[Group, ...]:
    """One group for each role, revision and ordinal: its stages in order; ready when all of them are."""
    members = sorted(
        (pod for pod in pods if pod.role in (Role.PREFILL, Role.DECODE)), key=lambda pod: (*pod.group, pod.stage)
    )
    groups: list[Group] = []
    for (role, revision, ordinal), found in groupby(members, key=lambda pod: pod.group):
        stages = list(found)
        groups.append(
            Group(
                role=role,
                ordinal=ordinal,
                revision=revision,
                ready=all(ready[pod.name] for pod in stages),
                terminating=False,
                engine=f"{addresses[stages[0].name]}:{_engine_port(stages[0])}",
                sidecars=tuple(f"{addresses[pod.name]}:{ports.SIDECAR_PEER}" for pod in stages),
                pod=stages[0].name,
                sidecar_http=tuple(f"{addresses[pod.name]}:{ports.SIDECAR_HTTP}" for pod in stages),
            )
        )
    return tuple(groups)


def _engine_port(pod: Pod) -> int:
    declared = pod.container(names.CONTAINER_ENGINE).spec.get("ports", ())
    return next((int(port["containerPort"]) for port in declared if port.get("name") == "http"), ports.ENGINE)
