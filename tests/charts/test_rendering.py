"""What `helm template` prints for four installations, and what holds for all of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml

import chart_reference
import crd_schema
import helm_chart
from helm_chart import MONITORING, Chart, Manifest, one
from kvferry_operator import options
from kvferry_operator.cli.documents import dump_yaml
from kvferry_operator.desired.settings import NATIVE_SIDECARS_SINCE

FOLDER = Path(__file__).parent
INSTALLATIONS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((FOLDER / "values").glob("*.yaml"))}


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_installation_renders_as_recorded(chart: Chart, name: str, update_golden: bool) -> None:
    objects = chart.objects(INSTALLATIONS[name], *MONITORING)
    for each in objects:
        if "kvferry.json" in each.get("data", {}):
            each["data"]["kvferry.json"] = "files/dashboard.json"
    text = dump_yaml([each for each in objects if each["kind"] != "CustomResourceDefinition"])
    file = FOLDER / "golden" / f"{name}.yaml"
    if update_golden:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    assert text == file.read_text(), "if this is wanted: pytest tests/charts --update-golden"


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_names_and_labels_are_legal_and_common(chart: Chart, name: str) -> None:
    objects = chart.objects(INSTALLATIONS[name], *MONITORING)
    identities = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(set(identities)) == len(identities)
    for each in objects:
        if each["kind"] != "CustomResourceDefinition":
            assert {"app.kubernetes.io/instance", "helm.sh/chart"} <= each["metadata"]["labels"].keys()


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_nothing_can_hang_an_uninstallation(chart: Chart, name: str) -> None:
    """Case 21: no finalizer, no admission hook, and no hook of Helm but the test."""
    for each in chart.objects(INSTALLATIONS[name], *MONITORING):
        assert "finalizers" not in each["metadata"]
        assert "WebhookConfiguration" not in each["kind"]
        assert each["metadata"].get("annotations", {}).get("helm.sh/hook", "test") == "test"


def test_long_release_names_keep_their_suffixes(chart: Chart) -> None:
    values = {"fullnameOverride": "a" * 40, "dashboard": {"enabled": True}}
    for each in chart.objects(values, *MONITORING):
        assert len(each["metadata"]["name"]) <= 63


def test_the_resource_is_that_of_the_project(chart: Chart) -> None:
    crd = one(chart.objects(), "CustomResourceDefinition")
    assert crd["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert crd == crd_schema.crd()


def test_the_resource_differs_by_the_keep_policy_alone(chart: Chart) -> None:
    source = crd_schema.CRD_FILE.read_text()
    kept = chart.text(None, "--show-only", "templates/crd.yaml").splitlines()
    not_kept = chart.text({"crds": {"keep": False}}, "--show-only", "templates/crd.yaml").splitlines()
    policy = ["  annotations:", "    helm.sh/resource-policy: keep"]
    assert [line for line in kept if line not in policy] == not_kept
    # the rest is Helm's note on where a document comes from
    assert "\n".join(not_kept).rstrip().endswith(source.rstrip())


def test_one_replica_is_replaced_and_blocks_no_drain(chart: Chart) -> None:
    alone = chart.objects({"replicas": 1})
    assert one(alone, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert "PodDisruptionBudget" not in kinds(alone)
    assert one(chart.objects(), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_replicas_elect_a_leader_in_the_namespace_of_the_release(chart: Chart) -> None:
    arguments = container(chart.objects({"replicas": 1}))["args"]
    assert {"--leader-elect", f"--lease-namespace={helm_chart.NAMESPACE}"} <= set(arguments)


@pytest.mark.parametrize("name", INSTALLATIONS)
def test_the_operator_takes_its_arguments(chart: Chart, name: str) -> None:
    started = container(chart.objects(INSTALLATIONS[name]))
    scripts = tomllib.loads((crd_schema.ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts.keys() >= set(started["command"])
    chosen = options.parse(started["args"], environment={})
    assert chosen.leader_elect
    assert list(chosen.namespaces) == INSTALLATIONS[name].get("namespaces", [])


def test_an_image_by_digest_has_no_tag(chart: Chart) -> None:
    digest = "sha256:" + "0" * 64
    assert container(chart.objects({"image": {"digest": digest}}))["image"].endswith(f"kvferry-operator@{digest}")


def test_monitors_wait_for_the_prometheus_operator(chart: Chart) -> None:
    asked = {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}
    assert kinds(chart.objects(asked)).isdisjoint({"ServiceMonitor", "PodMonitor"})
    assert kinds(chart.objects(asked, *MONITORING)) >= {"ServiceMonitor", "PodMonitor"}
    assert kinds(chart.objects(None, *MONITORING)).isdisjoint({"ServiceMonitor", "PodMonitor"})


def test_an_environment_variable_is_set_once(chart: Chart) -> None:
    home = [{"name": "HOME", "value": "/elsewhere"}]
    assert container(chart.objects({"extraEnv": home}))["env"] == home


def test_a_field_of_a_security_context_can_be_unset(chart: Chart) -> None:
    values = {"podSecurityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
    pod = one(chart.objects(values), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_cluster_that_is_too_old_is_refused(chart: Chart) -> None:
    major, minor = NATIVE_SIDECARS_SINCE
    chart.text(None, "--kube-version", f"{major}.{minor}.0-vendor.1")
    with pytest.raises(helm_chart.RenderFailed, match="incompatible with Kubernetes"):
        chart.text(None, "--kube-version", f"{major}.{minor - 1}.9")


def test_versions_move_together() -> None:
    described = yaml.safe_load((chart_reference.CHART / "Chart.yaml").read_text())
    project = tomllib.loads((crd_schema.ROOT / "pyproject.toml").read_text())["project"]
    assert described["version"] == described["appVersion"] == project["version"]


def kinds(objects: list[Manifest]) -> set[str]:
    return {each["kind"] for each in objects}


def container(objects: list[Manifest]) -> Manifest:
    found: Manifest = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    return found
