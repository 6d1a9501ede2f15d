"""Somebody's cluster, kind's for instance, in place of one that tests start: only where they were told to.

`KVFERRY_TEST_CLUSTER=kubeconfig` means the current context of `KUBECONFIG`. The variable is asked for because tests
install a CRD, make namespaces and delete what they made, and `KUBECONFIG` is often set to a cluster that matters.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cluster_programs
from cluster_api import Access, Api
from cluster_handle import Cluster

CHOICE = "KVFERRY_TEST_CLUSTER"
_CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


class WrongChoice(Exception):
    """The environment names a cluster that cannot be used. The message says what to set."""


def chosen(environment: Mapping[str, str]) -> Path | None:
    """The kubeconfig that tests are to use; None: they start a cluster of their own.

    Raises:
        WrongChoice: the variables do not fit together.
    """
    choice, kubeconfig = environment.get(CHOICE, ""), environment.get("KUBECONFIG", "")
    if not choice:
        if kubeconfig:
            print(f"cluster: KUBECONFIG is left alone; {CHOICE}=kubeconfig would use it", file=sys.stderr)
        return None
    if choice != "kubeconfig":
        raise WrongChoice(f"{CHOICE}={choice}: the one value it may have is kubeconfig")
    if not kubeconfig or not Path(kubeconfig).is_file():
        raise WrongChoice(f"{CHOICE}=kubeconfig, but KUBECONFIG={kubeconfig or '(unset)'} names no file")
    return Path(kubeconfig)


@contextlib.contextmanager
def attached(kubeconfig: Path, manifests: list[dict[str, Any]] | None = None) -> Iterator[Cluster]:
    """That cluster, with the CRDs; namespaces that tests made are deleted on the way out, the CRDs stay.

    Raises:
        CannotBuild: there is no kubectl, and it cannot be built.
    """
    kubectl = cluster_programs.kubectl()
    with tempfile.TemporaryDirectory() as folder:
        cluster = _Attached(Api(Access.of(kubeconfig)), kubeconfig, kubectl, Path(folder))
        print(f"cluster: {kubeconfig} ({cluster.url})", file=sys.stderr, flush=True)
        for crd in manifests or []:
            name = crd["metadata"]["name"]
            cluster.api.apply(f"{_CRDS}/{name}", crd)
            cluster.kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=120s")
        try:
            yield cluster
        finally:
            cluster.remove_namespaces()


class _Attached(Cluster):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._made: list[str] = []

    def namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> str:
        self._made.append(super().namespace(prefix, labels))
        return self._made[-1]

    def remove_namespaces(self) -> None:
        for name in self._made:
            self.api.delete(f"/api/v1/namespaces/{name}")
