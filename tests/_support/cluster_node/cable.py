"""The one connection between this machine and the node: a pair of virtual interfaces and a route to the pods."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cluster_node import addresses
from cluster_node.errors import NodeFailed


def plug(process: int) -> None:
    """Lay it from this machine into the network namespace of `process`, and bring both ends up.

    Raises:
        NodeFailed: the machine refuses, or uses these addresses for something else.
    """
    _refuse_taken(addresses.NODE)
    _refuse_taken(addresses.PODS.split("/")[0])
    inside = ["nsenter", f"--net=/proc/{process}/ns/net", "--"]
    _run("ip", "link", "add", addresses.LINK, "type", "veth", "peer", "name", "eth0", "netns", str(process))
    _run("ip", "address", "add", f"{addresses.HOST}/{addresses.PREFIX}", "dev", addresses.LINK)
    _run("ip", "link", "set", addresses.LINK, "up")
    _run(*inside, "ip", "address", "add", f"{addresses.NODE}/{addresses.PREFIX}", "dev", "eth0")
    _run(*inside, "ip", "link", "set", "lo", "up")
    _run(*inside, "ip", "link", "set", "eth0", "up")
    _run(*inside, "ip", "route", "add", "default", "via", addresses.HOST)
    _run("ip", "route", "add", addresses.PODS, "via", addresses.NODE)


def unplug() -> None:
    """Remove it, if it is there: the end of one interface is the end of both."""
    if Path("/sys/class/net", addresses.LINK).exists():
        subprocess.run(["ip", "link", "delete", addresses.LINK], check=False, capture_output=True, timeout=60)


def _refuse_taken(address: str) -> None:
    """Only the default route may lead to an address of ours."""
    route = subprocess.run(
        ["ip", "-4", "route", "show", "to", "match", address], capture_output=True, text=True, timeout=60
    )
    taken = [line for line in route.stdout.splitlines() if not line.startswith("default")]
    if taken:
        raise NodeFailed(f"the node needs the address {address}, which this machine uses: {taken[0].strip()}")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise NodeFailed(f"{' '.join(command)}: {done.stderr.strip()}")
