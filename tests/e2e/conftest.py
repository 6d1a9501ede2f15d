from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import serving


@pytest.fixture(scope="session")
def aggregated_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The engine that every answer is compared with."""
    with serving.aggregated(tmp_path_factory.mktemp("aggregated")) as url:
        yield url


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("instance")
