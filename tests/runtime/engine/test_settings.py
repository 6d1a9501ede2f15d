import argparse
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from kvferry_contract import env
from kvferry_contract.config import (
    VERSION,
    FailurePolicy,
    GroupConfig,
    Integrity,
    Method,
    ModelConfig,
    OnFallback,
    OverlapMode,
    Role,
    RuntimeConfig,
    TransferConfig,
    TransportKind,
)
from kvferry_contract.split import Split
from kvferry_runtime.engine.reference import settings
from kvferry_runtime.errors import SettingsError

CONFIG = RuntimeConfig(
    version=VERSION,
    model=ModelConfig("pvc://claim/smollm2", "abc", "smollm2", "/models"),
    group=GroupConfig("default", "smollm2", "r1", Role.PREFILL, 0, Split(1), Split(2), 1),
    transfer=TransferConfig(
        transport=TransportKind.TCP,
        on_fallback=OnFallback.WARN,
        method=Method.NONE,
        auto_methods=(Method.NONE,),
        keep_exact_first=16,
        keep_exact_last=64,
        max_relative_error=0.05,
        overlap=OverlapMode.AUTO,
        inflight_chunks=8,
        chunk_bytes=1 << 20,
        buffer_bytes=64 << 20,
        integrity=Integrity.DIGEST,
        failure_policy=FailurePolicy.FAIL,
        timeout_seconds=30.0,
    ),
    drain_seconds=12.0,
)


def read(arguments: str = "", **environ: str) -> settings.EngineSettings:
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    return settings.read(parser.parse_args(arguments.split()), environ)


@pytest.fixture
def pod(tmp_path: Path) -> dict[str, Any]:
    """The environment of a rendered prefill pod."""
    file = tmp_path / "config.json"
    file.write_text(CONFIG.to_json())
    return {
        env.CONFIG: str(file),
        env.ROLE: "prefill",
        env.RING_DIR: "/run/kvferry",
        env.MODEL_DIR: "/local/models",
        env.POD_IP: "127.9.0.2",
    }


def test_a_folder_is_enough() -> None:
    found = read("--model /models/x --port 9000 --threads 2")
    assert found.model == ModelConfig("file:///models/x", "", "x", "/models")
    assert (found.role, found.host, found.port, found.threads) == (Role.AGGREGATED, "127.0.0.1", 9000, 2)
    assert (found.transfer, found.ring_directory) == (None, None)


def test_a_pod_gets_all_from_its_configuration(pod: dict[str, str]) -> None:
    found = read(**pod)
    assert found.model == dataclasses.replace(CONFIG.model, directory="/local/models")
    assert (found.role, found.host, found.failure_policy) == (Role.PREFILL, "127.9.0.2", FailurePolicy.FAIL)
    assert (found.transfer, found.ring_directory) == (CONFIG.transfer, Path("/run/kvferry"))
    assert found.drain_seconds == 12.0


def test_a_pod_of_a_whole_model_has_no_ring(pod: dict[str, str]) -> None:
    found = read(**pod)
    assert (found.split, found.peer_split, found.ring, found.stage) == (Split(1), Split(2), None, 0)


@pytest.fixture
def stage(pod: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """The environment of the last of three stages."""
    group = dataclasses.replace(CONFIG.group, stage=2, split=Split(3, (10, 12, 8)))
    Path(pod[env.CONFIG]).write_text(dataclasses.replace(CONFIG, group=group).to_json())
    key = tmp_path / "key"
    key.write_bytes(bytes(32))
    return {**pod, env.STAGE_HOSTS: "a-0.a,b-0.b,c-0.c", env.GROUP_INDEX: "0", env.KEY_FILE: str(key)}


def test_a_stage_knows_its_place_in_its_group(stage: dict[str, str]) -> None:
    found = read("--stage-wait-seconds 7", **stage)
    assert (found.split, found.stage) == (Split(3, (10, 12, 8)), 2)
    assert found.ring is not None
    assert (found.ring.hosts, found.ring.host, found.ring.join_seconds) == (("a-0.a", "b-0.b", "c-0.c"), "127.9.0.2", 7)


@pytest.mark.parametrize(
    ("name", "value"), [(env.STAGE_HOSTS, "a-0.a,b-0.b"), (env.GROUP_INDEX, "x"), (env.KEY_FILE, "/nowhere/key")]
)
def test_a_stage_without_its_group_is_told_what_lacks(stage: dict[str, str], name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=value):
        read(**{**stage, name: value})


def test_arguments_go_before_the_environment(pod: dict[str, str]) -> None:
    found = read("--role decode --host 127.0.0.9 --served-name other --model hf://a/b", **pod)
    assert (found.role, found.host) == (Role.DECODE, "127.0.0.9")
    assert (found.model.uri, found.model.served_name) == ("hf://a/b", "other")


def test_an_aggregated_engine_needs_no_ring(pod: dict[str, str]) -> None:
    found = read("--role aggregated", **pod)
    assert (found.transfer, found.ring_directory) == (None, None)


@pytest.mark.parametrize(
    ("arguments", "environ", "message"),
    [
        ("", {}, "no model"),
        ("--model /x --port 70000", {}, "--port 70000"),
        ("--model /x --threads 0", {}, "--threads 0"),
        ("--model /x --kv-blocks 0", {}, "--kv-blocks 0"),
        ("--model /x --stage-wait-seconds nan", {}, "--stage-wait-seconds nan: allowed are 0.1 to 86400"),
        ("--model /x --stage-wait-seconds -1", {}, "--stage-wait-seconds -1.0: allowed are 0.1 to 86400"),
        ("--model /x --stage-wait-seconds inf", {}, "--stage-wait-seconds inf: allowed are 0.1 to 86400"),
        ("--model /x", {env.ROLE: "both"}, "KVFERRY_ROLE=both"),
        ("--model /x", {env.CONFIG: "/nowhere/config.json"}, "/nowhere/config.json"),
    ],
)
def test_what_is_wrong_is_named(arguments: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read(arguments, **environ)


def test_a_role_that_moves_kv_needs_a_ring(pod: dict[str, str]) -> None:
    del pod[env.RING_DIR]
    with pytest.raises(SettingsError, match=env.RING_DIR):
        read(**pod)
