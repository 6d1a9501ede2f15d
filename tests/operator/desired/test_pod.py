"""The engine's part of a pod."""

from __future__ import annotations

import json
from typing import Any

import pytest

import builders
import rendered

VOLUME = "kvferry-models"


@pytest.mark.parametrize(
    ("model", "source", "read_only"),
    [
        ({"uri": "hf://a/b"}, {"emptyDir": {}}, False),
        ({"uri": "hf://a/b", "cache": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1073741824"}}, False),
        (
            {"uri": "hf://a/b", "cache": {"type": "pvc", "claimName": "c"}},
            {"persistentVolumeClaim": {"claimName": "c"}},
            False,
        ),
        ({"uri": "pvc://claim/x"}, {"persistentVolumeClaim": {"claimName": "claim"}}, True),
        (
            {"uri": "file:///models/x", "cache": {"type": "hostPath", "path": "/data"}},
            {"hostPath": {"path": "/data", "type": "Directory"}},
            True,
        ),
    ],
)
def test_the_model_volume(model: dict[str, Any], source: dict[str, Any], read_only: bool) -> None:
    template = rendered.pod(builders.model({"model": model}))
    assert {"name": VOLUME, **source} in template["spec"]["volumes"]
    mounts = rendered.containers(template)["engine"]["volumeMounts"]
    assert {"name": VOLUME, "mountPath": "/models", "readOnly": read_only} in mounts


def test_the_grace_period_is_longer_than_the_drain() -> None:
    template = rendered.pod(builders.model({"decode.drain.timeoutSeconds": 300}))
    assert template["spec"]["terminationGracePeriodSeconds"] == 315


def test_the_reference_engine_is_told_everything_by_its_configuration() -> None:
    engine = rendered.containers(rendered.pod(builders.model(), "prefill"))["engine"]
    assert engine["command"] == ["kvferry-runtime", "engine"] and "args" not in engine
    assert rendered.env(engine) == {
        "KVFERRY_POD_IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        "KVFERRY_POD_NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "KVFERRY_ROLE": "prefill",
        "KVFERRY_CONFIG": "/etc/kvferry/config.json",
        "KVFERRY_LOG_FORMAT": "json",
        "KVFERRY_MODEL_DIR": "/models",
        "HOME": "/tmp",
        "KVFERRY_RING_DIR": "/run/kvferry",
    }


def test_a_stage_is_told_the_names_of_its_group() -> None:
    """Case 37: by pod names below headless Services that publish addresses that are not ready."""
    model = builders.model({"prefill.parallelism.pipeline": 2})
    found = rendered.env(rendered.containers(rendered.pod(model, "prefill"))["engine"])
    first, second = (rendered.stateful_set(model, "prefill", stage)["spec"]["serviceName"] for stage in (0, 1))
    index = "$(KVFERRY_GROUP_INDEX)"
    assert found["KVFERRY_STAGE_HOSTS"] == f"{first}-{index}.{first},{second}-{index}.{second}"
    assert found["KVFERRY_GROUP_INDEX"] == {
        "fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}
    }
    assert "KVFERRY_STAGE_HOSTS" not in rendered.env(rendered.containers(rendered.pod(model, "decode"))["engine"])


def test_the_token_of_a_gated_model_comes_from_its_secret() -> None:
    engine = rendered.containers(rendered.pod(builders.model({"model.tokenSecretRef": {"name": "hf"}})))["engine"]
    assert rendered.env(engine)["HF_TOKEN"] == {"secretKeyRef": {"name": "hf", "key": "token"}}


@pytest.mark.parametrize(("role", "kv_role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
@pytest.mark.parametrize(
    ("policy", "on_failure"), [("Recompute", "recompute"), ("Retry", "recompute"), ("Fail", "fail")]
)
def test_vllm_gets_our_connector(role: str, kv_role: str, policy: str, on_failure: str) -> None:
    model = builders.model({"engine.type": "vllm", "engine.args": ["--x"], "transfer.failurePolicy": policy})
    parts = rendered.containers(rendered.pod(model, role))
    arguments = parts["engine"]["args"]
    assert json.loads(arguments[arguments.index("--kv-transfer-config") + 1]) == {
        "kv_connector": "KvferryConnector",
        "kv_connector_module_path": "kvferry_runtime.engine.vllm",
        "kv_role": kv_role,
        "kv_load_failure_policy": on_failure,
    }
    assert arguments[-1] == "--x"
    assert arguments[arguments.index("--model") + 1] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    # the connector is copied before the sidecar and the engine start
    assert list(parts) == ["kvferry-connector", "kvferry-sidecar", "engine"]
    assert rendered.env(parts["engine"])["PYTHONPATH"] == "/opt/kvferry"


def test_a_custom_engine_keeps_its_entry_point() -> None:
    model = builders.model({"engine": {"type": "custom", "image": "mine:1", "args": ["serve"], "port": 9000}})
    engine = rendered.containers(rendered.pod(model))["engine"]
    assert engine["image"] == "mine:1" and engine["args"] == ["serve"] and "command" not in engine
    assert engine["ports"] == [{"name": "http", "containerPort": 9000, "protocol": "TCP"}]
    assert engine["startupProbe"]["tcpSocket"] == {"port": "http"}


def test_the_users_variable_wins_over_ours_for_an_engine_of_another_make() -> None:
    model = builders.model({"engine": {"type": "vllm", "env": [{"name": "HF_HOME", "value": "/cache"}]}})
    variables = rendered.containers(rendered.pod(model))["engine"]["env"]
    assert [item["value"] for item in variables if item["name"] == "HF_HOME"] == ["/cache"]


def test_an_older_server_gets_no_hook_that_it_would_refuse() -> None:
    from kvferry_operator.desired.settings import Settings

    engine = rendered.containers(rendered.pod(builders.model(), settings=Settings(server=(1, 29))))["engine"]
    assert "lifecycle" not in engine
