"""Ports inside a pod. Fixed, since each pod has an address of its own."""

ENGINE = 8000
"""HTTP of the engine: OpenAI-compatible API, health, metrics."""

ROUTER = 8080
"""HTTP of the router: OpenAI-compatible API, health, metrics."""

SIDECAR_PEER = 7400
"""TCP of the sidecar: control connections of other sidecars."""

SIDECAR_HTTP = 7401
"""HTTP of the sidecar: health, readiness, metrics, transfer records."""

STAGE = 7402
"""TCP of the engine: the stage before it, where the model is split into pipeline stages."""
