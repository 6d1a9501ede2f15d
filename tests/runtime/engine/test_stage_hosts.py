"""A stage waits for the names of its group, and never goes on with one that has no address (case 37)."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kv_settings import transfer_config
from kvferry_contract import env
from kvferry_contract.config import VERSION, GroupConfig, ModelConfig, Role, RuntimeConfig
from kvferry_contract.split import Split
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.errors import SettingsError, StageUnreachable

HOSTS = ("m-prefill-r-s0-0.m-prefill-r-s0", "m-prefill-r-s1-0.m-prefill-r-s1")
STAGED = RuntimeConfig(
    version=VERSION,
    model=ModelConfig("file:///m", "", "m", "/m"),
    group=GroupConfig("ns", "m", "r", Role.PREFILL, 0, Split(2), Split(1), 1),
    transfer=transfer_config(),
    drain_seconds=1.0,
)


UNKNOWN = socket.gaierror(-2, "Name or service not known")


async def test_a_name_has_its_first_address() -> None:
    async def lookup(host: str) -> Sequence[str]:
        return ["", "fd00::8", "10.0.0.7"]

    assert await stage_hosts.address(HOSTS[0], lookup) == "fd00::8"


@pytest.mark.parametrize(
    ("answer", "said"),
    [(UNKNOWN, "Name or service not known"), ([], "the name has no address"), ([""], "the name has no address")],
    ids=["unknown", "no address", "empty"],
)
async def test_a_name_without_an_address_is_told(answer: Sequence[str] | OSError, said: str) -> None:
    """Case 37: an empty address is never passed on."""

    async def lookup(host: str) -> Sequence[str]:
        if isinstance(answer, OSError):
            raise answer
        return answer

    with pytest.raises(StageUnreachable, match=rf"stage host {HOSTS[0]} has no address \(.*{said}\)"):
        await stage_hosts.address(HOSTS[0], lookup)


async def test_a_name_that_cannot_be_one_is_told() -> None:
    with pytest.raises(StageUnreachable, match=r"stage host a\.\.b has no address \(.*label"):
        await stage_hosts.address("a..b", stage_hosts.system_lookup)


async def test_a_resolver_that_hangs_does_not_hold_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage_hosts, "LOOKUP_SECONDS", 0.05)

    async def lookup(host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(StageUnreachable, match="did not answer"):
        await stage_hosts.address(HOSTS[0], lookup)


@pytest.mark.parametrize("text", ["", "a", "a,", ",b", "a,,b", "a,b,c"])
def test_hosts_must_be_one_for_each_stage(text: str) -> None:
    with pytest.raises(SettingsError, match=f"{env.STAGE_HOSTS}='{text}' names"):
        stage_hosts.read({env.STAGE_HOSTS: text}, stages=2)


def test_hosts_are_read_by_stage() -> None:
    assert stage_hosts.read({env.STAGE_HOSTS: "a-0.a, b-0.b"}, stages=2) == ("a-0.a", "b-0.b")
    assert stage_hosts.read({}, stages=1) == ()


@pytest.mark.slow
def test_the_engine_of_a_stage_ends_with_the_name_that_is_dead(tiny: Path, tmp_path: Path) -> None:
    """Case 37: a non-zero exit that names it."""
    config = tmp_path / "config.json"
    config.write_text(STAGED.to_json())
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    done = subprocess.run(
        [sys.executable, "-m", "kvferry_runtime", "engine", "--model", str(tiny), "--port", "0",
         "--stage-wait-seconds", "5"],
        env={
            "PATH": "", env.CONFIG: str(config), env.KEY_FILE: str(key), env.RING_DIR: str(tmp_path),
            env.GROUP_INDEX: "0", env.STAGE_HOSTS: "localhost,no-such-stage.invalid",
        },
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "is not complete after 5 s: stage 1 cannot be reached: " in done.stderr
    assert "stage host no-such-stage.invalid has no address" in done.stderr
