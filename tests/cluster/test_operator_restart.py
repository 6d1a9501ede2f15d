"""A restart changes nothing, two replicas act as one, and a missing right is named."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import background_kubelet
import control_plane as planes
import operator_process
from eventually import eventually
from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from kvferry_operator.metrics import WATCHED
from model_namespace import ModelNamespace

pytestmark = pytest.mark.slow

CONFIG_MAP = next(kind for kind in kinds.CHILDREN if kind.kind == "ConfigMap")


@pytest.fixture(scope="module", autouse=True)
def nodes(control_plane: planes.ControlPlane) -> Iterator[None]:
    """Pods become ready."""
    with background_kubelet.playing(control_plane.api.access, {"restart": {}}):
        yield


def test_a_restart_writes_nothing_and_restarts_no_pod(control_plane: planes.ControlPlane) -> None:
    models = ModelNamespace(control_plane, "restart")
    changes = {"transfer.verify.required": False, "decode.replicas": 3, "decode.parallelism.pipeline": 2}
    with operator_process.running(models.kubeconfig, models.name) as operator:
        models.create(changes)
        models.create({"paused": True}, "paused")
        models.create({"engine.args": ["--one", "--two"], "router.replicas": 2}, "unverified")
        models.wait_condition("Ready", "True")
        models.wait_condition("TransferVerified", "Unknown", name="unverified")
        models.wait_condition("Reconciling", "False", name="paused")
        models.wait_quiet()
        assert operator.stop() == 0
    pods, mark = models.uids("Pod"), control_plane.audit_position()
    with operator_process.running(models.kubeconfig, models.name) as operator:
        operator.wait_ready()
        eventually(lambda: operator.metric("kvferry_operator_reconcile_total") >= 3, "each got a pass")
        time.sleep(1.5)
        assert [(each.verb, each.resource, each.name) for each in models.writes(mark)] == []
        eventually(lambda: operator.metric("kvferry_operator_model_ready", name="tiny") == 1, "the model is ready")
    assert models.uids("Pod") == pods


def test_it_stops_in_silence_in_the_middle_of_much_news(control_plane: planes.ControlPlane) -> None:
    models = ModelNamespace(control_plane, "stops")
    with operator_process.running(models.kubeconfig, models.name) as operator:
        operator.wait_ready()
        eventually(lambda: _watches(models) == len(WATCHED), "a watch of each kind is open")
        operator.pause()
        for number in range(100):
            metadata = {"name": f"news-{number}", "labels": {names.LABEL_MODEL: "tiny"}}
            control_plane.api.create(models.path(CONFIG_MAP), {"metadata": metadata})
        operator.ask_to_stop()
        operator.resume()
        assert operator.wait_end() == 0
        assert [line for line in operator.lines if line.get("level") != "info"] == []


def test_of_two_replicas_one_acts_until_it_goes_away(control_plane: planes.ControlPlane) -> None:
    models = ModelNamespace(control_plane, "replicas")
    flags = ["--leader-elect", f"--lease-namespace={models.name}"]
    with (
        operator_process.running(models.kubeconfig, models.name, flags=flags) as first,
        operator_process.running(models.kubeconfig, models.name, flags=flags) as second,
    ):
        for replica in (first, second):
            replica.wait_ready()
        eventually(lambda: _leads(first) + _leads(second) == 1, "one of them leads")
        leader, standby = (first, second) if _leads(first) else (second, first)
        mark = control_plane.audit_position()
        models.create(name="before")
        models.wait_children("before")
        made = [(each.resource, each.name) for each in models.writes(mark) if (each.verb, each.code) == ("create", 201)]
        assert made and len(made) == len(set(made)), "each once"
        assert standby.metric("kvferry_operator_reconcile_total") == 0

        assert leader.stop() == 0
        eventually(lambda: _leads(standby), "the other one takes over at once")
        models.create(name="after")
        models.wait_children("after")

        # somebody else takes the lease away: acting on would be acting twice
        lease = models.path(kinds.LEASE, "kvferry-operator")
        models.plane.api.merge(lease, {"spec": {"holderIdentity": "somebody else"}})
        assert standby.wait_end() == 1
        assert any("lease" in str(line.get("msg")) and "taken by" in str(line.get("msg")) for line in standby.lines)


def test_a_missing_right_is_named_and_found_when_it_is_given(control_plane: planes.ControlPlane) -> None:
    models = ModelNamespace(control_plane, "rights")
    kubeconfig = control_plane.service_account_kubeconfig(models.name, "nobody")
    with operator_process.running(kubeconfig, models.name) as operator:
        status, said = eventually(lambda: _refusal(operator), "it says what it waits for")
        assert status == 503
        assert 'resources: ["disaggregatedmodels"], verbs: ["list"]' in said and "add it to its role" in said
        binding = {
            "metadata": {"name": "nobody"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": "nobody", "namespace": models.name}],
        }
        path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{models.name}/rolebindings"
        control_plane.api.create(path, binding)
        operator.wait_ready()
        models.create()
        models.wait_children()


def _watches(models: ModelNamespace) -> int:
    return len({each.resource for each in models.requests(0) if each.verb == "watch"})


def _leads(operator: operator_process.OperatorProcess) -> bool:
    return operator.metric("kvferry_operator_leader") == 1


def _refusal(operator: operator_process.OperatorProcess) -> tuple[int, str] | None:
    status, said = operator.get("/readyz")
    return (status, said) if "lacks the rule" in said else None
