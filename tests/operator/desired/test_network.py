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


def policies(changes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    objects = build(builders.model(changes), rendered.SETTINGS)
    return {item["metadata"]["name"]: item["spec"] for item in rendered.of_kind(objects, "NetworkPolicy")}


def test_stages_are_reached_by_their_own_role_and_revision_alone() -> None:
    changes = {"prefill.parallelism.pipeline": 2, "decode.parallelism.pipeline": 3}
    model = builders.model(changes)
    of_all, *of_stages = policies(changes).values()
    peers = of_all["ingress"][0]["ports"]
    assert [(port["port"], port["endPort"]) for port in peers] == [(1, 7401), (7403, 65535)]
    assert len(of_stages) == 2
    for role, spec in zip(("prefill", "decode"), of_stages, strict=True):
        (ingress,) = spec["ingress"]
        assert ingress["from"] == [{"podSelector": spec["podSelector"]}]
        assert ingress["ports"] == [{"port": 7402, "protocol": "TCP"}]
        chosen = spec["podSelector"]["matchLabels"].items()
        picked = {
            (name, stage)
            for name, stages in (("prefill", 2), ("decode", 3))
            for stage in range(stages)
            if chosen <= rendered.pod(model, name, stage)["metadata"]["labels"].items()
        }
        assert picked == {(role, stage) for stage in range(2 if role == "prefill" else 3)}
        assert "kvferry.io/revision" in dict(chosen)


def test_only_a_role_that_is_split_has_a_port_for_stages() -> None:
    changes = {"decode.parallelism.pipeline": 2}
    assert [name.rpartition("-")[2] for name in policies(changes)] == ["groups", "stages"]
    ports = {name: [port["name"] for port in spec["ports"]] for name, spec in services(changes).items()}
    assert {name[-3:] for name, found in ports.items() if "stage" in found} == {"-s0", "-s1"}
    assert not any("stage" in found for name, found in ports.items() if "-prefill-" in name)


def test_the_policy_can_be_left_out() -> None:
    assert not policies({"security.networkPolicy": False, "decode.parallelism.pipeline": 2})
