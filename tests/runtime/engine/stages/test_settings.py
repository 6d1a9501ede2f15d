"""What a stage is told about its group."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry_contract import env, ports
from kvferry_contract.config import GroupConfig, Role
from kvferry_contract.split import Split
from kvferry_runtime.engine.stages import settings
from kvferry_runtime.errors import SettingsError

KEY = "0123456789abcdef" * 4


def group(stages: int, stage: int = 0) -> GroupConfig:
    return GroupConfig("ns", "m", "r1", Role.PREFILL, stage, Split(stages), Split(1), 1)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "key").write_text(KEY + "\n")
    return {env.GROUP_INDEX: "3", env.STAGE_HOSTS: "a.svc, b.svc,c.svc", env.KEY_FILE: str(tmp_path / "key")}


def test_a_stage_knows_its_group_and_its_neighbours(environment: dict[str, str]) -> None:
    found = settings.read(environment, group(3, stage=2), "10.0.0.3", 60.0)
    assert found is not None
    assert (found.hosts, found.stages, found.port) == (("a.svc", "b.svc", "c.svc"), 3, ports.STAGE)
    assert (found.previous, found.stage, found.next) == (1, 2, 0)
    assert (found.group, found.host, found.join_seconds) == ("ns/m/r1/prefill/3", "10.0.0.3", 60.0)
    assert found.key == KEY.encode()


def test_a_model_that_is_not_split_has_no_ring() -> None:
    assert settings.read({}, group(1), "10.0.0.3") is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (env.GROUP_INDEX, "", f"{env.GROUP_INDEX}='' is not a number"),
        (env.GROUP_INDEX, "-1", "is not a number"),
        (env.GROUP_INDEX, "²", "is not a number"),
        (env.STAGE_HOSTS, "a,b", "the group has 3 stages"),
        (env.KEY_FILE, "/nowhere/key", "cannot read the shared key /nowhere/key"),
    ],
)
def test_what_is_missing_is_named(environment: dict[str, str], name: str, value: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        settings.read(environment | {name: value}, group(3), "10.0.0.3")
