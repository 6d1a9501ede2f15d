"""Rendered objects with fake containers, in the shape that `desired.build` gives them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml

from kvferry_contract import env
from kvferry_operator.api import names

FAKE = str(Path(__file__).with_name("fake_container.py"))
INSTANCE = f"m-{os.getpid()}"
"""Addresses follow from names, and several test processes may run on one machine at the same time."""
Manifest = dict[str, Any]


def container(name: str, port: int = 0, **more: Any) -> Manifest:
    """A container that serves probes on `port`; extra fields replace or add to the rendered ones."""
    arguments = [name, *(["--port", str(port)] if port else []), *more.pop("arguments", [])]
    probes: Manifest = {}
    if port:
        patient = {"periodSeconds": 1, "timeoutSeconds": 30}  # a slow answer is no bad one
        healthy = {"httpGet": {"path": "/healthz", "port": "http"}, **patient, "failureThreshold": 120}
        ready = {"httpGet": {"path": "/readyz", "port": port}, **patient, "failureThreshold": 1}
        probes = {
            "ports": [{"name": "http", "containerPort": port}],
            "startupProbe": healthy,
            "readinessProbe": ready,
        }
    return {
        "name": name,
        "command": [sys.executable, "-I", "-S", FAKE],
        "args": arguments,
        "env": [
            {"name": env.POD_IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            {"name": env.POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "JOURNAL", "value": "/journal/journal"},
            {"name": "TMPDIR", "value": "/scratch"},
            *more.pop("env", []),
        ],
        "volumeMounts": [
            # not at /tmp: these tests, and what they run, may lie there themselves
            {"name": "tmp", "mountPath": "/scratch"},
            {"name": "journal", "mountPath": "/journal"},
            *more.pop("volumeMounts", []),
        ],
        **probes,
        **more,
    }


def stateful_set(
    name: str,
    containers: list[Manifest],
    init: list[Manifest] | None = None,
    role: str = "decode",
    replicas: int = 1,
    stage: int = 0,
    journal: Path | None = None,
    **spec: Any,
) -> Manifest:
    labels = {names.LABEL_ROLE: role, names.LABEL_REVISION: "ab12cd34", names.LABEL_STAGE: str(stage)}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 60,
                    "initContainers": init or [],
                    "containers": containers,
                    "volumes": [
                        {"name": "tmp", "emptyDir": {}},
                        {"name": "journal", **({"hostPath": {"path": str(journal)}} if journal else {"emptyDir": {}})},
                        *spec.pop("volumes", []),
                    ],
                    **spec,
                },
            },
        },
    }


def sidecar(name: str, **more: Any) -> Manifest:
    return {**container(name, **more), "restartPolicy": "Always"}


def router(containers: list[Manifest], journal: Path | None = None) -> Manifest:
    return {**stateful_set("m-router", containers, role="router", journal=journal), "kind": "Deployment"}


def deployment(journal: Path | None = None) -> list[Manifest]:
    """One prefill pod, one decode pod, each with a sidecar, and a router.

    journal: folder for a file `journal` to which every container appends what happens to it.
    """
    roles = [
        stateful_set(
            f"m-{role}-ab12cd34-s0",
            [container("engine", port=8000)],
            [sidecar("kvferry-sidecar", port=7401)],
            role=role,
            journal=journal,
        )
        for role in ("prefill", "decode")
    ]
    endpoints = [{"name": env.ENDPOINTS, "value": "kubernetes://default/m"}]
    return [*roles, router([container("router", port=8080, env=endpoints)], journal)]


def staged_role(role: str, stages: int, replicas: int = 1, journal: Path | None = None) -> list[Manifest]:
    """A role whose groups are `stages` pods, each with an engine and a sidecar."""
    return [
        stateful_set(
            f"m-{role}-ab12cd34-s{stage}",
            [container("engine", port=8000)],
            [sidecar("kvferry-sidecar", port=7401)],
            role=role,
            replicas=replicas,
            stage=stage,
            journal=journal,
        )
        for stage in range(stages)
    ]


def as_yaml(manifest: Manifest) -> str:
    return yaml.safe_dump(manifest)
