"""Services and network policies of a model."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry_contract import ports
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.stage import Manifest, Stage, has_stages, metadata

_PEERS = {"key": names.LABEL_ROLE, "operator": "In", "values": ["prefill", "decode"]}
_LAST_PORT = 65535


def headless_service(stage: Stage) -> Manifest:
    """Gives each pod its name. Not-ready pods too: stages look each other up before they can be ready."""
    http = stage.model.spec.engine.port
    before = [_port("stage", ports.STAGE)] if stage.is_split else []
    peers = [_port("peer", ports.SIDECAR_PEER), _port("sidecar-http", ports.SIDECAR_HTTP)] if stage.transfers else []
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(stage.model, stage.name, stage.labels),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": stage.selector,
            "ports": [_port("http", http), *before, *peers],
        },
    }


def router_service(model: DisaggregatedModel) -> Manifest:
    """Where clients send requests."""
    service = model.spec.router.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(model, names.router(model.name), names.labels(model.name, "router")),
        "spec": {
            "type": service.type.value,
            "selector": names.selector(model.name, "router"),
            "ports": [{"name": "http", "port": service.port, "protocol": "TCP", "targetPort": "http"}],
        },
    }


def network_policy(model: DisaggregatedModel) -> Manifest:
    """Who may reach the pods of prefill and decode. RDMA traffic passes beside it: no policy filters that.

    Peers may use any port among themselves, since UCX over TCP listens on ports of its own choice; but that of stages
    is for their own group, see `stage_policies`.
    """
    ours = {names.LABEL_MODEL: names.base(model.name)}
    peers = {"matchLabels": ours, "matchExpressions": [_PEERS]}
    router = {"matchLabels": names.selector(model.name, "router")}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(model, names.network_policy(model.name), names.labels(model.name, "model")),
        "spec": {
            "podSelector": peers,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": peers}], **({"ports": _all_but(ports.STAGE)} if has_stages(model) else {})},
                {"from": [{"podSelector": router}], "ports": [{"port": model.spec.engine.port, "protocol": "TCP"}]},
                # health and metrics hold no keys, prompts or tokens; scrapers live in namespaces we do not know
                {"from": [{"namespaceSelector": {}}], "ports": [{"port": ports.SIDECAR_HTTP, "protocol": "TCP"}]},
            ],
        },
    }


def stage_policies(stages: Iterable[Stage]) -> list[Manifest]:
    """That stages take connections from their own role and revision alone: one policy for each that is split.

    Policies add up, so `network_policy` leaves that port out. It cannot be narrowed to the group, since no selector
    says "the same ordinal"; the handshake is, by the group's name.
    """
    return [_stage_policy(stage) for stage in stages if stage.is_split and stage.index == 0]


def _stage_policy(stage: Stage) -> Manifest:
    pods = {"matchLabels": names.selector(stage.model.name, stage.role.value, stage.revision)}
    name = names.stage_policy(stage.model.name, stage.role.value, stage.revision)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(stage.model, name, names.labels(stage.model.name, stage.role.value) | pods["matchLabels"]),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": pods}], "ports": [{"port": ports.STAGE, "protocol": "TCP"}]}],
        },
    }


def _all_but(port: int) -> list[Manifest]:
    return [
        {"port": 1, "endPort": port - 1, "protocol": "TCP"},
        {"port": port + 1, "endPort": _LAST_PORT, "protocol": "TCP"},
    ]


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "protocol": "TCP", "targetPort": name}
