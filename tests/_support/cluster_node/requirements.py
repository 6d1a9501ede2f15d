"""What a machine must have for a node to run on it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cluster_node import containerd

PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "containerd-shim-runc-v2": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "unshare": "util-linux",
    "cc": "gcc",
    "openssl": "openssl",
}
"""Program → Debian package."""

_TRIAL = """
mount -t overlay -o lowerdir=lower,upperdir=upper,workdir=work none merged &&
ip link add trial0 type veth peer name trial1 &&
iptables -t nat -A POSTROUTING -m comment --comment trial -j MASQUERADE &&
iptables -A OUTPUT -m conntrack --ctstate NEW -m statistic --mode random --probability 0.5 -j ACCEPT
"""
"""What the node asks of the kernel, in namespaces that end with it."""

_TRIAL_SECONDS = 120


def why_not() -> str:
    """Why no node can run on this machine, and what to do; empty when one can."""
    if os.geteuid() != 0:
        return "a node needs root: run as root, or have tests use a cluster with nodes"
    missing = sorted(set(_missing()))
    if missing:
        return f"a node needs more packages: apt-get install --no-install-recommends {' '.join(missing)}"
    if not Path("/sys/fs/cgroup").is_mount() and not Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "a node needs cgroups at /sys/fs/cgroup"
    return _refused()


def _missing() -> Iterator[str]:
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            yield package
    if containerd.plugins() is None:
        yield "containernetworking-plugins"
    if shutil.which("cc") and not _links_statically():
        yield "libc6-dev"


def _links_statically() -> bool:
    found = subprocess.run(["cc", "-print-file-name=libc.a"], capture_output=True, text=True, timeout=_TRIAL_SECONDS)
    return Path(found.stdout.strip()).is_absolute()


def _refused() -> str:
    """What the kernel says to a trial."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        for name in ("lower", "upper", "work", "merged"):
            Path(folder, name).mkdir()
        trial = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _TRIAL]
        done = subprocess.run(trial, cwd=folder, capture_output=True, text=True, timeout=_TRIAL_SECONDS)
    if done.returncode == 0:
        return ""
    return f"a node needs namespaces, overlayfs, veth and iptables, and this kernel refuses: {done.stderr.strip()}"
