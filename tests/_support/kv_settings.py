"""Settings, layouts and outcomes that tests of the KV path share."""

from __future__ import annotations

import queue
from typing import Any

from kvferry_contract.config import (
    FailurePolicy,
    Integrity,
    Method,
    OnFallback,
    OverlapMode,
    TransferConfig,
    TransportKind,
)
from kvferry_contract.transfer import TransferParams
from kvferry_runtime.layout import KvDtype, KvLayout, LayerShape

SECONDS = 120.0
"""For an outcome: longer than the usual deadline of a transfer, and what comes after it."""


def transfer_config(**changes: Any) -> TransferConfig:
    defaults: dict[str, Any] = {
        "transport": TransportKind.TCP,
        "on_fallback": OnFallback.WARN,
        "method": Method.NONE,
        "auto_methods": (Method.NONE, Method.LOSSLESS, Method.INT8, Method.FP8),
        "keep_exact_first": 16,
        "keep_exact_last": 64,
        "max_relative_error": 0.05,
        "overlap": OverlapMode.LAYERWISE,
        "inflight_chunks": 4,
        "chunk_bytes": 4096,
        "buffer_bytes": 64 * 4096,
        "integrity": Integrity.DIGEST,
        "failure_policy": FailurePolicy.RECOMPUTE,
        "timeout_seconds": 30.0,
    }
    return TransferConfig(**(defaults | changes))


def kv_layout(layers: int = 2, heads: int = 2, head_dim: int = 8, dtype: KvDtype = KvDtype.BF16) -> KvLayout:
    return KvLayout(total_layers=layers, first_layer=0, shapes=(LayerShape(2, heads, head_dim, dtype),) * layers)


def transfer_params(role: str, number: int = 1, deadline_ms: int = 60_000) -> TransferParams:
    peers = ("127.0.0.1:7400",) if role == "decode" else ()
    return TransferParams(f"{number:032x}", role, peers, deadline_ms)


class Outcomes:
    """An `on_done` that remembers every call."""

    def __init__(self) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self.calls = 0

    def __call__(self, outcome: Any) -> None:
        self.calls += 1
        self._queue.put(outcome)

    def wait(self) -> Any:
        return self._queue.get(timeout=SECONDS)
