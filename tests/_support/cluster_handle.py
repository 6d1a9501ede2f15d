"""What tests do with a cluster, whoever runs it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster_api import Access, Api
from eventually import eventually

_KUBECTL_SECONDS = 300.0
_TOKEN_SECONDS = 36_000


class Cluster:
    """api: as an administrator. kubeconfig: the same, as a file. folder: scratch, for further kubeconfigs."""

    missing: Sequence[str] = ()
    """Components that it lacks."""

    def __init__(self, api: Api, kubeconfig: Path, kubectl: Sequence[str], folder: Path) -> None:
        self.api = api
        self.kubeconfig = kubeconfig
        self.folder = folder
        self._kubectl = kubectl

    @property
    def url(self) -> str:
        return self.api.access.url

    def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints, as an administrator.

        Raises:
            AssertionError: it failed; with what it said.
        """
        command = [*self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=_KUBECTL_SECONDS)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def namespace(self, prefix: str = "test", labels: Mapping[str, str] | None = None) -> str:
        """A new one, in which pods can be made at once (where there is a controller manager)."""
        metadata = {"generateName": f"{prefix}-", "labels": dict(labels or {})}
        name = str(self.api.create("/api/v1/namespaces", {"metadata": metadata})["metadata"]["name"])
        if not self.missing:
            eventually(lambda: self.has_service_account(name, "default"), f"the default service account of {name}")
        return name

    def has_service_account(self, namespace: str, name: str) -> bool:
        listed = self.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts")
        return any(item["metadata"]["name"] == name for item in listed["items"])

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """A kubeconfig with a token of the service account, for hours; the account is made if it is not there."""
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        if not self.has_service_account(namespace, name):
            self.api.create(accounts, {"metadata": {"name": name}})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        wanted = request | {"spec": {"expirationSeconds": _TOKEN_SECONDS}}
        token = str(self.api.create(f"{accounts}/{name}/token", wanted)["status"]["token"])
        access = Access(self.url, self.api.access.authority, token)
        return access.kubeconfig(self.folder / f"{namespace}.{name}.kubeconfig")
