"""A node of a cluster: containerd, kubelet, kube-proxy and names, in a machine of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import go_programs
from cluster_api import Api, Refused
from cluster_node import addresses, containerd, dns, kubelet, proxy
from cluster_node.machine import Owned

_READY_SECONDS = 300.0


@dataclass(frozen=True)
class Credentials:
    """kubeconfig: of an administrator, for the node's programs. caller: the API server's certificate as a client."""

    kubeconfig: Path
    caller: Path


class Node:
    """machine: where its programs run. start_kubelet: the last of them, without which it is not Ready."""

    def __init__(self, machine: Owned, api: Api, start_kubelet: Callable[[], None]) -> None:
        self.machine = machine
        self._api = api
        self._start_kubelet = start_kubelet

    def load(self, archive: Path) -> None:
        """Import the images of an archive (`docker save` or OCI); pods use them with `imagePullPolicy: Never`.

        Raises:
            NodeFailed: containerd refuses it.
        """
        containerd.load(self.machine, archive)

    def object(self) -> dict[str, Any]:
        """What the API server knows of it."""
        found: dict[str, Any] = self._api.get(f"/api/v1/nodes/{addresses.NAME}")
        return found

    def restart_kubelet(self) -> None:
        """Kill the kubelet and start another; returns when that has reported. Pods go on."""
        self.machine.kill(kubelet.NAME)
        before = self._heard()
        self._start_kubelet()
        self.machine.wait_until(kubelet.NAME, lambda: self._heard() != before, _READY_SECONDS)

    def start(self) -> None:
        """Start the kubelet; returns when the node is Ready.

        Raises:
            NodeFailed: the kubelet ended, or 300 s went by.
        """
        self._start_kubelet()
        self.machine.wait_until(kubelet.NAME, self._ready, _READY_SECONDS)

    def _heard(self) -> str:
        """When the kubelet renewed its lease last, which each does first; empty before."""
        try:
            lease = self._api.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{addresses.NAME}")
        except Refused:
            return ""
        return str(lease["spec"]["renewTime"])

    def _ready(self) -> bool:
        try:
            conditions = self.object()["status"].get("conditions", [])
        except Refused:
            return False  # it has not registered yet
        return any(found["type"] == "Ready" and found["status"] == "True" for found in conditions)


def join(machine: Owned, api: Api, credentials: Credentials) -> Node:
    """Make `machine` a node of the cluster; returns when it is Ready.

    Raises:
        NodeFailed: a part did not come up.
        CannotBuild: the programs are not there and cannot be built.
    """
    kube, kubeconfig = go_programs.built(go_programs.KUBE), credentials.kubeconfig
    cluster_dns = dns.service_address(api.get("/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"])
    containerd.start(machine)
    proxy.start(machine, kube, kubeconfig)
    dns.start(machine, go_programs.built(go_programs.COREDNS), kubeconfig)
    dns.publish(api, cluster_dns)
    settings = kubelet.Settings(kube, kubeconfig, credentials.caller, cluster_dns)
    node = Node(machine, api, functools.partial(kubelet.start, machine, settings))
    node.start()
    return node
