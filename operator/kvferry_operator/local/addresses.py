"""Each pod's own loopback address, and whether its ports are free there."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.pods import Pod

MAX_PODS = 254
"""One instance has one 127.x.y.0/24 block."""

_LISTEN = "0A"
"""The state LISTEN in /proc/net/tcp."""


def assign(instance: str, pods: Sequence[Pod]) -> dict[str, str]:
    """Pod name to address; the same instance and pods always get the same addresses.

    The block is hashed from the instance's name within 127.64.0.0–127.127.255.0, away from 127.0.0.1 and from
    the 127.0.1.1 and 127.0.0.53 that distributions use.

    Raises:
        CannotStart: more than `MAX_PODS` pods.
    """
    if len(pods) > MAX_PODS:
        raise CannotStart(
            f"{instance} has {len(pods)} pods, local mode has addresses for {MAX_PODS}: "
            "ask for fewer replicas or stages"
        )
    digest = hashlib.sha256(instance.encode()).digest()
    block = f"127.{64 + digest[0] % 64}.{digest[1]}"
    return {pod.name: f"{block}.{host}" for host, pod in enumerate(pods, start=1)}


@dataclass(frozen=True, slots=True)
class Busy:
    """A port that a pod needs and somebody else has."""

    pod: str
    address: str
    port: int
    reason: str


def ports_of(pod: Pod) -> tuple[int, ...]:
    """All TCP ports that the pod's containers declare."""
    declared = (port for container in pod.containers for port in container.spec.get("ports", ()))
    return tuple(int(port["containerPort"]) for port in declared if port.get("protocol", "TCP") == "TCP")


def busy_ports(pods: Iterable[Pod], addresses: Mapping[str, str], way_out: str) -> tuple[Busy, ...]:
    """Those declared ports that cannot be bound at the pods' addresses. way_out: as `check_free`."""
    found: list[Busy] = []
    for pod in pods:
        for port in ports_of(pod):
            reason = _why_not(addresses[pod.name], port, way_out)
            if reason:
                found.append(Busy(pod.name, addresses[pod.name], port, reason))
    return tuple(found)


def check_free(pods: Iterable[Pod], addresses: Mapping[str, str], way_out: str) -> None:
    """
    way_out: what a user can do when another program has a port at one of these addresses.

    Raises:
        CannotStart: names the first port in use, who has it and the way out.
    """
    for busy in busy_ports(pods, addresses, way_out):
        raise CannotStart(f"pod {busy.pod} needs {busy.address}:{busy.port}: {busy.reason}")


def _why_not(address: str, port: int, way_out: str) -> str:
    """Why the port cannot be bound; empty when it can."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return _who(port, way_out)
            return f"{error.strerror}; local mode needs the loopback network 127.0.0.0/8 on the interface lo"
    return ""


def _who(port: int, way_out: str) -> str:
    """Tell a listener on every address (other addresses would not help) from one on just this address."""
    if _listens_everywhere(port):
        return f"a program listens on port {port} of every address (see `ss -ltnp`): stop it, or bind it to 127.0.0.1"
    return f"another program has this port (see `ss -ltnp`): {way_out}"


def _listens_everywhere(port: int) -> bool:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_ = line.split()
            host, _, number = local.partition(":")
            if state == _LISTEN and int(number, 16) == port and not host.strip("0"):
                return True
    return False
