"""kube-proxy: Services as packet rules of the node's network."""

from __future__ import annotations

import json
from pathlib import Path

from cluster_node import addresses
from cluster_node.machine import Owned

NAME = "kube-proxy"


def start(machine: Owned, kube: Path, kubeconfig: Path) -> None:
    config = machine.folder / "proxy.json"
    config.write_text(json.dumps(_config(kubeconfig), indent=2))
    machine.start(NAME, [str(kube), "kube-proxy", f"--config={config}"])


def _config(kubeconfig: Path) -> dict[str, object]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": addresses.PODS,
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "hostnameOverride": addresses.NAME,
        "iptables": {"minSyncPeriod": "100ms"},
        "metricsBindAddress": "127.0.0.1:10249",
        "mode": "iptables",
        "oomScoreAdj": 0,
    }
