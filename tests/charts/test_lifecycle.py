"""Install, upgrade and uninstall on a real control plane, where no pod runs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import chart_reference
import control_plane as planes
import crd_schema
import rendered
from chart_reference import CHART
from cluster_api import Access, Api, Refused
from control_plane import ControlPlane
from eventually import eventually
from helm_chart import Chart, Manifest
from helm_release import CRD_PATH, Release, create_model, delete, gone, models
from kvferry_operator.api.parse import parse
from kvferry_operator.desired import owner
from kvferry_operator.desired.build import build
from kvferry_operator.kube import kinds, paths

ROLES = "/apis/rbac.authorization.k8s.io/v1"


@pytest.fixture(scope="module")
def bare_plane() -> Iterator[ControlPlane]:
    """A real control plane that does not know our resource: Helm brings it."""
    with planes.start() as plane:
        yield plane


@pytest.fixture
def helm(chart: Chart, bare_plane: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    """In a namespace of its own; what a release has outside of it is gone afterwards, whatever the test did."""
    namespace = bare_plane.namespace("release")
    yield Release(chart.helm, bare_plane, tmp_path / "helm", namespace)
    delete(bare_plane, CRD_PATH)
    delete(bare_plane, f"{ROLES}/clusterrolebindings/kvferry-operator")
    for name in ("kvferry-operator", "kvferry-viewer", "kvferry-editor"):
        delete(bare_plane, f"{ROLES}/clusterroles/{name}")


def test_an_upgrade_brings_the_new_resource_and_uninstalling_keeps_it(helm: Release, tmp_path: Path) -> None:
    """Cases 19 and 20."""
    helm("install", older(tmp_path))
    with pytest.raises(Refused, match="lossless"):
        create_model(helm.plane, helm.namespace, "lossless")

    helm("upgrade", CHART, "--reuse-values")
    assert methods(helm.plane.api.get(CRD_PATH)) == methods(crd_schema.crd())
    eventually(lambda: accepts(helm, "lossless"), "the API server uses the new schema")

    helm("uninstall")
    assert methods(helm.plane.api.get(CRD_PATH)) == methods(crd_schema.crd())
    kept = helm.plane.api.get(models(helm.namespace))["items"]
    assert [each["spec"]["transfer"]["compression"]["method"] for each in kept] == ["lossless"]

    # the resource that stayed is taken over by the next release of that name
    helm("install", CHART)
    assert len(helm.plane.api.get(models(helm.namespace))["items"]) == 1


def test_the_operator_may_go_before_its_models(helm: Release) -> None:
    """Case 21: nothing waits for it, in whatever order things are removed."""
    helm("install", CHART)
    create_model(helm.plane, helm.namespace)
    helm("uninstall", "--wait")
    gone(helm.plane, f"/apis/apps/v1/namespaces/{helm.namespace}/deployments/kvferry-operator")
    assert "finalizers" not in helm.plane.api.get(f"{models(helm.namespace)}/minimal")["metadata"]
    delete(helm.plane, f"{models(helm.namespace)}/minimal")


def test_children_go_with_their_model_while_no_operator_runs(control_plane: ControlPlane) -> None:
    """Case 21."""
    namespace = control_plane.namespace("orphans")
    reference = owner.reference(parse(create_model(control_plane, namespace)))
    children = f"/api/v1/namespaces/{namespace}/configmaps"
    control_plane.api.create(children, {"metadata": {"name": "child", "ownerReferences": [reference]}})
    delete(control_plane, f"{models(namespace)}/minimal")
    gone(control_plane, f"{children}/child")


def test_the_namespace_of_a_release_can_be_deleted_with_models_in_it(helm: Release) -> None:
    """Case 21."""
    helm("install", CHART)
    create_model(helm.plane, helm.namespace)
    delete(helm.plane, f"/api/v1/namespaces/{helm.namespace}")


def test_without_keep_the_resource_goes_with_the_release(helm: Release) -> None:
    helm("install", CHART, "--set", "crds.keep=false")
    create_model(helm.plane, helm.namespace)
    helm("uninstall")
    gone(helm.plane, CRD_PATH)


def test_rights_as_the_api_server_sees_them(helm: Release) -> None:
    """Case 48."""
    helm("install", CHART)
    expected = {
        ("create", "secrets"): True,
        ("get", "secrets"): False,
        ("list", "pods"): True,
        ("delete", "pods"): True,
        ("get", "pods/proxy"): True,
        ("create", "pods/exec"): False,
        ("list", "nodes"): True,
        ("patch", "disaggregatedmodels.kvferry.io/status"): True,
        ("patch", "disaggregatedmodels.kvferry.io"): False,
        ("delete", "disaggregatedmodels.kvferry.io"): False,
    }
    eventually(lambda: all(may(helm, *asked) for asked, given in expected.items() if given), "the rules are in force")
    assert {(verb, what): may(helm, verb, what) for verb, what in expected} == expected


@pytest.mark.parametrize("mode", ["cluster-wide", "namespaced"])
def test_a_whole_model_can_be_made_with_the_rights_of_the_chart(helm: Release, mode: str) -> None:
    """Case 48: each child is applied as the operator, the router's own Role among them."""
    elsewhere = helm.plane.namespace("models")
    helm("install", CHART, *(["--set", f"namespaces={{{elsewhere}}}"] if mode == "namespaced" else []))
    wanted = parse(create_model(helm.plane, elsewhere))
    operator = Api(Access.of(helm.plane.service_account_kubeconfig(helm.namespace, "kvferry-operator")))
    eventually(lambda: may_make_children(helm, elsewhere), "the rules are in force")
    for child in owner.owned(build(wanted, rendered.SETTINGS), wanted):
        operator.apply(paths.item(kinds.of(child), elsewhere, child["metadata"]["name"]), child)
    if mode == "namespaced":
        with pytest.raises(Refused, match="forbidden"):
            operator.get(paths.collection(kinds.POD, helm.namespace))


