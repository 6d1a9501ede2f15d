from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from control_plane import ControlPlane
from eventually import eventually, eventually_async
from kvferry_operator.errors import Conflict
from kvferry_operator.kube.client import Cluster, connect
from kvferry_operator.kube.kinds import LEASE
from kvferry_operator.kube.lease import LeaseLost, hold
from kvferry_operator.kube.lease_record import Terms

FOREVER = 600.0


def terms(namespace: str) -> Terms:
    """Renewed in time also by a process that gets a small share of a slow machine."""
    return Terms(namespace, "operator", duration=300.0, renew_deadline=200.0, retry=0.1)


def short_terms(namespace: str) -> Terms:
    """For a leader that is meant to lose it."""
    return Terms(namespace, "operator", duration=12.0, renew_deadline=6.0, retry=0.1)


@pytest.fixture(autouse=True)
def patient_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a slow API server does not keep a lease that was to be given up."""
    monkeypatch.setattr("kvferry_operator.kube.lease.RELEASE_SECONDS", 60.0)


async def holder(cluster: Cluster, namespace: str) -> str:
    lease = await cluster.get(LEASE, namespace, "operator")
    return "" if lease is None else str(lease["spec"].get("holderIdentity") or "")


async def seize(cluster: Cluster, namespace: str, by: str) -> None:
    """Write over the Lease as its holder never would."""

    async def written() -> bool:
        lease = await cluster.get(LEASE, namespace, "operator")
        assert lease is not None
        lease["spec"]["holderIdentity"] = by
        try:
            await cluster.replace(lease)
        except Conflict:
            return False  # the holder has renewed it in between
        return True

    await eventually_async(written, f"the lease is {by}'s")


async def test_only_one_of_several_leads_and_the_next_one_follows(cluster: Cluster, namespace: str) -> None:
    leading: set[str] = set()
    order: list[str] = []

    async def operator(name: str) -> None:
        async with hold(cluster, terms(namespace), name):
            leading.add(name)
            order.append(name)
            assert leading == {name}
            assert await holder(cluster, namespace) == name
            await asyncio.sleep(0.3)
            leading.remove(name)

    async with asyncio.TaskGroup() as group:
        for name in ("a", "b", "c"):
            group.create_task(operator(name))
    assert sorted(order) == ["a", "b", "c"]
    assert await holder(cluster, namespace) == ""


async def test_a_leader_that_died_is_followed_when_its_lease_runs_out(cluster: Cluster, namespace: str) -> None:
    dead: dict[str, Any] = {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": "operator", "namespace": namespace},
        "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 1, "leaseTransitions": 4},
    }
    assert await cluster.create(dead)
    async with hold(cluster, terms(namespace), "next"):
        lease = await cluster.get(LEASE, namespace, "operator")
        assert lease is not None
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("next", 5)


async def test_a_leader_whose_lease_was_taken_is_interrupted(cluster: Cluster, namespace: str) -> None:
    wound_down = False
    with pytest.raises(LeaseLost, match=r"was taken by thief"):
        async with hold(cluster, terms(namespace), "me") as is_held:
            await seize(cluster, namespace, "thief")
            try:
                await asyncio.sleep(FOREVER)
            finally:
                wound_down = not is_held()
    assert wound_down
    assert await holder(cluster, namespace) == "thief"


async def test_a_leader_whose_lease_was_removed_is_interrupted(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(LeaseLost, match="was removed"):
        async with hold(cluster, terms(namespace), "me"):
            lease = await cluster.get(LEASE, namespace, "operator")
            assert lease is not None
            await cluster.delete(LEASE, namespace, "operator", lease["metadata"]["uid"])
            await asyncio.sleep(FOREVER)


async def test_a_leader_that_cannot_renew_gives_up_and_says_why(
    control_plane: ControlPlane, cluster: Cluster, namespace: str
) -> None:
    rights = grant_leases(control_plane, namespace)
    async with connect(control_plane.service_account_kubeconfig(namespace, "operator")) as limited:
        with pytest.raises(LeaseLost, match=r"not renewed in 6 s: .* lacks the rule .*leases"):
            async with hold(limited, short_terms(namespace), "me"):
                await asyncio.to_thread(control_plane.api.delete, rights)
                await asyncio.sleep(FOREVER)
    assert await holder(cluster, namespace) == "me"


async def test_a_leader_that_stood_still_knows_at_once_that_it_may_write_no_more(
    cluster: Cluster, namespace: str
) -> None:
    with pytest.raises(LeaseLost, match="not renewed in 6 s"):
        async with hold(cluster, short_terms(namespace), "me") as is_held:
            assert is_held()
            time.sleep(short_terms(namespace).renew_deadline)  # noqa: ASYNC251  as if the process were stopped
            assert not is_held(), "before anything else could run"
            await asyncio.sleep(FOREVER)


async def test_an_operator_without_the_right_waits_for_it(
    control_plane: ControlPlane, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(control_plane.service_account_kubeconfig(namespace, "operator")) as limited:

        async def lead() -> None:
            async with hold(limited, terms(namespace), "me"):
                pass

        leading = asyncio.create_task(lead())
        await eventually_async(lambda: asyncio.sleep(0, "lacks the rule" in caplog.text), "the log names the rule")
        assert not leading.done()
        grant_leases(control_plane, namespace)
        await leading
    assert caplog.text.count('verbs: ["get"]') == 1


async def test_an_error_of_the_body_comes_out_as_it_is_and_the_lease_is_free(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with hold(cluster, terms(namespace), "me"):
            raise ZeroDivisionError
    assert await holder(cluster, namespace) == ""


async def test_a_time_out_of_the_body_is_not_taken_for_a_lost_lease(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(TimeoutError):
        async with hold(cluster, terms(namespace), "me"), asyncio.timeout(0.0):
            await asyncio.sleep(FOREVER)


async def test_a_renewal_that_was_cut_off_does_not_keep_the_lease_from_the_next_one(
    cluster: Cluster, namespace: str
) -> None:
    """It was written, and its answer was not heard."""
    seldom = Terms(namespace, "operator", duration=900.0, renew_deadline=800.0, retry=700.0)

    async def renewed() -> dict[str, Any]:
        lease = await cluster.get(LEASE, namespace, "operator")
        assert lease is not None
        return dict(lease) if lease["spec"]["renewTime"] != lease["spec"]["acquireTime"] else {}

    async with hold(cluster, seldom, "me"):
        lease = await eventually_async(renewed, "the first renewal, after which none comes for a long time")
        lease["spec"] = {**lease["spec"], "renewTime": "2026-01-01T00:00:00.000000Z"}
        await cluster.replace(lease)
    assert await holder(cluster, namespace) == ""


async def test_the_lease_is_kept_until_the_body_has_wound_down(cluster: Cluster, namespace: str) -> None:
    held = asyncio.Event()

    async def lead() -> None:
        async with hold(cluster, terms(namespace), "me"):
            held.set()
            try:
                await asyncio.sleep(FOREVER)
            finally:
                assert await holder(cluster, namespace) == "me"

    leading = asyncio.create_task(lead())
    await held.wait()
    leading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leading
    assert await holder(cluster, namespace) == ""


def grant_leases(control_plane: ControlPlane, namespace: str) -> str:
    """The right to hold leases for the service account `operator`, and the path whose removal takes it away."""
    base = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": [LEASE.group], "resources": [LEASE.plural], "verbs": ["get", "create", "update"]}
    binding = {
        "metadata": {"name": "leases"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "leases"},
        "subjects": [{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}],
    }
    control_plane.api.create(f"{base}/roles", {"metadata": {"name": "leases"}, "rules": [rule]})
    control_plane.api.create(f"{base}/rolebindings", binding)
    asked = {"namespace": namespace, "group": LEASE.group, "resource": LEASE.plural, "verb": "create"}
    review = {"spec": {"user": f"system:serviceaccount:{namespace}:operator", "resourceAttributes": asked}}

    def granted() -> bool:
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(control_plane.api.create(path, review)["status"]["allowed"])

    eventually(granted, "the service account may hold leases")
    return f"{base}/rolebindings/leases"
