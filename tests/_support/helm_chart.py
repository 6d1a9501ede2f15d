"""The chart as Helm renders it, without a cluster."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import go_programs
from chart_reference import CHART

MONITORING = ("--api-versions", "monitoring.coreos.com/v1")
"""Arguments for a cluster that has the Prometheus operator."""

NAMESPACE = "kvferry-system"
RELEASE = "kvferry"
KUBERNETES = "1.34.4"

Manifest = dict[str, Any]
Values = Mapping[str, Any]


class RenderFailed(AssertionError):
    """Helm refused. The message is what a user would read."""


def helm() -> Path:
    """The program: from PATH, else from the cache, where it is built if need be.

    Raises:
        CannotBuild: no place has it, and it cannot be built.
    """
    found = shutil.which("helm")
    return Path(found) if found else go_programs.built(go_programs.HELM)


@dataclass(frozen=True)
class Rule:
    """One permission. namespace: empty for the whole cluster. resource: with its subresource, `pods/proxy`."""

    namespace: str
    group: str
    resource: str
    verb: str


@dataclass(frozen=True)
class Chart:
    """helm: the program. folder: the chart, or a changed copy of it."""

    helm: Path
    folder: Path = CHART

    def text(self, values: Values | None = None, *more: str) -> str:
        """What `helm template` prints for `values`; `more` are further arguments.

        Raises:
            RenderFailed: Helm refused.
        """
        return _run(self, "template", yaml.safe_dump(values or {}), "--kube-version", KUBERNETES, *more)

    def objects(self, values: Values | None = None, *more: str) -> list[Manifest]:
        """The same as objects, the pod of `helm test` among them."""
        return [found for found in yaml.load_all(self.text(values, *more), yaml.CSafeLoader) if found]

    def notes(self, kubeconfig: Path, values: Values | None = None) -> str:
        """What `helm install` tells its user, without installing anything."""
        unowned = "--take-ownership"  # the cluster may have our resource from elsewhere
        more = ("--dry-run=client", unowned, "--kubeconfig", str(kubeconfig))
        return _run(self, "install", yaml.safe_dump(values or {}), *more).partition("NOTES:\n")[2]


@cache
def _run(chart: Chart, command: str, values: str, *more: str) -> str:
    """What Helm prints; the same question is asked once."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        done = subprocess.run(
            [chart.helm, command, RELEASE, chart.folder, "--namespace", NAMESPACE, "--values", file.name, *more],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    if done.returncode:
        raise RenderFailed(done.stderr)
    return done.stdout


def one(objects: list[Manifest], kind: str, name: str = "") -> Manifest:
    """The one object of a kind, or of a kind and name."""
    found = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} {kind} {name}"
    return found[0]


def granted(objects: list[Manifest], account: str) -> set[Rule]:
    """Every permission that the bindings among `objects` give to the service account."""
    return set(_granted(objects, account))


def _granted(objects: list[Manifest], account: str) -> Iterator[Rule]:
    for binding in objects:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        subject = {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        if subject not in binding["subjects"]:
            continue
        namespace = binding["metadata"].get("namespace", "")
        for role in objects:
            here = role["kind"] == binding["roleRef"]["kind"] and role["metadata"]["name"] == binding["roleRef"]["name"]
            if here and role["metadata"].get("namespace", "") == namespace:
                for rule in role["rules"]:
                    for group in rule["apiGroups"]:
                        for resource in rule["resources"]:
                            for verb in rule["verbs"]:
                                yield Rule(namespace, group, resource, verb)
