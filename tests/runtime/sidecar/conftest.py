"""Pods for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sidecar_pods import World, world


@pytest.fixture
async def pods(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path) as made:
        yield made
