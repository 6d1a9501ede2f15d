"""The container runtime of the node: containerd with a root folder, a state and a socket of its own."""

from __future__ import annotations

import json
from pathlib import Path

from cluster_node import addresses, pause
from cluster_node.errors import NodeFailed
from cluster_node.machine import Machine, Owned

SOCKET = "/run/containerd/containerd.sock"
"""Inside the node, where every tool looks for it."""

_NAME = "containerd"
_PLUGINS = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
_START_SECONDS = 120.0


def start(machine: Owned) -> None:
    """Start it with the network's configuration and the pause image; returns when it takes pods.

    Raises:
        NodeFailed: it ended, or did not answer in 120 s.
    """
    folder = machine.folder
    network = folder / "cni"
    network.mkdir()
    (network / "10-pods.conflist").write_text(json.dumps(_network(), indent=2))
    config, temporary = folder / "containerd.toml", folder / "tmp"
    temporary.mkdir()
    config.write_text(_config(folder / "containerd", network, plugins()))
    machine.start(_NAME, ["env", f"TMPDIR={temporary}", "containerd", "--config", str(config)])
    machine.wait_until(_NAME, lambda: _answers(machine), _START_SECONDS)
    load(machine, pause.build(folder))


def load(machine: Machine, archive: Path) -> None:
    """Import the images of an archive in the form of `docker save` or OCI, for pods to use.

    Raises:
        NodeFailed: containerd refuses it.
    """
    machine.run("ctr", "--namespace", "k8s.io", "images", "import", "-", source=archive)


def plugins() -> Path | None:
    """The folder with the CNI plugins that the network uses; None when no folder has them all."""
    return next((folder for folder in _PLUGINS if all((folder / name).exists() for name in NETWORK_PLUGINS)), None)


NETWORK_PLUGINS = ("ptp", "host-local", "portmap", "loopback")


def _answers(machine: Machine) -> bool:
    try:
        machine.run("ctr", "version")
    except NodeFailed:
        return False
    return True


def _config(root: Path, network: Path, plugin_folder: Path | None) -> str:
    """restrict_oom_score_adj: without it no container starts where the machine may not lower its score."""
    assert plugin_folder is not None, "requirements were checked"
    return f"""\
version = 2
root = "{root}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause.IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{plugin_folder}"
  conf_dir = "{network}"
"""


def _network() -> dict[str, object]:
    """A cable from each pod to the node, and routes; no bridge, whose short cuts would pass by kube-proxy's rules."""
    ipam = {"type": "host-local", "ranges": [[{"subnet": addresses.PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {"type": "ptp", "ipMasq": False, "ipam": ipam},
            {"type": "portmap", "capabilities": {"portMappings": True}},
        ],
    }
