"""A real control plane on this machine, without nodes: etcd, API server, controller manager and scheduler.

    with control_plane.start() as plane:
        ...  # plane.kubeconfig, plane.api, plane.audit()

It is ready in seconds. Tests share one (the fixture `control_plane`) and each takes namespaces of its own.
"""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import audit_log
import cluster_processes
import cluster_programs
import component_commands as commands
import reserved_ports
from cluster_api import Access, Api, Refused
from cluster_handle import Cluster
from cluster_processes import Processes
from cluster_programs import API_SERVER, ETCD, MANAGER, SCHEDULER, Programs
from component_commands import Network, Places

__all__ = ["ControlPlane", "Network", "start"]

_READY_SECONDS = 300.0
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


class ControlPlane(Cluster):
    """One that runs, of which tests can read the audit log and break parts."""

    def __init__(self, programs: Programs, processes: Processes, places: Places, admin_token: str) -> None:
        access = Access(places.url, places.certificate.read_text(), admin_token)
        super().__init__(Api(access), access.kubeconfig(places.kubeconfig), programs.kubectl, places.folder)
        self.admin_token = admin_token
        self.missing = programs.missing
        self._programs = programs
        self._processes = processes
        self._places = places

    def audit_position(self) -> int:
        """Where the audit log ends now, for `audit`."""
        return self._places.audit_log.stat().st_size

    def audit(self, since: int = 0, user: str = "") -> list[audit_log.Request]:
        """The requests after a position, of one user or of all. A service account is system:serviceaccount:NS:NAME."""
        requests = audit_log.read(self._places.audit_log, since)
        return [request for request in requests if user in ("", request.user)]

    def kill_api_server(self) -> None:
        self._processes.kill(API_SERVER)

    def start_api_server(self) -> None:
        """Start it, with the same address, certificate and tokens as before, and wait until it is ready."""
        self._processes.start(API_SERVER, [*self._programs.commands[API_SERVER], *commands.api_server(self._places)])
        self._processes.wait_until(API_SERVER, self.api.ready, _READY_SECONDS)

    def pause_etcd(self) -> None:
        """From now on no request is answered that needs storage; `resume_etcd` ends it."""
        self._processes.signal(ETCD, signal.SIGSTOP)

    def resume_etcd(self) -> None:
        self._processes.signal(ETCD, signal.SIGCONT)

    def install(self, crd: dict[str, Any]) -> None:
        """Make the CRD; its objects can be made once it `serves` them."""
        self.api.create(_CRDS, crd)

    def serves(self, crd: dict[str, Any]) -> bool:
        """Whether objects of the CRD can be made."""
        spec = crd["spec"]
        try:
            found = self.api.get(f"/apis/{spec['group']}/{spec['versions'][0]['name']}")
        except Refused:
            return False  # the first of its group: the path is new
        return any(resource["name"] == spec["names"]["plural"] for resource in found["resources"])


@contextlib.contextmanager
def start(
    programs: Programs | None = None,
    manifests: list[dict[str, Any]] | None = None,
    network: Network | None = None,
    switched_off: Sequence[str] = (),
) -> Iterator[ControlPlane]:
    """One control plane, ended on the way out.

    manifests: CRDs that it is to have from the beginning. switched_off: APIs that it does not serve, like `policy/v1`.

    Raises:
        CannotRun, CannotBuild: with the reason.
    """
    chosen = programs or cluster_programs.find()
    print(f"cluster: control plane from {chosen.source}", file=sys.stderr, flush=True)
    where = network or Network()
    started = time.monotonic()
    with (
        cluster_processes.custody("control-plane") as processes,
        reserved_ports.reserved(2) as storage,
        reserved_ports.reserved(1, where.address) as served,
    ):
        places = Places(processes.folder, where, *storage, *served, switched_off=tuple(switched_off))
        plane = _begin(chosen, processes, places)
        _complete(plane, chosen, processes, places, manifests or [])
        print(f"cluster: ready after {time.monotonic() - started:.1f} s at {plane.url}", file=sys.stderr, flush=True)
        yield plane


def _begin(programs: Programs, processes: Processes, places: Places) -> ControlPlane:
    """etcd and the API server."""
    admin_token, manager_token = secrets.token_hex(16), secrets.token_hex(16)
    places.tokens.touch(mode=0o600)
    users = (("admin", admin_token), ("control-plane", manager_token))
    places.tokens.write_text("".join(f'{token},{name},{name},"system:masters"\n' for name, token in users))
    places.audit_policy.write_text(json.dumps(_AUDIT_POLICY))
    processes.start(ETCD, [*programs.commands[ETCD], *commands.etcd(places)])
    processes.start(API_SERVER, [*programs.commands[API_SERVER], *commands.api_server(places)])
    processes.wait_until(API_SERVER, lambda: _written(places), _READY_SECONDS)
    plane = ControlPlane(programs, processes, places, admin_token)
    processes.wait_until(API_SERVER, plane.api.ready, _READY_SECONDS)
    Access(plane.url, plane.api.access.authority, manager_token).kubeconfig(places.manager_kubeconfig)
    return plane


def _written(places: Places) -> bool:
    """Whether the API server has made its certificate."""
    certificate = places.certificate
    return certificate.exists() and certificate.read_text().endswith("-----END CERTIFICATE-----\n")


def _complete(
    plane: ControlPlane, programs: Programs, processes: Processes, places: Places, crds: list[dict[str, Any]]
) -> None:
    """CRDs first: the garbage collector, which asks every 30 s what kinds there are, then knows them at once."""
    for crd in crds:
        plane.install(crd)
        processes.wait_until(API_SERVER, functools.partial(plane.serves, crd), _READY_SECONDS)
    for name, flags in ((MANAGER, commands.manager(places)), (SCHEDULER, commands.scheduler(places))):
        if name in programs.commands:
            processes.start(name, [*programs.commands[name], *flags])
    if MANAGER in programs.commands:
        processes.wait_until(MANAGER, lambda: plane.has_service_account("default", "default"), _READY_SECONDS)
