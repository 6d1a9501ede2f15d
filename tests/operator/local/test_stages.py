"""Pipeline stages in local mode: a pod each, told of each other by address; a group ends and comes back as a whole."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import local_objects as objects
from kvferry_contract import endpoints, env, paths, ports
from kvferry_contract.config import Role
from kvferry_contract.split import Split
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Settings
from kvferry_operator.local import addresses, bond, deployment, preflight, proc, session, table, volumes
from kvferry_operator.local.errors import CannotStart
from kvferry_operator.local.objects import splits_of
from kvferry_operator.local.record import ContainerRecord, Phase, PodRecord, Record
from kvferry_operator.local.supervisor import Supervisor
from local_objects import INSTANCE

SECONDS = 120.0
"""Against hanging; a slow machine takes a good part of it."""


def rendered(prefill: int = 2, decode: int = 2, **spec: Any) -> list[dict[str, Any]]:
    """The objects of a model with so many stages."""
    model: dict[str, Any] = {
        "apiVersion": "kvferry.io/v1alpha1",
        "kind": "DisaggregatedModel",
        "metadata": {"name": "m"},
        "spec": {
            "model": {"uri": "file:///models/x", "cache": {"type": "hostPath", "path": "/var/lib/models"}},
            "engine": {"type": "reference"},
            "prefill": {"replicas": 1, "parallelism": {"pipeline": prefill}},
            "decode": {"replicas": 2, "parallelism": {"pipeline": decode}},
            "transfer": {"bufferBytes": "63Mi"},
            **spec,
        },
    }
    if spec.get("mode") == "Aggregated":
        del model["spec"]["prefill"]
    return list(build(parse(model), Settings()))


def planned(manifests: list[dict[str, Any]], folder: Path) -> deployment.Deployment:
    places = volumes.Places(folder / "state", folder / "shm", folder / "logs", folder / "models")
    return deployment.plan("default", "m", manifests, places, folder / "endpoints.json", b"shared", {})


def test_each_stage_is_told_the_addresses_of_its_own_group_and_the_key(tmp_path: Path) -> None:
    plan = planned(rendered(prefill=3, decode=2), tmp_path)
    told = 0
    for pod in plan.pods:
        if pod.role == "router":
            continue
        launch = plan.launches[pod.name, "engine"]
        group = sorted((each for each in plan.pods if each.group == pod.group), key=lambda each: each.stage)
        hosts = launch.environment[env.STAGE_HOSTS].split(",")
        assert hosts == [plan.addresses[each.name] for each in group]
        assert launch.environment[env.GROUP_INDEX] == str(pod.ordinal)
        assert hosts[pod.stage] == launch.environment[env.POD_IP]
        assert ports.STAGE in addresses.ports_of(pod)
        volumes.create(launch.mounts)
        assert Path(launch.environment[env.KEY_FILE]).read_bytes() == b"shared"
        config = json.loads((launch.mounts.folders[paths.CONFIG_DIR].path / paths.CONFIG_FILE).read_text())
        assert config["group"]["stage"] == pod.stage
        told += 1
    assert told == 3 + 2 * 2
    assert len(set(plan.addresses.values())) == len(plan.pods)


def test_every_stage_has_a_ring_that_needs_memory(tmp_path: Path) -> None:
    limits = volumes.memory_limits(planned(rendered(prefill=3, decode=2), tmp_path).pods)
    assert len(limits) == 3 + 2 * 2
    with pytest.raises(CannotStart, match=r"rings of 7 pods need 448 MiB"):
        preflight.check_memory(limits, 400 << 20)


def test_the_split_of_each_role_is_known_from_its_pods_configuration() -> None:
    assert splits_of(rendered(prefill=3, decode=1)) == {Role.PREFILL: Split(3), Role.DECODE: Split(1)}
    assert splits_of(rendered(1, 2, mode="Aggregated")) == {Role.DECODE: Split(2)}


@pytest.mark.parametrize(
    ("config", "splits", "message"),
    [
        (
            '{"num_hidden_layers": 3}',
            {Role.DECODE: Split(4)},
            r"spec\.decode\.parallelism: 4 pipeline stages .* 3 layers",
        ),
        (
            '{"text_config": {"num_hidden_layers": 3}}',
            {Role.PREFILL: Split(9)},
            r"spec\.prefill\.parallelism: 9 .* 3 la",
        ),
        ('{"num_hidden_layers": 3}', {Role.PREFILL: Split(2, (2, 2))}, r"4 layers in all"),
    ],
)
def test_a_split_that_the_model_does_not_have_is_refused_before_anything_starts(
    tmp_path: Path, config: str, splits: dict[Role, Split], message: str
) -> None:
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CannotStart, match=message):
        preflight.check_split(tmp_path, splits)


@pytest.mark.parametrize("config", ['{"num_hidden_layers": 3}', "{}", "[]", "no JSON", '{"num_hidden_layers": "x"}'])
def test_a_split_that_fits_or_cannot_be_checked_passes(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    preflight.check_split(tmp_path, {Role.DECODE: Split(3)})


async def test_a_model_with_too_few_layers_starts_nothing(tmp_path: Path) -> None:
    model = tmp_path / "models" / "x"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"num_hidden_layers": 2}')
    (model / "model.safetensors").touch()
    options = session.Options(
        models=tmp_path / "models", model_path="/models/x", base=tmp_path / "run", memory=_folder(tmp_path / "shm")
    )
    with pytest.raises(CannotStart, match=r"spec\.prefill\.parallelism: 3 pipeline stages for a model of 2 layers"):
        async with session.running("default", INSTANCE, rendered(prefill=3), options, lambda _: None):
            pass
    assert not options.base.exists()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


async def until(condition: Callable[[], bool], seconds: float = SECONDS) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.02)


def processes(supervisor: Supervisor, container: str) -> dict[str, proc.Identity | None]:
    """By pod; None for one that does not run."""
    return {
        pod.name: proc.identity(item.pid) if item.pid else None
        for pod in supervisor.record.pods
        for item in pod.containers
        if item.name == container
    }


async def test_a_group_that_loses_an_engine_ends_and_comes_back_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine of the other stage hangs: it does not notice that its group is gone."""
    monkeypatch.setattr(bond, "GRACE_SECONDS", 0.3)
    manifests = [*objects.staged_role("prefill", 2, replicas=2), *objects.staged_role("decode", 1)]
    options = session.Options(models=None, base=tmp_path / "run", memory=_folder(tmp_path / "shm"))
    said: list[str] = []
    async with session.running("default", INSTANCE, manifests, options, said.append) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        engines, sidecars = processes(supervisor, "engine"), processes(supervisor, "kvferry-sidecar")
        lost = engines["m-prefill-ab12cd34-s1-0"]
        assert lost is not None
        proc.kill(lost, signal.SIGKILL)

        def groups() -> dict[tuple[str, int], bool]:
            text = (options.base / f"default-{INSTANCE}" / "endpoints.json").read_text()
            return {(group.role, group.ordinal): group.ready for group in endpoints.load(text)}

        whole = {("prefill", 0): True, ("prefill", 1): True, ("decode", 0): True}
        await until(lambda: groups() == whole | {("prefill", 0): False})
        await until(lambda: groups() == whole)
        after = processes(supervisor, "engine")
        assert {pod for pod, process in after.items() if process != engines[pod]} == {
            "m-prefill-ab12cd34-s0-0",
            "m-prefill-ab12cd34-s1-0",
        }
        assert processes(supervisor, "kvferry-sidecar") == sidecars
        assert {pod.restarts for pod in supervisor.record.pods} == {0, 1}
    assert sum("m-prefill-ab12cd34-s0-0 engine: has not ended" in line for line in said) == 1


