"""Agents for the tests of this folder."""

from __future__ import annotations

import pytest

from patient_agents import patient_agents


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient_agents(monkeypatch)
