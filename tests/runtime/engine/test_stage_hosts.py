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
from kvferry_contract.config import GroupConfig, ModelConfig, Role, RuntimeConfig
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.errors import SettingsError, StageUnreachable

HOSTS = ("m-prefill-r-s0-0.m-prefill-r-s0", "m-prefill-r-s1-0.m-prefill-r-s1")
FIRST_SECONDS = 20
PAUSE = 0.001
STAGED = RuntimeConfig(
    version=1,
    model=ModelConfig("file:///m", "", "m", "/m"),
    group=GroupConfig("ns", "m", "r", Role.PREFILL, 0, 2, 1),
    transfer=transfer_config(),
    drain_seconds=1.0,
)


class Resolver:
    """Knows each name from its n-th question on."""

    def __init__(self, knows_after: dict[str, int], before: Sequence[str] | OSError) -> None:
        self.asked = dict.fromkeys(knows_after, 0)
        self._knows_after = knows_after
        self._before = before

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked[host] += 1
        if self.asked[host] > self._knows_after[host]:
            return ["10.0.0.7" if host == HOSTS[0] else "fd00::8"]
        if isinstance(self._before, OSError):
            raise self._before
        return self._before


@pytest.mark.parametrize(
    "before", [socket.gaierror(-2, "Name or service not known"), [], [""]], ids=["unknown", "no address", "empty"]
)
async def test_a_name_that_comes_late_is_awaited(before: Sequence[str] | OSError) -> None:
    """Case 37: it fails for twenty questions, a second apart in production, and then works."""
    lookup = Resolver({HOSTS[0]: FIRST_SECONDS, HOSTS[1]: 0}, before)
    found = await stage_hosts.addresses(HOSTS, lookup, wait_seconds=30, pause_seconds=PAUSE)
    assert found == ("10.0.0.7", "fd00::8")
    assert lookup.asked == {HOSTS[0]: FIRST_SECONDS + 1, HOSTS[1]: 1}


async def test_a_name_that_never_comes_is_told() -> None:
    """Case 37."""
    lookup = Resolver({HOSTS[0]: 0, HOSTS[1]: 10**9}, socket.gaierror(-2, "Name or service not known"))
    with pytest.raises(StageUnreachable, match=rf"stage host {HOSTS[1]} has no address after 0\.05 s \(.*not known\)"):
        await stage_hosts.addresses(HOSTS, lookup, wait_seconds=0.05, pause_seconds=PAUSE)


async def test_a_resolver_that_hangs_does_not_hold_the_start() -> None:
    async def lookup(_host: str) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(StageUnreachable, match="did not answer"):
        await stage_hosts.addresses(HOSTS, lookup, wait_seconds=0.05, pause_seconds=PAUSE)


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
    hosts = "localhost,no-such-stage.invalid"
    done = subprocess.run(
        [sys.executable, "-m", "kvferry_runtime", "engine", "--model", str(tiny), "--port", "0",
         "--stage-wait-seconds", "0.5"],
        env={"PATH": "", env.CONFIG: str(config), env.STAGE_HOSTS: hosts, env.RING_DIR: str(tmp_path)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "stage host no-such-stage.invalid has no address after 0.5 s" in done.stderr
