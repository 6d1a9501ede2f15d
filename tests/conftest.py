from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings

import control_plane as planes
import crd_schema
import external_cluster
import kubelet_stand_in
from cluster_handle import Cluster

os.environ["TRITON_INTERPRET"] = "1"
"""Kernels for GPUs run on host tensors in tests; Triton looks at this when it is imported."""
os.environ.setdefault("UCX_NET_DEVICES", "lo")
"""Else UCX may take a network that other tests on this machine make and remove."""

settings.register_profile(
    "kvferry",
    # explaining an example traces every line, which takes longer than a test may: what failed would not be told at all
    phases=[phase for phase in Phase if phase is not Phase.explain],
    print_blob=True,
    # how long an example takes is the machine's affair
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("kvferry")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what is rendered over the golden files")


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def own_logs() -> Iterator[None]:
    """What a test sets up for logs, as each command does, ends with it: its standard error is closed afterwards."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    for handler in list(root.handlers):
        if handler not in before and type(handler) is logging.StreamHandler:
            root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture(scope="session")
def own_cluster() -> Iterator[planes.ControlPlane]:
    """A control plane with our CRD, complete or not, one for the whole session."""
    with planes.start(manifests=[crd_schema.crd()]) as plane:
        yield plane


@pytest.fixture(scope="session")
def control_plane(own_cluster: planes.ControlPlane) -> planes.ControlPlane:
    """A real control plane with our CRD, one for the whole session: tests take namespaces of their own."""
    if own_cluster.missing:
        pytest.skip(f"no {' and no '.join(own_cluster.missing)}: unset KUBEBUILDER_ASSETS to have them built")
    return own_cluster


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The cluster that the environment chooses, else our own: for tests of the API server alone."""
    kubeconfig = external_cluster.chosen(os.environ)
    if kubeconfig is None:
        yield request.getfixturevalue("own_cluster")
        return
    with external_cluster.attached(kubeconfig, [crd_schema.crd()]) as attached:
        yield attached


@pytest.fixture
async def kubelet(control_plane: planes.ControlPlane) -> AsyncIterator[kubelet_stand_in.KubeletStandIn]:
    """One node, `played`, with two RDMA devices; its pods become ready unless the test sets a policy."""
    async with kubelet_stand_in.playing(control_plane.api.access, {"played": {"rdma/hca": "2"}}) as playing:
        yield playing
