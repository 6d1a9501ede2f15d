"""Services and the network policy of a model."""

from __future__ import annotations

from kvferry_contract import ports
from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.stage import Manifest, Stage, metadata

_PEERS = {"key": names.LABEL_ROLE, "operator": "In", "values": ["prefill", "decode"]}


def headless_service(stage: Stage) -> Manifest:
    """Gives each pod its name. Not-ready pods too: stages look each other up before they can be ready."""
    http = stage.model.spec.engine.port
    peers = [_port("peer", ports.SIDECAR_PEER), _port("sidecar-http", ports.SIDECAR_HTTP)] if stage.transfers else []
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(stage.model, stage.name, stage.labels),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": stage.selector,
            "ports": [_port("http", http), *peers],
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

    Peers may use any port among themselves, since UCX over TCP listens on ports of its own choice.
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
                {"from": [{"podSelector": peers}]},
                {"from": [{"podSelector": router}], "ports": [{"port": model.spec.engine.port, "protocol": "TCP"}]},
                # health and metrics hold no keys, prompts or tokens; scrapers live in namespaces we do not know
                {"from": [{"namespaceSelector": {}}], "ports": [{"port": ports.SIDECAR_HTTP, "protocol": "TCP"}]},
            ],
        },
    }


def _port(name: str, number: int) -> Manifest:
    return {"name": name, "port": number, "protocol": "TCP", "targetPort": name}
