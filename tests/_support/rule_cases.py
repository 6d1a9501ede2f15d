"""Every CEL rule of the CRD with objects that keep it and objects that break it."""

from __future__ import annotations

from typing import Any

from builders import MISSING

CASES: dict[str, list[tuple[dict[str, Any], dict[str, Any], str]]] = {
    "prefill is required; to serve without it say so with mode: Aggregated": [
        ({"mode": "Aggregated", "prefill": MISSING}, {"prefill": MISSING}, "spec.prefill"),
    ],
    "prefill must be left out when mode is Aggregated": [
        ({"mode": "Disaggregated"}, {"mode": "Aggregated"}, "spec.prefill"),
    ],
    "prefill.replicas and decode.replicas must both be zero or both be positive": [
        ({"prefill.replicas": 0, "decode.replicas": 0}, {"prefill.replicas": 0}, "spec.decode.replicas"),
        ({"prefill.replicas": 3}, {"decode.replicas": 0}, "spec.decode.replicas"),
    ],
    "vllm runs one pipeline stage only; use parallelism.tensor, or engine.type reference": [
        (
            {"engine.type": "vllm", "prefill.parallelism.tensor": 2},
            {"engine.type": "vllm", "prefill.parallelism.pipeline": 2},
            "spec.engine.type",
        ),
        (
            {"decode.parallelism.pipeline": 2},
            {"engine.type": "vllm", "decode.parallelism.pipeline": 2},
            "spec.engine.type",
        ),
    ],
    "layers has 2 numbers and pipeline is 3: give each stage its number of layers": [
        (
            {"prefill.parallelism": {"pipeline": 3, "layers": [10, 12, 8]}},
            {"prefill.parallelism": {"pipeline": 3, "layers": [18, 12]}},
            "spec.prefill.parallelism.layers",
        ),
        (
            {"decode.parallelism": {"pipeline": 3, "layers": []}},
            {"decode.parallelism": {"pipeline": 3, "layers": [1, 1]}},
            "spec.decode.parallelism.layers",
        ),
    ],
    "layers has 2 numbers and pipeline is 1: give each stage its number of layers": [
        (
            {"decode.parallelism": {"layers": [30]}},
            {"decode.parallelism": {"layers": [15, 15]}},
            "spec.decode.parallelism.layers",
        ),
    ],
    "layers has 30 numbers and pipeline is 64: give each stage its number of layers": [
        (
            {"decode.parallelism": {"pipeline": 30, "layers": [1] * 30}},
            {"decode.parallelism": {"pipeline": 64, "layers": [1] * 30}},
            "spec.decode.parallelism.layers",
        ),
    ],
    "uri must not have .. in its path": [
        ({"model.uri": "pvc://claim/a..b/c"}, {"model.uri": "pvc://claim/a/../../b"}, "spec.model.uri"),
        ({"model.uri": "pvc://claim/..."}, {"model.uri": "pvc://claim/.."}, "spec.model.uri"),
    ],
    "a pvc:// model brings its own volume; leave cache out": [
        (
            {"model.uri": "pvc://claim/m"},
            {"model.uri": "pvc://claim/m", "model.cache": {"type": "hostPath", "path": "/m"}},
            "spec.model.cache.type",
        ),
    ],
    "a file:///models/ model needs a cache of type hostPath or pvc that holds it (an emptyDir starts empty)": [
        (
            {"model.uri": "file:///models/m", "model.cache": {"type": "pvc", "claimName": "c"}},
            {"model.uri": "file:///models/m"},
            "spec.model.cache.type",
        ),
        ({"model.uri": "file:///baked/in"}, {"model.uri": "file:///models/m"}, "spec.model.cache.type"),
    ],
    "tokenSecretRef applies to hf:// models only": [
        (
            {"model.tokenSecretRef": {"name": "s"}},
            {"model.uri": "pvc://claim/m", "model.tokenSecretRef": {"name": "s"}},
            "spec.model.tokenSecretRef",
        ),
    ],
    "claimName is required when type is pvc": [
        (
            {"model.cache": {"type": "pvc", "claimName": "c"}},
            {"model.cache": {"type": "pvc"}},
            "spec.model.cache.claimName",
        ),
    ],
    "path is required when type is hostPath": [
        (
            {"model.cache": {"type": "hostPath", "path": "/m"}},
            {"model.cache": {"type": "hostPath"}},
            "spec.model.cache.path",
        ),
    ],
    "sizeLimit applies to type emptyDir only": [
        (
            {"model.cache": {"sizeLimit": "1Gi"}},
            {"model.cache": {"type": "pvc", "claimName": "c", "sizeLimit": "1Gi"}},
            "spec.model.cache.sizeLimit",
        ),
    ],
    "image is required when type is custom": [
        ({"engine": {"type": "custom", "image": "mine:1"}}, {"engine": {"type": "custom"}}, "spec.engine.image"),
    ],
    "port can be changed for type custom only; others listen on 8000": [
        (
            {"engine": {"type": "custom", "image": "mine:1", "port": 9000}},
            {"engine.port": 9000},
            "spec.engine.port",
        ),
    ],
    "names that start with KVFERRY_ are set by kvferry (but KVFERRY_LOG_LEVEL)": [
        (
            {"engine.env": [{"name": "KVFERRY_LOG_LEVEL", "value": "debug"}]},
            {"engine.env": [{"name": "KVFERRY_ROLE", "value": "decode"}]},
            "spec.engine.env[0].name",
        ),
        (
            {"sidecar.env": [{"name": "UCX_LOG_LEVEL", "value": "info"}]},
            {"sidecar.env": [{"name": "A"}, {"name": "KVFERRY_X"}]},
            "spec.sidecar.env[1].name",
        ),
    ],
    "value and valueFrom exclude each other": [
        (
            {"engine.env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]},
            {"engine.env": [{"name": "A", "value": "1", "valueFrom": {}}]},
            "spec.engine.env[0]",
        ),
    ],
    "resourceName is required when mode is devicePlugin": [
        (
            {"prefill.rdma": {"mode": "devicePlugin", "resourceName": "rdma/hca"}},
            {"prefill.rdma": {"mode": "devicePlugin"}},
            "spec.prefill.rdma.resourceName",
        ),
    ],
    "maxSurge and maxUnavailable must not both be zero": [
        (
            {"decode.rollout": {"maxSurge": 0, "maxUnavailable": 1}},
            {"decode.rollout": {"maxSurge": 0}},
            "spec.decode.rollout.maxSurge",
        ),
    ],
    "min must not be above max": [
        ({"decode.scaling": {"min": 2, "max": 2}}, {"decode.scaling": {"min": 3, "max": 2}}, "spec.decode.scaling.min"),
        ({"ratio": {"min": "0.5", "max": "10"}}, {"ratio": {"min": "10", "max": "9.5"}}, "spec.ratio.min"),
    ],
    "sparse50 and sparse75 need an engine that can leave tokens out of its cache: use engine.type reference": [
        (
            {"engine.type": good, "transfer.compression": {"method": method, "acknowledgeLossy": True}},
            {"engine": engine, "transfer.compression": {"method": "sparse50", "acknowledgeLossy": True}},
            "spec.transfer.compression.method",
        )
        for good, method, engine in (
            ("reference", "sparse50", {"type": "vllm"}),
            ("vllm", "fp4", {"type": "custom", "image": "registry/engine:1"}),
        )
    ],
    "fp4, sparse50 and sparse75 can change answers; say that you know it with acknowledgeLossy: true": [
        (
            {"transfer.compression": {"method": method, "acknowledgeLossy": True}},
            {"transfer.compression": {"method": method}},
            "spec.transfer.compression.method",
        )
        for method in ("fp4", "sparse50", "sparse75")
    ],
    "Head and Tensor are scales of method fp8 only": [
        (
            {"transfer.compression": {"method": "fp8", "scale": scale}},
            {"transfer.compression": {"method": method, "scale": scale}},
            "spec.transfer.compression.scale",
        )
        for scale in ("Head", "Tensor")
        for method in ("none", "int8", "auto")
    ],
    "tls must name a transport over RDMA when transport is rdma": [
        (
            {"transfer": {"transport": "rdma", "ucx": {"tls": tls}}},
            {"transfer": {"transport": "rdma", "ucx": {"tls": "tcp,self"}}},
            "spec.transfer.ucx.tls",
        )
        for tls in ("rc,tcp", "^tcp", "all")
    ],
}
"""message: (good changes, bad changes, path of the error)"""

FLAT = [(message, *case) for message, cases in CASES.items() for case in cases]
