from __future__ import annotations

from collections.abc import Iterator

import pytest

import crd_schema
from cluster_node import cluster, python_image, requirements
from cluster_node.cluster import RealCluster
from node_pods import Pods


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """A control plane and a real node with the test image, anew for each file: another file may start its own."""
    why_not = requirements.why_not()
    if why_not:
        pytest.skip(why_not)
    with cluster.started(manifests=[crd_schema.crd()]) as real:
        real.node.load(python_image.build(tmp_path_factory.mktemp("image")))
        yield real


@pytest.fixture
def pods(real_cluster: RealCluster) -> Iterator[Pods]:
    """Pods in a namespace of this test; what they hold of the node is free afterwards."""
    pods = Pods(real_cluster.plane, real_cluster.plane.namespace())
    yield pods
    pods.delete_all()
