"""The command line: what it takes, and one clear line for what it does not."""

from __future__ import annotations

import argparse
import asyncio
import socket
from pathlib import Path

import pytest

from kvferry_contract import env
from kvferry_contract.config import FailurePolicy
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.router import command
from kvferry_runtime.router.process import Router
from kvferry_runtime.router.settings import RouterSettings


def _parse(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(["router", *arguments])


def test_address_and_endpoints_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(env.ENDPOINTS, "file:///etc/endpoints.json")
    monkeypatch.setenv(env.POD_IP, "127.9.0.2")
    args = _parse("--served-name", "small")
    assert (args.endpoints, args.host, args.port) == ("file:///etc/endpoints.json", "127.9.0.2", 8080)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no endpoints"),
        (("--endpoints", "kubernetes://a/b"), "no service account"),
        (("--endpoints", "file:///x", "--verify-interval-seconds", "0.5"), "neither 0"),
        (("--endpoints", "file:///x", "--timeout-seconds", "0"), "--timeout-seconds 0"),
        (("--endpoints", "file:///x", "--timeout-seconds", "4000"), "at most 3600"),
        (("--endpoints", "file:///x", "--min-prompt-tokens", "-1"), "--min-prompt-tokens -1"),
        (("--endpoints", "file:///x", "--drain-seconds", "-1"), "--drain-seconds -1"),
        (("--endpoints", "file:///x", "--drain-seconds", "nan"), "--drain-seconds nan"),
        (("--endpoints", "file:///x", "--port", "70000"), "--port 70000"),
    ],
)
def test_wrong_settings_name_the_value_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
) -> None:
    for name in (env.ENDPOINTS, env.POD_IP, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingsError, match=said):
        command.run(_parse("--served-name", "small", *arguments))


def test_an_address_in_use_is_named(tmp_path: Path) -> None:
    async def start(port: int) -> None:
        async with Router(RouterSettings("small", (tmp_path / "endpoints.json").as_uri(), port=port)):
            pytest.fail("started on an address in use")

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"cannot listen on 127.0.0.1:{port}"):
            asyncio.run(start(port))


def test_deadlines_are_nested() -> None:
    settings = RouterSettings("small", "file:///x", timeout_seconds=7, failure_policy=FailurePolicy.RETRY)
    assert settings.transfer_deadline_ms == 7000
    assert 2 * 7 < settings.silence_seconds <= settings.answer_seconds
