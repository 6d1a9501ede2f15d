"""EndpointSlices of a model with pipeline stages, as the API server sends them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
_PORTS = [{"name": "http", "port": 8000}, {"name": "peer", "port": 7400}, {"name": "sidecar-http", "port": 7401}]


def stage_slice(
    role: str,
    stage: int,
    *ordinals: int,
    serving: Mapping[int, bool] | None = None,
    terminating: Mapping[int, bool] | None = None,
) -> Json:
    """The slice of one stage's Service, with a pod for each ordinal. serving, terminating: by ordinal."""
    name = f"small-{role}-r1-s{stage}"
    labels = {
        "kvferry.io/model": "small",
        "kvferry.io/role": role,
        "kvferry.io/revision": "r1",
        "kvferry.io/stage": str(stage),
    }
    net = 0 if role == "prefill" else 1
    pods = [
        {
            "addresses": [f"10.{net}.{stage}.{ordinal}"],
            "conditions": {
                "ready": True,
                "serving": (serving or {}).get(ordinal, True),
                "terminating": (terminating or {}).get(ordinal, False),
            },
            "targetRef": {"kind": "Pod", "name": f"{name}-{ordinal}", "uid": f"uid-of-{name}-{ordinal}"},
        }
        for ordinal in ordinals
    ]
    return {
        "metadata": {"name": name, "resourceVersion": "5", "labels": labels},
        "addressType": "IPv4",
        "endpoints": pods,
        "ports": _PORTS,
    }


def listed(*slices: Json) -> bytes:
    """The answer to a list."""
    return json.dumps(
        {"kind": "EndpointSliceList", "metadata": {"resourceVersion": "7"}, "items": list(slices)}
    ).encode()


def event(kind: str, content: Json) -> bytes:
    """One line of a watch."""
    return json.dumps({"type": kind, "object": content}).encode() + b"\n"
