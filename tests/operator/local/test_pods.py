"""Which pods rendered objects ask for, where they live, and how they are grouped for the router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import local_objects as objects
from kvferry_contract.endpoints import Group
from kvferry_operator.local import addresses
from kvferry_operator.local.endpoints import groups_of
from kvferry_operator.local.errors import CannotStart, Unsupported
from kvferry_operator.local.pods import Kind, pods_of


def test_containers_come_in_the_order_in_which_the_kubelet_starts_them() -> None:
    first = objects.container("connector")
    manifest = objects.stateful_set("m-decode", [objects.container("engine")], [first, objects.sidecar("sidecar")])
    (pod,) = pods_of([manifest])
    assert [(item.name, item.kind) for item in pod.containers] == [
        ("connector", Kind.INIT),
        ("sidecar", Kind.SIDECAR),
        ("engine", Kind.MAIN),
    ]
    assert pod.grace_seconds == 60


def test_pods_are_named_as_their_controller_names_them() -> None:
    manifest = objects.stateful_set("m-decode", [objects.container("engine")], replicas=2)
    manifest["spec"]["ordinals"] = {"start": 3}
    assert [(pod.name, pod.ordinal) for pod in pods_of([manifest])] == [("m-decode-3", 3), ("m-decode-4", 4)]


def test_kinds_without_a_process_are_passed_over() -> None:
    assert pods_of([{"kind": "Service", "metadata": {"name": "m"}}, {"kind": "Role", "metadata": {"name": "m"}}]) == ()


@pytest.mark.parametrize("kind", ["DaemonSet", "Job", "CronJob"])
def test_other_workloads_are_refused_by_name(kind: str) -> None:
    with pytest.raises(Unsupported, match=f"{kind} once"):
        pods_of([{"kind": kind, "metadata": {"name": "once"}}])


@given(instance=st.text(min_size=1, max_size=40), replicas=st.integers(1, 254))
def test_every_pod_has_a_loopback_address_of_its_own(instance: str, replicas: int) -> None:
    pods = pods_of([objects.stateful_set("m", [objects.container("engine")], replicas=replicas)])
    given_addresses = addresses.assign(instance, pods)
    assert given_addresses == addresses.assign(instance, pods)
    assert len(set(given_addresses.values())) == replicas
    for address in given_addresses.values():
        first, second, third, fourth = map(int, address.split("."))
        assert first == 127 and 64 <= second <= 127 and 0 <= third <= 255 and 1 <= fourth <= 254


def test_more_pods_than_addresses_are_refused() -> None:
    pods = pods_of([objects.stateful_set("m", [objects.container("engine")], replicas=255)])
    with pytest.raises(CannotStart, match=r"255 pods.*254.*fewer replicas"):
        addresses.assign("m", pods)


def test_a_group_is_one_pod_of_every_stage_and_ready_when_all_are() -> None:
    stages = [
        objects.stateful_set(
            f"m-prefill-s{stage}", [objects.container("engine", port=8000)], role="prefill", stage=stage, replicas=2
        )
        for stage in (1, 0)
    ]
    pods = pods_of([*stages, objects.router([objects.container("router")])])
    where = {pod.name: f"127.64.0.{index}" for index, pod in enumerate(pods, start=1)}
    ready = {pod.name: pod.name != "m-prefill-s1-1" for pod in pods}
    assert groups_of(pods, where, ready) == (
        Group(
            role="prefill",
            ordinal=0,
            revision="ab12cd34",
            ready=True,
            terminating=False,
            engine="127.64.0.3:8000",
            sidecars=("127.64.0.3:7400", "127.64.0.1:7400"),
            pod="m-prefill-s0-0",
            sidecar_http=("127.64.0.3:7401", "127.64.0.1:7401"),
        ),
        Group(
            role="prefill",
            ordinal=1,
            revision="ab12cd34",
            ready=False,
            terminating=False,
            engine="127.64.0.4:8000",
            sidecars=("127.64.0.4:7400", "127.64.0.2:7400"),
            pod="m-prefill-s0-1",
            sidecar_http=("127.64.0.4:7401", "127.64.0.2:7401"),
        ),
    )