async def test_no_engine_of_a_group_starts_while_an_old_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bond, "GRACE_SECONDS", 2.0)  # longer than the back-off
    options = session.Options(models=None, base=tmp_path / "run", memory=_folder(tmp_path / "shm"))
    said: list[str] = []
    async with session.running(
        "default", INSTANCE, objects.staged_role("decode", 3), options, said.append
    ) as supervisor:
        await asyncio.wait_for(supervisor.wait_ready(), SECONDS)
        old = processes(supervisor, "engine")
        first = next(iter(old.values()))
        assert first is not None
        proc.kill(first, signal.SIGKILL)
        await until(lambda: not supervisor.record.ready)
        mixed = 0
        async with asyncio.timeout(SECONDS):
            while not supervisor.record.ready:
                now = processes(supervisor, "engine")
                fresh = any(process not in (None, old[pod]) for pod, process in now.items())
                mixed += fresh and any(process is not None and process == old[pod] for pod, process in now.items())
                await asyncio.sleep(0.02)
        assert mixed == 0
        assert not any(process in old.values() for process in processes(supervisor, "engine").values())
    assert sum("has not ended" in line for line in said) == 2, "each of the two that hung is told of once"


async def test_a_group_of_which_one_engine_is_ending_can_be_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bond, "GRACE_SECONDS", 600.0)
    options = session.Options(models=None, base=tmp_path / "run", memory=_folder(tmp_path / "shm"))
    async with asyncio.timeout(SECONDS):
        manifests = objects.staged_role("decode", 2)
        async with session.running("default", INSTANCE, manifests, options, lambda _: None) as supervisor:
            await supervisor.wait_ready()
            lost = processes(supervisor, "engine")["m-decode-ab12cd34-s1-0"]
            assert lost is not None
            proc.kill(lost, signal.SIGKILL)
            await until(lambda: not supervisor.record.ready)
    assert not options.base.exists()


def _pod(role: str, group: int, stage: int, stages: int, ready: bool = True) -> PodRecord:
    container = ContainerRecord("engine", Phase.RUNNING, ready, 0, 0, "")
    return PodRecord(f"m-{role}-s{stage}-{group}", role, "127.64.0.1", (container,), group, stage, stages)


def test_groups_and_stages_are_shown_where_there_are_stages() -> None:
    pods = (_pod("prefill", 0, 0, 2), _pod("prefill", 0, 1, 2, False), _pod("decode", 0, 0, 1), _pod("router", 0, 0, 1))
    staged = Record("default", "m", 1, "", "/logs", pods)
    assert table.groups(staged) == "groups ready: prefill 0 of 1, decode 1 of 1"
    head, *rows = (line.split() for line in table.pods(staged, {}))
    assert head[:5] == ["POD", "ROLE", "GROUP", "STAGE", "ADDRESS"]
    assert [row[2:6] for row in rows[:2]] == [["0", "0", "of", "2"], ["0", "1", "of", "2"]]
    assert rows[2][2:4] == ["0", "-"] and rows[3][2:4] == ["-", "-"]
    plain = Record("default", "m", 1, "", "/logs", pods[2:])
    assert table.groups(plain) == ""
    assert "STAGE" not in table.pods(plain, {})[0]
    assert Record.from_json(staged.to_json()) == staged
