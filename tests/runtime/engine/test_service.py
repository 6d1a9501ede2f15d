"""What an engine's process holds is let go of however it ends."""

from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvferry_runtime.engine.reference import service, settings
from kvferry_runtime.errors import SettingsError


class Agent(SimpleNamespace):
    """Counts how often it was closed."""

    closed = 0

    def close(self, timeout: float) -> None:
        self.closed += 1


@pytest.mark.parametrize("where", ["the model", "the engine"])
async def test_an_agent_is_closed_where_no_engine_came_to_be(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SettingsError(f"{where} is wrong")

    agent = Agent()
    monkeypatch.setattr(service, "make_agent", lambda *_: agent)
    monkeypatch.setattr(service, "_on_signals", lambda do: None)
    monkeypatch.setattr(service, "resolve", fail if where == "the model" else lambda model: tmp_path)
    monkeypatch.setattr(service, "build_engine", fail)
    parser = argparse.ArgumentParser()
    settings.add_arguments(parser)
    chosen = settings.read(parser.parse_args(["--model", str(tmp_path), "--port", "0"]), {})
    with pytest.raises(SettingsError, match=f"{where} is wrong"):
        await service.serve(chosen)
    assert agent.closed == 1
