"""A release on a real control plane, as an administrator makes it; and models beside it, with nobody to act on them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

import crd_schema
from cluster_api import Refused
from control_plane import ControlPlane
from eventually import eventually
from helm_chart import RELEASE, Manifest

CRD_PATH = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd_schema.crd()['metadata']['name']}"


@dataclass(frozen=True)
class Release:
    """helm: the program. home: where it keeps what it caches."""

    helm: Path
    plane: ControlPlane
    home: Path
    namespace: str

    def __call__(self, command: str, *more: str | Path) -> str:
        """What Helm prints.

        Raises:
            subprocess.CalledProcessError: with `stderr`.
        """
        places = {f"HELM_{kind}_HOME": str(self.home) for kind in ("CACHE", "CONFIG", "DATA")}
        where = ["--namespace", self.namespace, "--kubeconfig", self.plane.kubeconfig]
        done = subprocess.run(
            [self.helm, command, RELEASE, *more, *where],
            env={**os.environ, **places},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            raise subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
        return done.stdout


def models(namespace: str) -> str:
    """Where the API server keeps the models of a namespace."""
    return f"/apis/kvferry.io/v1alpha1/namespaces/{namespace}/disaggregatedmodels"


def create_model(plane: ControlPlane, namespace: str, method: str = "none") -> Manifest:
    """The smallest model, as stored; waits until the API server serves the resource.

    Raises:
        Refused: it does not accept the model.
    """
    made: Manifest = yaml.safe_load((crd_schema.ROOT / "examples" / "minimal.yaml").read_text())
    made["spec"]["transfer"] = {"compression": {"method": method}}

    def stored() -> Manifest:
        try:
            answer: Manifest = plane.api.create(models(namespace), made, "?fieldValidation=Strict")
        except Refused as refused:
            if refused.code != 404:
                raise
            return {}
        return answer

    return eventually(stored, "the resource is served")


def gone(plane: ControlPlane, path: str) -> None:
    """Wait until nothing is there any more."""

    def absent() -> bool:
        try:
            plane.api.get(path)
        except Refused as refused:
            return refused.code == 404
        return False

    eventually(absent, f"{path} is gone")


def delete(plane: ControlPlane, path: str) -> None:
    """Delete, if it is there, and wait until it is gone."""
    try:
        plane.api.delete(path)
    except Refused as refused:
        if refused.code != 404:
            raise
    gone(plane, path)
