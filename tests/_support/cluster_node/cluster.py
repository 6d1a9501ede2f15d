"""The whole: a control plane and one real node."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import control_plane
from cluster_node import addresses, identity, machine, node, requirements
from cluster_node.errors import NodeFailed
from cluster_node.node import Node
from control_plane import ControlPlane, Network


@dataclass(frozen=True)
class RealCluster:
    """Pods run on `node`. plane: as without one, but reached at an address that pods reach as well."""

    plane: ControlPlane
    node: Node


@contextlib.contextmanager
def started(manifests: Sequence[dict[str, Any]] = ()) -> Iterator[RealCluster]:
    """One cluster, ended on the way out. manifests: CRDs that it is to have from the beginning.

    Raises:
        NodeFailed: this machine cannot, with the reason; or a part did not come up.
        NodeBusy: there is one already.
        CannotRun, CannotBuild: of the control plane.
    """
    why_not = requirements.why_not()
    if why_not:
        raise NodeFailed(why_not)
    with machine.started() as inner:
        certificate, key = identity.make(inner.folder)
        network = Network(addresses.HOST, (certificate, key))
        with control_plane.start(manifests=list(manifests), network=network) as plane:
            begun = time.monotonic()
            joined = node.join(inner, plane.api, node.Credentials(plane.kubeconfig, certificate))
            print(f"cluster: node Ready after {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
            yield RealCluster(plane, joined)
