"""What is shown: from nothing to a served model and back to nothing, as a person would do it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

import container_images
from end_to_end import client_pod, models, stages
from end_to_end.errors import StepFailed
from end_to_end.models import NAMESPACE, OUTPUT_TOKENS
from end_to_end.steps import Steps
from end_to_end.tools import Tools
from eventually import eventually
from kvferry_operator.demo.prompts import PROMPTS

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "kvferry"
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
RELEASE, OPERATOR_NAMESPACE = "kvferry", "kvferry-system"
_LABEL = "app.kubernetes.io/part-of=kvferry"
_GONE_SECONDS = 600.0
_KINDS = (
    "pods,services,configmaps,secrets,statefulsets,deployments,replicasets,poddisruptionbudgets,networkpolicies,"
    "serviceaccounts,roles,rolebindings,endpointslices,disaggregatedmodels"
)
_CLUSTER_KINDS = "clusterroles,clusterrolebindings"
_OF_EVERY_NAMESPACE = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
CRD = "disaggregatedmodels.kvferry.io"


def run(steps: Steps, tools: Tools) -> None:
    """Every step, on a cluster whose node has the images and the model's files.

    Raises:
        StepFailed, AssertionError: the first thing that is not as it should be.
    """
    prompts = [prompt.text for prompt in PROMPTS]
    with steps.step("helm_install", "helm install"):
        tools.helm("install", RELEASE, str(CHART), f"--namespace={OPERATOR_NAMESPACE}", "--create-namespace", "--wait")
    with steps.step("helm_test", "helm test"):
        tools.helm("test", RELEASE, f"--namespace={OPERATOR_NAMESPACE}")
    with steps.step("client", "a pod that will ask"):
        tools.kubectl("create", "namespace", NAMESPACE)
        client_pod.start(tools, NAMESPACE, container_images.tag("runtime"))
    with steps.step("ready", f"kubectl apply -f {EXAMPLE.relative_to(ROOT)}; kubectl wait --for=condition=Ready"):
        models.apply(tools, yaml.safe_load(EXAMPLE.read_text()))
    with steps.step("columns", "kubectl get dm"):
        _show_columns(tools)
    with steps.step("prompts", f"{len(prompts)} prompts through the router's Service, KV as fp8"):
        models.all_transferred(client_pod.ask(tools, NAMESPACE, "smollm2-router", "smollm2", prompts, OUTPUT_TOKENS))
    with steps.step("status", "bytes and ratio in status"):
        _show_transfer(steps, tools)
        models.delete(tools, "smollm2")
    with steps.step("aggregated", "the same prompts without disaggregation"):
        models.apply(tools, variant("single", mode="Aggregated", prefill=None, transfer=None))
        alone = client_pod.ask(tools, NAMESPACE, "single-router", "smollm2", prompts, OUTPUT_TOKENS)
        models.delete(tools, "single")
    with steps.step("exact", "the same prompts with KV uncompressed: the same tokens as without disaggregation"):
        transfer = yaml.safe_load(EXAMPLE.read_text())["spec"]["transfer"] | {"compression": {"method": "none"}}
        models.apply(tools, variant("exact", transfer=transfer))
        travelled = client_pod.ask(tools, NAMESPACE, "exact-router", "smollm2", prompts, OUTPUT_TOKENS)
        models.all_transferred(travelled)
        models.compare(travelled, alone)
        models.delete(tools, "exact")
    stages.run(steps, tools, prompts, alone)
    with steps.step("helm_upgrade", "helm upgrade with another log level: models go on"):
        _upgrade(tools)
    with steps.step("delete", "kubectl delete dm --all: their objects go"):
        tools.kubectl("delete", "dm", "--all", f"--namespace={NAMESPACE}")
        eventually(lambda: not _left(tools, NAMESPACE), f"nothing of kvferry is left in {NAMESPACE}", _GONE_SECONDS)
    with steps.step("helm_uninstall", "helm uninstall: all gone but the resource itself"):
        tools.helm("uninstall", RELEASE, f"--namespace={OPERATOR_NAMESPACE}", "--wait")
        eventually(lambda: not _left(tools), "nothing of kvferry is left in the cluster", _GONE_SECONDS)
        tools.get("crd", CRD)


def variant(name: str, **spec: Any) -> dict[str, Any]:
    """The example under another name, with fields of its spec replaced, or left out where None."""
    model: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    model["metadata"]["name"] = name
    model["spec"] = {key: value for key, value in (model["spec"] | spec).items() if value is not None}
    return model


def _show_columns(tools: Tools) -> None:
    printed = tools.kubectl("get", "dm", f"--namespace={NAMESPACE}")
    print("    " + printed.strip().replace("\n", "\n    "))
    heads, row = printed.splitlines()[0].split(), printed.splitlines()[1].split()
    told = dict(zip(heads, row, strict=True))
    wanted = {"PREFILL": "1/1", "DECODE": "1/1", "CODEC": "fp8", "READY": "True"}
    wrong = {column: told.get(column) for column, value in wanted.items() if told.get(column) != value}
    if wrong:
        raise StepFailed(f"kubectl get dm: {wrong}, expected {wanted}")


def _show_transfer(steps: Steps, tools: Tools) -> None:
    transfer = tools.get("dm", "smollm2", f"--namespace={NAMESPACE}")["status"].get("transfer", {})
    raw, wire = float(transfer.get("bytesRaw", 0)), float(transfer.get("bytesWire", 0))
    if not 0 < wire < raw:
        raise StepFailed(f"status.transfer has no fewer bytes on the wire than raw: {transfer}")
    steps.figure("bytes_raw", raw, "bytes")
    steps.figure("bytes_wire", wire, "bytes")
    steps.figure("compression_ratio", float(transfer["compressionRatio"]), "raw/wire")


def _upgrade(tools: Tools) -> None:
    before = models.pods(tools)
    tools.helm(
        "upgrade",
        RELEASE,
        str(CHART),
        f"--namespace={OPERATOR_NAMESPACE}",
        "--reuse-values",
        "--set=operator.logLevel=debug",
        "--wait",
    )
    after = models.pods(tools)
    if before != after:
        raise StepFailed(f"an upgrade of the operator changed pods of models: {before} became {after}")


def _left(tools: Tools, namespace: str = "") -> list[str]:
    """Objects of kvferry that are there. The lease, by which replicas of the operator agree, is not counted."""
    where = f"--namespace={namespace}" if namespace else "--all-namespaces"
    found = tools.get(_KINDS, where, f"--selector={_LABEL}")["items"]
    if not namespace:
        found += tools.get(_CLUSTER_KINDS, f"--selector={_LABEL}")["items"]
        found += tools.get(_KINDS, f"--namespace={OPERATOR_NAMESPACE}")["items"]
    names = {f"{item['kind']}/{item['metadata']['name']}" for item in found}
    return sorted(names - _OF_EVERY_NAMESPACE)
