"""The kubelet: registers the node and runs its pods."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from cluster_node import addresses, containerd
from cluster_node.machine import Owned

NAME = "kubelet"

DEVICE_PLUGINS = Path("/var/lib/kubelet/device-plugins")
"""Inside the node; the kubelet knows no other place."""


@dataclass(frozen=True)
class Settings:
    """kube: the program of the cluster's components. kubeconfig: how it reaches the API server.

    caller: certificate of the only one whom it obeys. cluster_dns: the Service address that pods ask for names.
    """

    kube: Path
    kubeconfig: Path
    caller: Path
    cluster_dns: str


def start(machine: Owned, settings: Settings) -> None:
    root = machine.folder / "kubelet"
    root.mkdir(exist_ok=True)
    resolver = machine.folder / "resolv.conf"
    resolver.write_text("")
    config = machine.folder / "kubelet.json"
    config.write_text(json.dumps(_config(settings, resolver, root), indent=2))
    command = [
        str(settings.kube),
        "kubelet",
        f"--config={config}",
        f"--kubeconfig={settings.kubeconfig}",
        f"--root-dir={root}",
    ]
    command += [f"--hostname-override={addresses.NAME}", f"--node-ip={addresses.NODE}", f"--cert-dir={root}/pki"]
    machine.start(NAME, command)


def _config(settings: Settings, resolver: Path, root: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": addresses.NODE,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": False},
            "x509": {"clientCAFile": str(settings.caller)},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{addresses.NAME}",
        "clusterDNS": [settings.cluster_dns],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": f"unix://{containerd.SOCKET}",
        "enforceNodeAllocatable": [],
        "evictionHard": {},
        "failCgroupV1": False,
        "failSwapOn": False,
        "healthzPort": 0,
        "imageGCHighThresholdPercent": 100,  # an imported image could not be had again
        "nodeStatusUpdateFrequency": "1s",
        "oomScoreAdj": 0,
        "resolvConf": str(resolver),
        "syncFrequency": "10s",
        "volumePluginDir": str(root / "volume-plugins"),
    }
