"""Where the programs of a cluster come from: the order holds, and nothing is built twice or taken half made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import cluster_programs
import go_programs
from cluster_programs import API_SERVER, COMPONENTS, ETCD, MANAGER, SCHEDULER
from go_programs import CannotBuild, Program

PROGRAM = Program("thing", "v1", "./coredns")


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KVFERRY_CACHE", str(tmp_path / "cache"))


def _executable(path: Path, text: str = "#!/bin/sh\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def _go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Path:
    """A `go` that leaves a line in the file for each time it is run; `$7` is where the program goes."""
    calls = tmp_path / "calls"
    _executable(tmp_path / "bin" / "go", f"#!/bin/sh\necho run >> {calls}\n{body}\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return calls


def test_assets_come_before_everything_and_say_what_they_lack(tmp_path: Path) -> None:
    for name in (ETCD, API_SERVER, "kubectl"):
        _executable(tmp_path / "assets" / name)
    for name in (*COMPONENTS, "kubectl"):
        _executable(tmp_path / "path" / name)
    found = cluster_programs.find({"KUBEBUILDER_ASSETS": str(tmp_path / "assets"), "PATH": str(tmp_path / "path")})
    assert found.commands[ETCD] == (str(tmp_path / "assets" / ETCD),)
    assert found.missing == (MANAGER, SCHEDULER)
    assert MANAGER in found.source and SCHEDULER in found.source


def test_assets_without_an_api_server_are_a_mistake_and_not_passed_over(tmp_path: Path) -> None:
    _executable(tmp_path / ETCD)
    with pytest.raises(FileNotFoundError, match="has no kube-apiserver"):
        cluster_programs.find({"KUBEBUILDER_ASSETS": str(tmp_path)})


def test_path_is_taken_when_it_has_everything_and_left_when_it_has_not(tmp_path: Path) -> None:
    _executable(go_programs.KUBE.path)
    for name in (*COMPONENTS, "kubectl"):
        _executable(tmp_path / "path" / name)
    environment = {"PATH": str(tmp_path / "path")}
    assert cluster_programs.find(environment).commands[ETCD] == (str(tmp_path / "path" / ETCD),)
    (tmp_path / "path" / SCHEDULER).unlink()
    found = cluster_programs.find(environment)
    assert found.commands[ETCD] == (str(go_programs.KUBE.path), ETCD)
    assert found.source.startswith("the cache")


def test_two_that_want_a_program_at_once_build_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _go(tmp_path, monkeypatch, 'sleep 0.3; echo made > "$7"')
    threads = [threading.Thread(target=go_programs.built, args=(PROGRAM,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert calls.read_text() == "run\n"
    assert PROGRAM.path.read_text() == "made\n"


def test_a_build_that_fails_says_why_and_leaves_nothing_that_looks_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _go(tmp_path, monkeypatch, 'echo half > "$7"; echo "no such module" >&2; exit 1')
    with pytest.raises(CannotBuild, match="no such module"):
        go_programs.built(PROGRAM)
    assert not PROGRAM.path.exists()


def test_other_sources_are_another_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = PROGRAM.path
    changed = tmp_path / "sources"
    for name in ("go.mod", "go.sum", "coredns/main.go"):
        (changed / name).parent.mkdir(parents=True, exist_ok=True)
        (changed / name).write_bytes((go_programs.SOURCES / name).read_bytes())
    monkeypatch.setattr(go_programs, "SOURCES", changed)
    assert PROGRAM.path == before
    (changed / "go.sum").write_text("")
    assert PROGRAM.path != before
