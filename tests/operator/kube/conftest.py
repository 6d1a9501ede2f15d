from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import control_plane as planes
from kvferry_operator.kube.client import Cluster, connect


@pytest.fixture
async def cluster(control_plane: planes.ControlPlane) -> AsyncIterator[Cluster]:
    """As an administrator."""
    async with connect(control_plane.kubeconfig) as connected:
        yield connected


@pytest.fixture
def namespace(control_plane: planes.ControlPlane) -> str:
    return control_plane.namespace("kube")
