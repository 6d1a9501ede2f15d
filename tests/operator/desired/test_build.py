"""What every rendered model has in common, whatever the object says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import builders
import crd_schema
import rendered
from builders import MISSING
from kvferry_contract.config import RuntimeConfig
from kvferry_operator.api.parse import parse
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.cli.documents import dump_yaml
from kvferry_operator.desired.build import Groups, build
from kvferry_operator.desired.settings import Settings
from kvferry_operator.errors import SpecInvalid

GOLDEN = Path(__file__).parent / "golden"
EXAMPLES = {path.stem: parse(yaml.safe_load(path.read_text())) for path in crd_schema.EXAMPLES}
LISTS_WITH_KEY = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_renders_as_recorded(name: str, update_golden: bool) -> None:
    file = GOLDEN / f"{name}.yaml"
    text = dump_yaml(build(EXAMPLES[name], rendered.SETTINGS))
    if update_golden:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if this is wanted: pytest tests/operator/desired --update-golden"


@pytest.mark.parametrize("name", EXAMPLES)
def test_objects_are_plain_and_can_be_applied(name: str) -> None:
    objects = build(EXAMPLES[name], rendered.SETTINGS)
    assert json.loads(json.dumps(objects)) == list(objects)
    identities = [(item["kind"], item["metadata"]["name"]) for item in objects]
    assert len(set(identities)) == len(identities)
    for item in objects:
        assert item["metadata"]["namespace"] == "default"
        assert item["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "kvferry-operator"
        _assert_keyed_lists(item)


def _assert_keyed_lists(value: Any) -> None:
    """Server-side apply refuses two items with one key."""
    if isinstance(value, dict):
        for key, child in value.items():
            if key in LISTS_WITH_KEY:
                found = [item[LISTS_WITH_KEY[key]] for item in child]
                assert len(set(found)) == len(found), found
            _assert_keyed_lists(child)
    elif isinstance(value, list):
        for child in value:
            _assert_keyed_lists(child)


@pytest.mark.parametrize("name", EXAMPLES)
def test_selectors_pick_their_own_pods_and_no_others(name: str) -> None:
    objects = build(EXAMPLES[name], rendered.SETTINGS)
    workloads = [item for item in objects if item["kind"] in ("StatefulSet", "Deployment")]
    for workload in workloads:
        selector = workload["spec"]["selector"]["matchLabels"].items()
        picked = [item for item in workloads if selector <= item["spec"]["template"]["metadata"]["labels"].items()]
        assert picked == [workload]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_configuration_reads_back(name: str) -> None:
    for config_map in rendered.of_kind(build(EXAMPLES[name], rendered.SETTINGS), "ConfigMap"):
        config = RuntimeConfig.from_json(config_map["data"]["config.json"])
        labels = config_map["metadata"]["labels"]
        assert config.group.revision == labels["kvferry.io/revision"]
        assert str(config.group.stage) == labels["kvferry.io/stage"]
        assert config_map["immutable"]


def test_each_pod_mounts_the_configuration_that_is_rendered_for_it() -> None:
    model = builders.model({"prefill.parallelism.pipeline": 2})
    maps = {item["metadata"]["name"]: item for item in rendered.of_kind(build(model, rendered.SETTINGS), "ConfigMap")}
    for role, stage in (("prefill", 0), ("prefill", 1), ("decode", 0)):
        volumes = rendered.pod(model, role, stage)["spec"]["volumes"]
        (name,) = (item["configMap"]["name"] for item in volumes if "configMap" in item)
        config = RuntimeConfig.from_json(maps[name]["data"]["config.json"])
        assert (config.group.role, config.group.stage) == (role, stage)


def test_a_stage_is_a_workload_and_an_ordinal_is_a_group() -> None:
    objects = build(builders.model({"prefill.parallelism.pipeline": 3, "prefill.replicas": 2}), rendered.SETTINGS)
    sets = [item for item in rendered.of_kind(objects, "StatefulSet") if "-prefill-" in item["metadata"]["name"]]
    assert [item["spec"]["replicas"] for item in sets] == [2, 2, 2]
    assert [item["metadata"]["name"][-3:] for item in sets] == ["-s0", "-s1", "-s2"]


def test_numbers_of_a_rollout_replace_those_of_the_object() -> None:
    objects = build(builders.model({"prefill.replicas": 4}), rendered.SETTINGS, Groups(prefill=1, decode=None))
    prefill, decode = rendered.of_kind(objects, "StatefulSet")
    assert prefill["spec"]["replicas"] == 1
    assert "replicas" not in decode["spec"]


def test_replicas_are_left_out_where_an_autoscaler_owns_them() -> None:
    # an apply that names them would undo what the autoscaler wrote
    model = builders.model({"decode.scaling.mode": "External"})
    assert "replicas" not in rendered.stateful_set(model, "decode")["spec"]
    assert rendered.stateful_set(model, "prefill")["spec"]["replicas"] == 1


def test_aggregated_mode_has_no_prefill_and_no_transfer() -> None:
    # decode alone computes prompts, and nothing waits for KV
    model = builders.model({"mode": "Aggregated", "prefill": MISSING})
    template = rendered.pod(model, "decode")
    assert set(rendered.containers(template)) == {"engine"}
    assert rendered.env(rendered.containers(template)["engine"])["KVFERRY_ROLE"] == "aggregated"
    assert not [volume for volume in template["spec"]["volumes"] if volume["name"] == "kvferry-ring"]
    assert len(rendered.of_kind(build(model, rendered.SETTINGS), "StatefulSet")) == 1


SPLIT = builders.model({"prefill.parallelism.pipeline": 2})


@pytest.mark.parametrize(
    "model", [EXAMPLES["minimal"], EXAMPLES["vllm"], SPLIT], ids=["minimal", "vllm", "pipeline stages"]
)
def test_without_rdma_pods_pass_the_restricted_standard(model: DisaggregatedModel) -> None:
    workloads = [item for item in build(model, rendered.SETTINGS) if item["kind"] in ("StatefulSet", "Deployment")]
    for workload in workloads:
        template = workload["spec"]["template"]
        spec = template["spec"]
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        for container in rendered.containers(template).values():
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert security["readOnlyRootFilesystem"] is True


@pytest.mark.parametrize("name", EXAMPLES)
def test_only_the_router_may_speak_to_the_api_server(name: str) -> None:
    objects = build(EXAMPLES[name], rendered.SETTINGS)
    for item in objects:
        if item["kind"] == "StatefulSet":
            assert item["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    (rules,) = (item["rules"] for item in rendered.of_kind(objects, "Role"))
    assert rules == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["get", "list", "watch"]}
    ]


def test_all_clashes_are_reported_together() -> None:
    model = builders.model(
        {
            "prefill.template": {"spec": {"restartPolicy": "Never"}},
            "decode.template": {"metadata": {"labels": {"kvferry.io/role": "mine"}}},
            "router.template": {"spec": {"volumes": "none"}},
        }
    )
    with pytest.raises(SpecInvalid) as caught:
        build(model, Settings())
    assert [error.path for error in caught.value.errors] == [
        "spec.prefill.template.spec.restartPolicy",
        "spec.decode.template.metadata.labels[kvferry.io/role]",
        "spec.router.template.spec.volumes",
    ]


def test_a_clash_in_a_role_with_stages_is_reported_once() -> None:
    model = builders.model({"decode.parallelism.pipeline": 4, "decode.template": {"spec": {"restartPolicy": "Never"}}})
    with pytest.raises(SpecInvalid) as caught:
        build(model, Settings())
    assert len(caught.value.errors) == 1