def may_make_children(helm: Release, namespace: str) -> bool:
    """Of every kind, with the rights that the router's Role hands on."""
    made = [f"{kind.plural}.{kind.group}" for kind in kinds.CHILDREN]
    handed_on = [(verb, "endpointslices.discovery.k8s.io") for verb in ("get", "list", "watch")]
    asked = [*((verb, what) for what in made for verb in ("create", "patch")), *handed_on]
    return all(may(helm, verb, what, namespace) for verb, what in asked)


def may(helm: Release, verb: str, what: str, namespace: str = "default") -> bool:
    """Whether the operator's account may do so in a namespace that is not the release's. what: `plural.group/part`."""
    resource, _, subresource = what.partition("/")
    plural, _, group = resource.partition(".")
    asked = {"namespace": namespace, "verb": verb, "group": group, "resource": plural, "subresource": subresource}
    account = f"system:serviceaccount:{helm.namespace}:kvferry-operator"
    review = {"spec": {"user": account, "groups": ["system:authenticated"], "resourceAttributes": asked}}
    answer = helm.plane.api.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


def older(folder: Path) -> Path:
    """The chart as it was before the method `lossless` and some of the values were there."""
    copied = folder / "kvferry"
    shutil.copytree(CHART, copied)
    crd = copied / "files" / crd_schema.CRD_FILE.name
    lines = crd.read_text().splitlines(keepends=True)
    fewer = [line for line in lines if line.strip() != "- lossless"]
    assert len(fewer) < len(lines)
    crd.write_text("".join(fewer))
    values = {key: value for key, value in chart_reference.values().items() if key not in ("operator", "networkPolicy")}
    (copied / "values.yaml").write_text(yaml.safe_dump(values))
    described = yaml.safe_load((copied / "Chart.yaml").read_text()) | {"version": "0.0.9"}
    (copied / "Chart.yaml").write_text(yaml.safe_dump(described))
    return copied


def methods(crd: Manifest) -> list[str]:
    """Compression methods that the schema knows."""
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    compression = spec["properties"]["transfer"]["properties"]["compression"]
    found: list[str] = compression["properties"]["method"]["enum"]
    return found


def accepts(helm: Release, method: str) -> bool:
    try:
        create_model(helm.plane, helm.namespace, method)
    except Refused:
        return False
    return True
