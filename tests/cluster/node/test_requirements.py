"""A machine that cannot run a node is told why, and what to do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cluster_node import containerd, requirements


@pytest.fixture(autouse=True)
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def test_another_user_than_root_is_told_the_two_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert requirements.why_not() == "a node needs root: run as root, or have tests use a cluster with nodes"


def test_everything_missing_is_one_line_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containerd, "plugins", lambda: None)
    assert requirements.why_not() == (
        "a node needs more packages: apt-get install --no-install-recommends "
        "conntrack containerd containernetworking-plugins gcc iproute2 iptables mount openssl runc util-linux"
    )


def test_a_kernel_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for program in requirements.PACKAGES:
        _program(tmp_path / program, "echo no namespaces here >&2; exit 1")
    _program(tmp_path / "cc", f"echo {tmp_path}/libc.a")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(containerd, "plugins", lambda: tmp_path)
    assert requirements.why_not().endswith("and this kernel refuses: no namespaces here")


def _program(path: Path, script: str) -> None:
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o755)
