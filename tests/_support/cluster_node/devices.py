"""Devices that the node offers: the test plugin beside the kubelet, in the node's machine."""

from __future__ import annotations

import sys
from pathlib import Path

from cluster_node.machine import Owned
from device_plugin import plugin

_SUPPORT = Path(plugin.__file__).parents[1]


def offer(machine: Owned, resource: str, count: int) -> None:
    """From soon on the node has `count` devices of `resource`, such as rdma/hca. Once for each resource."""
    command = [sys.executable, "-m", plugin.__name__, "--resource", resource, "--count", str(count)]
    machine.start(_name(resource), ["env", f"PYTHONPATH={_SUPPORT}", *command])


def told(machine: Owned, resource: str) -> int:
    """How many kubelets were told of the devices of `resource`, one after the other."""
    return (machine.folder / f"{_name(resource)}.log").read_text().count(plugin.TOLD)


def _name(resource: str) -> str:
    return f"device-plugin-{resource.replace('/', '-')}"
