"""The cluster's names: CoreDNS as a program of the node, behind the Service address that pods ask."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from cluster_api import Api
from cluster_node import addresses
from cluster_node.machine import Owned

NAME = "coredns"
_PLACE = 10


def service_address(api_service: str) -> str:
    """The tenth address of the range in which `api_service`, the Service `kubernetes`, has the first."""
    return str(ipaddress.ip_address(api_service) - 1 + _PLACE)


def start(machine: Owned, coredns: Path, kubeconfig: Path) -> None:
    config = machine.folder / "Corefile"
    config.write_text(_corefile(kubeconfig))
    machine.start(NAME, [str(coredns), "-conf", str(config)])


def publish(api: Api, address: str) -> None:
    """Make the Service `kube-dns` and say where it leads: the program runs beside the pods, not in one."""
    name = "kube-dns"
    ports = [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "dns-tcp", "port": 53, "protocol": "TCP"}]
    service = {
        "metadata": {"name": name, "labels": {"k8s-app": name}},
        "spec": {"clusterIP": address, "ports": ports},
    }
    endpoints = {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [addresses.NODE], "conditions": {"ready": True}}],
        "ports": ports,
    }
    api.create("/api/v1/namespaces/kube-system/services", service)
    api.create("/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices", endpoints)


def _corefile(kubeconfig: Path) -> str:
    """Answers live 1 s in caches, so that a test sees a change at once. No name outside the cluster is known."""
    return f""".:53 {{
    bind {addresses.NODE}
    errors
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig {kubeconfig}
        ttl 1
    }}
}}
"""
