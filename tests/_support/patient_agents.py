"""Agents beside scripted sidecars, on a machine that may be busy with something else."""

from __future__ import annotations

import math

import pytest

from kvferry_runtime.agent import loop
from scripted_sidecar import TIMEOUT_S


def patient_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scripted sidecar answers only while its test reads what was said to it: agents take none for lost by that."""
    monkeypatch.setattr(loop, "ATTACH_SECONDS", TIMEOUT_S)
    monkeypatch.setattr(loop, "MISSED_BEATS", math.ceil(TIMEOUT_S / loop.BEAT_SECONDS))
