"""What a sidecar is told, and what it says when that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from kv_settings import transfer_config
from kvferry_contract import env
from kvferry_contract.config import VERSION, FailurePolicy, GroupConfig, ModelConfig, Role, RuntimeConfig
from kvferry_contract.split import Split
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.sidecar.settings import SidecarSettings, slots_for


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    config = RuntimeConfig(
        version=VERSION,
        model=ModelConfig(uri="file:///m", revision="", served_name="m", directory="/m"),
        group=GroupConfig("ns", "m", "r1", Role.DECODE, 2, Split(3), Split(1), 1),
        transfer=transfer_config(failure_policy=FailurePolicy.RETRY),
        drain_seconds=12,
    )
    (tmp_path / "config.json").write_text(config.to_json())
    (tmp_path / "key").write_text("k" * 32 + "\n")
    return {
        env.CONFIG: str(tmp_path / "config.json"),
        env.KEY_FILE: str(tmp_path / "key"),
        env.RING_DIR: str(tmp_path),
        env.POD_IP: "127.0.0.9",
        env.POD_NAME: "m-decode-r1-s2-0",
        env.ROLE: "decode",
    }


def test_everything_is_read(environment: dict[str, str], tmp_path: Path) -> None:
    settings = SidecarSettings.from_environment(environment)
    assert settings.group == "ns/m-decode-r1-s2-0"
    assert (settings.host, settings.peer_port, settings.http_port) == ("127.0.0.9", 7400, 7401)
    assert settings.key == b"k" * 32
    assert settings.retries == 1
    assert settings.ring_directory == tmp_path
    assert settings.drain_seconds == 12


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda e: e.pop(env.POD_IP), [env.POD_IP, "address of this pod"]),
        (lambda e: e.update({env.ROLE: "prefill"}), [env.ROLE, "'prefill'", "'decode'"]),
        (lambda e: e.update({env.CONFIG: "/nowhere.json"}), ["/nowhere.json", env.CONFIG]),
        (lambda e: Path(e[env.CONFIG]).write_text("{}"), ["version", "same release"]),
        (lambda e: Path(e[env.CONFIG]).write_bytes(b"\xff"), ["UTF-8"]),
        (lambda e: e.update({env.KEY_FILE: "/nowhere"}), ["/nowhere", "Secret", env.KEY_FILE]),
        (lambda e: Path(e[env.KEY_FILE]).write_text("short\n"), ["5 bytes", "openssl rand"]),
    ],
)
def test_what_is_wrong_is_named_with_the_way_out(
    environment: dict[str, str], spoil: Callable[[dict[str, str]], object], words: list[str]
) -> None:
    spoil(environment)
    with pytest.raises(SettingsError) as error:
        SidecarSettings.from_environment(environment)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_slots_fill_the_buffer_and_no_more() -> None:
    assert slots_for(256 << 20, 1 << 20) == 255
    with pytest.raises(SettingsError, match=r"transfer\.bufferBytes"):
        slots_for(1 << 20, 1 << 20)
    with pytest.raises(SettingsError, match=r"transfer\.overlap\.chunkBytes"):
        slots_for(1 << 20, 5000)
