"""What differs between engine types: image, command, variables, probes, and how our connector gets in."""

from __future__ import annotations

import json
from typing import Any

from kvferry_contract import env
from kvferry_contract.config import FailurePolicy, Role
from kvferry_operator.api import defaults
from kvferry_operator.api.types import EngineType, EnvVar
from kvferry_operator.desired import security, termination
from kvferry_operator.desired.stage import Manifest, Stage

CONNECTOR_DIR = "/opt/kvferry"
VOLUME_CONNECTOR = "kvferry-connector"
VOLUME_SHM = "kvferry-shm"
CONNECTOR_CONTAINER = "kvferry-connector"

VLLM_NOT_SERVED = "spec.engine.type vllm is rendered, not served yet: its connector is not built"

_START_SECONDS = 1800
"""A large model may take half an hour to load; from then on a hang is noticed within a minute."""


def image(stage: Stage) -> str:
    """The object's image, else that of the installation."""
    engine, images = stage.model.spec.engine, stage.settings.images
    return engine.image or (images.vllm if engine.type is EngineType.VLLM else images.engine)


def command(stage: Stage) -> Manifest:
    """`command` and `args`. A custom image keeps its own entry point and gets the user's arguments only."""
    engine = stage.model.spec.engine
    if engine.type is EngineType.REFERENCE:
        return {"command": ["kvferry-runtime", "engine"], **({"args": list(engine.args)} if engine.args else {})}
    if engine.type is EngineType.VLLM:
        return {
            "command": ["python3", "-m", "vllm.entrypoints.openai.api_server"],
            "args": [*_vllm_arguments(stage), *engine.args],
        }
    return {"args": list(engine.args)} if engine.args else {}


def variables(stage: Stage) -> list[Manifest]:
    """The engine's own variables, then the user's, which win where both name one."""
    own = []
    if stage.model.spec.engine.type is EngineType.VLLM:
        own.append({"name": "PYTHONPATH", "value": CONNECTOR_DIR})
        own.append({"name": "HF_HOME", "value": f"$({env.MODEL_DIR})"})
    users = [variable(item) for item in stage.model.spec.engine.env]
    named = {item["name"] for item in users}
    return [item for item in own if item["name"] not in named] + users


def variable(item: EnvVar) -> Manifest:
    if item.value_from is not None:
        return {"name": item.name, "valueFrom": dict(item.value_from)}
    return {"name": item.name, "value": item.value}


def probes(stage: Stage) -> Manifest:
    """Start with patience, then notice a hang. A custom engine is only asked whether it listens."""
    engine = stage.model.spec.engine
    healthy: dict[str, Any]
    ready: dict[str, Any]
    if engine.type is EngineType.CUSTOM:
        healthy = ready = {"tcpSocket": {"port": "http"}}
    elif engine.type is EngineType.VLLM:
        healthy = ready = {"httpGet": {"path": "/health", "port": "http"}}
    else:
        healthy = {"httpGet": {"path": "/healthz", "port": "http"}}
        ready = {"httpGet": {"path": "/readyz", "port": "http"}}
    return {
        "startupProbe": {**healthy, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": _START_SECONDS // 2},
        "livenessProbe": {**healthy, "periodSeconds": 10, "timeoutSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**ready, "periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2},
    }


def connector_containers(stage: Stage) -> list[Manifest]:
    """An init container that puts our connector where an engine of another make finds it."""
    if stage.model.spec.engine.type is not EngineType.VLLM or not stage.transfers:
        return []
    return [
        {
            "name": CONNECTOR_CONTAINER,
            "image": stage.settings.images.runtime,
            "imagePullPolicy": stage.settings.pull_policy.value,
            "command": ["kvferry-runtime", "install-connector", "--target", CONNECTOR_DIR],
            **termination.MESSAGE,
            "securityContext": security.container(),
            "volumeMounts": [{"name": VOLUME_CONNECTOR, "mountPath": CONNECTOR_DIR}],
        }
    ]


def volumes(stage: Stage) -> list[Manifest]:
    if stage.model.spec.engine.type is not EngineType.VLLM:
        return []
    shared_memory = {"name": VOLUME_SHM, "emptyDir": {"medium": "Memory"}}
    return [{"name": VOLUME_CONNECTOR, "emptyDir": {"sizeLimit": "1Gi"}}, shared_memory]


def mounts(stage: Stage) -> list[Manifest]:
    """vLLM's workers speak through /dev/shm, where the 64 MiB of a container are not enough."""
    if stage.model.spec.engine.type is not EngineType.VLLM:
        return []
    return [
        {"name": VOLUME_CONNECTOR, "mountPath": CONNECTOR_DIR, "readOnly": True},
        {"name": VOLUME_SHM, "mountPath": "/dev/shm"},  # noqa: S108 (a mount point, not a file of ours)
    ]


def _vllm_arguments(stage: Stage) -> list[str]:
    spec = stage.model.spec
    scheme, _, rest = spec.model.uri.partition("://")
    arguments = [
        "--model",
        rest if scheme == "hf" else defaults.model_directory(spec),
        "--served-model-name",
        defaults.served_name(stage.model),
        "--host",
        f"$({env.POD_IP})",
        "--port",
        str(spec.engine.port),
        "--tensor-parallel-size",
        str(stage.spec.parallelism.tensor),
    ]
    if scheme == "hf":
        arguments += ["--revision", defaults.model_revision(spec)]
    if stage.transfers:
        arguments += ["--kv-transfer-config", json.dumps(_connector(stage), sort_keys=True, separators=(",", ":"))]
    return arguments


def _connector(stage: Stage) -> Manifest:
    recompute = stage.model.spec.transfer.failure_policy is not FailurePolicy.FAIL
    return {
        "kv_connector": "KvferryConnector",
        "kv_connector_module_path": "kvferry_runtime.engine.vllm",
        "kv_role": "kv_producer" if stage.role is Role.PREFILL else "kv_consumer",
        "kv_load_failure_policy": "recompute" if recompute else "fail",
    }
