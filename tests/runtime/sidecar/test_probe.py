"""`kvferry-runtime probe`: findings, never errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvferry_contract.config import TransportKind
from kvferry_runtime.__main__ import main
from kvferry_runtime.errors import TransportUnavailable
from kvferry_runtime.sidecar.probe import probe
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.memory import MemoryNetwork


async def test_what_works_and_what_does_not(tmp_path: Path) -> None:
    def make_transport(kind: TransportKind) -> Transport:
        if kind is TransportKind.AUTO:
            raise TransportUnavailable("no library")
        return MemoryNetwork().transport()

    found = await probe(make_transport, "127.0.0.1", tmp_path)
    transports = found["transports"]
    assert transports["shm"] == {"usable": True, "lanes": ["memory:process"], "message": ""}
    assert not transports["rdma"]["usable"] and "memory:process" in transports["rdma"]["message"]
    assert transports["auto"] == {"usable": False, "lanes": [], "message": "no library"}
    assert found["cpus"] >= 1 and found["ring"]["free_bytes"] > 0


def test_the_command_prints_json_and_finds_a_missing_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--ring-dir", "/no/such/folder"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ring"]["message"] == "No such file or directory"
    assert found["transports"]["tcp"]["usable"]


def test_the_sidecar_command_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVFERRY_CONFIG", "/no/such/file")
    assert main(["sidecar"]) == 2
    assert "KVFERRY_CONFIG" in capsys.readouterr().err
