"""Everything that is decided before a process starts: pods, addresses, command lines, probes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import ports
from kvferry_operator.api import names
from kvferry_operator.local import addresses, containers, hosts, objects
from kvferry_operator.local.containers import Launch
from kvferry_operator.local.pods import Manifest, Pod, pods_of
from kvferry_operator.local.runner import Probes
from kvferry_operator.local.volumes import Places

ROUTER = names.CONTAINER_ROUTER
"""Role of the router's pods."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """launches and probes are by (pod, container)."""

    namespace: str
    name: str
    pods: tuple[Pod, ...]
    addresses: Mapping[str, str]
    launches: Mapping[tuple[str, str], Launch]
    probes: Mapping[tuple[str, str], Probes]

    def local_path(self, path: str) -> Path:
        """Where a path in the first engine's container lies on this machine."""
        for (_, container), launch in self.launches.items():
            if container == names.CONTAINER_ENGINE:
                return Path(launch.mounts.translation.text(path))
        return Path(path)

    @property
    def url(self) -> str:
        """Where to send requests: the first router; empty when there is none."""
        for pod in self.pods:
            if pod.role == ROUTER:
                declared = addresses.ports_of(pod)
                return f"http://{self.addresses[pod.name]}:{declared[0] if declared else ports.ROUTER}"
        return ""


def plan(
    namespace: str,
    name: str,
    manifests: Sequence[Manifest],
    places: Places,
    endpoints: Path,
    shared_key: bytes,
    host: Mapping[str, str],
) -> Deployment:
    """
    endpoints: file that the router reads its groups from. host: this machine's environment.

    Raises:
        Unsupported: the objects ask for something that only a cluster has.
        CannotStart: more pods than there are addresses for.
    """
    pods = pods_of(manifests)
    given = addresses.assign(f"{namespace}/{name}", pods)
    store = objects.store_of(manifests, pods, shared_key)
    machine = containers.Machine(
        addresses=given | hosts.addresses_of(pods, given),
        places=places,
        store=store,
        host=host,
        replaced=containers.endpoints_variable(endpoints),
    )
    launches: dict[tuple[str, str], Launch] = {}
    probes: dict[tuple[str, str], Probes] = {}
    for pod in pods:
        for container in pod.containers:
            key = (pod.name, container.name)
            launches[key] = containers.launch_of(pod, container, machine)
            probes[key] = Probes.of(container, given[pod.name])
    return Deployment(namespace, name, pods, given, launches, probes)
