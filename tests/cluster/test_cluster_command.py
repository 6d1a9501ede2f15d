"""`make cluster` and `make cluster-down`, as a developer uses them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cluster_command
import external_cluster
from cluster_api import Access, Api

pytestmark = pytest.mark.slow


def _run(scratch: Path, *arguments: str, **environment: str) -> str:
    """What the command prints; its cluster lives below `scratch`, beside one that the developer may have."""
    command = [sys.executable, cluster_command.__file__, *arguments]
    kept = {key: value for key, value in os.environ.items() if key not in {"KUBECONFIG", external_cluster.CHOICE}}
    clean = {**kept, "TMPDIR": str(scratch), **environment}
    return subprocess.run(command, env=clean, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout


def test_a_cluster_stays_until_it_is_ended(tmp_path: Path) -> None:
    try:
        (kubeconfig,) = (line.partition("KUBECONFIG=")[2] for line in _run(tmp_path, "up").splitlines()[:1])
        assert Api(Access.of(Path(kubeconfig))).ready()
        assert f"one runs already: export KUBECONFIG={kubeconfig}" in _run(tmp_path, "up")
    finally:
        assert _run(tmp_path, "down") == "cluster: ended\n"
    assert not list(tmp_path.iterdir())
    assert _run(tmp_path, "down") == "cluster: none runs\n"


def test_a_cluster_that_was_chosen_is_used(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.touch()
    said = _run(tmp_path, "up", KUBECONFIG=str(kubeconfig), KVFERRY_TEST_CLUSTER="kubeconfig")
    assert said == f"cluster: tests use the one of KUBECONFIG={kubeconfig}: nothing to start\n"
    assert list(tmp_path.iterdir()) == [kubeconfig]
