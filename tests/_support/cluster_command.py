"""`make cluster` and `make cluster-down`: a cluster that stays until it is told to go.

A process of its own holds it, as a test session would; `up` starts that process and waits, `down` ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cluster_processes
import control_plane
import crd_schema
import external_cluster
from cluster_handle import Cluster
from cluster_node import cluster as node_cluster
from cluster_node.errors import NodeError
from cluster_processes import CannotRun
from external_cluster import WrongChoice
from go_programs import CannotBuild
from kvferry_operator.local import proc, state
from kvferry_operator.local.errors import AlreadyRunning

_NAME = "standing"
_READY = "cluster: it stays until `make cluster-down`\n"
_STOP_SECONDS = 120.0
_PAUSE_SECONDS = 0.1


def up(node: bool) -> int:
    """Start a cluster, or find the one that runs, and say how it is reached."""
    try:
        theirs = external_cluster.chosen(os.environ)
    except WrongChoice as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    if theirs is not None:
        print(f"cluster: tests use the one of KUBECONFIG={theirs}: nothing to start")
        return 0
    if state.held(_folder()):
        print(f"cluster: one runs already: export KUBECONFIG={_kubeconfig()}")
        return 0
    command = [sys.executable, __file__, "hold", *(["--node"] if node else [])]
    quiet = subprocess.DEVNULL
    holder = subprocess.Popen(
        command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert holder.stderr is not None
    with holder.stderr as reports:
        for line in reports:
            sys.stderr.write(line)
            if line == _READY:
                print(f"export KUBECONFIG={_kubeconfig()}")
                return 0
    return holder.wait() or 1


def down() -> int:
    """End the cluster and wait until nothing of it is left; 0 also when there is none."""
    owner = state.owner_of(_folder())
    if owner is None or not state.held(_folder()):
        print("cluster: none runs")
        return 0
    proc.kill(owner.process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while state.held(_folder()):
        if time.monotonic() > deadline:
            proc.kill(owner.process, signal.SIGKILL)  # its janitor does the rest
            print(f"cluster: it did not end in {_STOP_SECONDS:.0f} s and was killed")
            return 1
        time.sleep(_PAUSE_SECONDS)  # nobody waits for the child of another process, or with a deadline for a lock
    print("cluster: ended")
    return 0


def hold(node: bool) -> int:
    """Be the process that has the cluster, until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with cluster_processes.custody_of(_NAME, _parent()) as processes, _cluster(node) as cluster:
            cluster.api.access.kubeconfig(_kubeconfig())
            sys.stderr.write(_READY)
            sys.stderr.flush()
            with processes.log(_NAME).open("wb") as log:
                os.dup2(log.fileno(), sys.stderr.fileno())  # nobody reads what it says from here on
            while True:
                signal.pause()
    except (AlreadyRunning, CannotBuild, CannotRun, NodeError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


@contextlib.contextmanager
def _cluster(node: bool) -> Iterator[Cluster]:
    crds = [crd_schema.crd()]
    if node:
        with node_cluster.started(manifests=crds) as whole:
            yield whole.plane
    else:
        with control_plane.start(manifests=crds) as plane:
            yield plane


def _parent() -> Path:
    return Path(tempfile.gettempdir())


def _folder() -> Path:
    return cluster_processes.folders(_parent()) / _NAME


def _kubeconfig() -> Path:
    return _folder() / "kubeconfig"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="cluster", description=__doc__)
    parser.add_argument("what", choices=("up", "down", "hold"), help="hold is what up starts")
    parser.add_argument("--node", action="store_true", help="with a real node; needs root, on Linux")
    parsed = parser.parse_args(arguments)
    match parsed.what:
        case "up":
            return up(parsed.node)
        case "down":
            return down()
        case _:
            return hold(parsed.node)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
