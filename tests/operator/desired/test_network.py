from __future__ import annotations

from typing import Any

import builders
import rendered
from kvferry_operator.desired.build import build


def services(changes: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    objects = build(builders.model(changes), rendered.SETTINGS)
    return {item["metadata"]["name"]: item["spec"] for item in rendered.of_kind(objects, "Service")}


def test_names_of_pods_exist_before_they_are_ready() -> None:
    """Case 37: names that came only with readiness would let stages wait for each other."""
    # a stage that waits for another's name must not be what keeps that name from appearing
    headless = [spec for spec in services({"prefill.parallelism.pipeline": 2}).values() if "clusterIP" in spec]
    assert len(headless) == 3
    assert all(spec["publishNotReadyAddresses"] and spec["clusterIP"] == "None" for spec in headless)


def test_each_workload_has_the_service_that_it_names() -> None:
    model = builders.model({"decode.parallelism.pipeline": 2})
    objects = build(model, rendered.SETTINGS)
    named = services({"decode.parallelism.pipeline": 2})
    for item in rendered.of_kind(objects, "StatefulSet"):
        service = named[item["spec"]["serviceName"]]
        assert service["selector"] == item["spec"]["selector"]["matchLabels"]


def test_clients_find_the_router() -> None:
    spec = services({"router.service": {"type": "NodePort", "port": 8081}})["tiny-router"]
    assert (spec["type"], spec["ports"][0]["port"], spec["ports"][0]["targetPort"]) == ("NodePort", 8081, "http")


def test_transfer_ports_are_open_to_the_models_own_pods_only() -> None:
    (policy,) = rendered.of_kind(build(builders.model(), rendered.SETTINGS), "NetworkPolicy")
    peers, router, health = policy["spec"]["ingress"]
    own = {"kvferry.io/model": "tiny"}
    assert peers["from"][0]["podSelector"]["matchLabels"] == own and "ports" not in peers
    assert router["from"][0]["podSelector"]["matchLabels"] == {**own, "kvferry.io/role": "router"}
    assert [port["port"] for port in router["ports"]] == [8000]
    assert [port["port"] for port in health["ports"]] == [7401]


def test_the_policy_can_be_left_out() -> None:
    objects = build(builders.model({"security.networkPolicy": False}), rendered.SETTINGS)
    assert not rendered.of_kind(objects, "NetworkPolicy")
