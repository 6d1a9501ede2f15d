"""The node leaves a machine as it found it, also when it is killed, and there is one at a time."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import busy_node
from cluster_node import addresses, cgroups, cluster, machine, requirements
from cluster_node.errors import NodeBusy, NodeFailed
from eventually import eventually

pytestmark = pytest.mark.slow

SUPPORT = Path(busy_node.__file__).parent
UNTOUCHED = ("/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/panic", "/proc/sys/net/ipv4/ip_forward")


@pytest.fixture(autouse=True)
def possible() -> None:
    why_not = requirements.why_not()
    if why_not:
        pytest.skip(why_not)


@pytest.fixture
def busy() -> Iterator[psutil.Popen]:
    """Another process with a whole cluster and a pod that has a volume in memory."""
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, busy_node.__file__]
    with psutil.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as owner:
        assert owner.stdout.readline() == "running\n"
        yield owner
        with contextlib.suppress(psutil.NoSuchProcess):
            owner.kill()


def _processes() -> list[int]:
    """Those of the node's pods."""
    found = []
    for process in psutil.process_iter():
        try:
            if f"/{addresses.NAME}/" in Path(f"/proc/{process.pid}/cgroup").read_text():
                found.append(process.pid)
        except OSError:
            continue  # it has just ended
    return found


def _traces() -> list[object]:
    """What the machine shows of a node from outside, apart from empty cgroups."""
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True, timeout=60).stdout
    folder = machine.FOLDERS / addresses.NAME
    return [
        *_processes(),
        *(path for path in (folder, Path("/sys/class/net", addresses.LINK)) if path.exists()),
        *(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if addresses.NAME in line),
        *(line for line in rules.splitlines() if "KUBE-" in line or "CNI-" in line),
    ]


def _tunables() -> list[str]:
    return [Path(name).read_text() for name in UNTOUCHED]


def _no_cgroup_is_left() -> bool:
    return not list(cgroups.ROOT.rglob(addresses.NAME))


def test_a_node_that_ends_in_order_leaves_nothing() -> None:
    tunables = _tunables()
    with cluster.started():
        assert _tunables() == tunables
        assert not any("KUBE-" in str(trace) or "mount" in str(trace) for trace in _traces())
    assert _traces() == []
    assert _no_cgroup_is_left()


def test_a_node_whose_owner_is_killed_is_cleaned_up_by_the_janitor(busy: psutil.Popen) -> None:
    assert _processes()
    busy.kill()
    eventually(lambda: _traces() == [], "nothing of the node is left")
    with machine.started():
        assert _traces()
    assert _no_cgroup_is_left()


def test_a_start_cleans_up_after_a_node_whose_owner_and_janitors_were_killed(busy: psutil.Popen) -> None:
    for process in (*(child for child in busy.children() if "janitor" in " ".join(child.cmdline())), busy):
        process.kill()
    busy.wait(60)
    assert _processes()
    with cluster.started():
        pass
    assert _traces() == []
    assert _no_cgroup_is_left()


def test_a_second_node_is_refused_and_told_who_has_the_first() -> None:
    with machine.started():
        before = _traces()
        with pytest.raises(NodeBusy, match=f"process {os.getpid()} has a node"), machine.started():
            pass
        assert _traces() == before


def test_without_a_node_there_is_nothing_to_load_images_into() -> None:
    with pytest.raises(NodeFailed, match="this machine has no node"):
        machine.running()
