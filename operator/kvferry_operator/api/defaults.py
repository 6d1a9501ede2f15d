"""Values that follow from others, so that the schema cannot hold them. Never written back to the object."""

from __future__ import annotations

from kvferry_contract import paths
from kvferry_operator.api.types import DisaggregatedModel, Spec

PRE_STOP_SECONDS = 5
"""Time for routers to see that a pod is going before its engine is told to stop."""
STOP_RESERVE_SECONDS = 10
"""Time for the sidecar to say goodbye after the engine ended."""


def served_name(model: DisaggregatedModel) -> str:
    """The name clients put in `model`: as given, else the last part of the URI, else the object's name."""
    if model.spec.model.served_name:
        return model.spec.model.served_name
    scheme, _, rest = model.spec.model.uri.partition("://")
    if scheme == "hf":
        return rest
    return rest.rstrip("/").rpartition("/")[2] or model.name


def model_revision(spec: Spec) -> str:
    """A Hugging Face model without a revision is its main branch; others have no revisions."""
    if spec.model.uri.startswith("hf://"):
        return spec.model.revision or "main"
    return spec.model.revision


def model_directory(spec: Spec) -> str:
    """Where the model's files are inside the engine's container; for `hf://` the folder below which they are put."""
    scheme, _, rest = spec.model.uri.partition("://")
    if scheme == "file":
        return rest.rstrip("/") or "/"
    if scheme == "pvc":
        _, _, path = rest.partition("/")
        return f"{paths.MODEL_DIR}/{path}".rstrip("/")
    return paths.MODEL_DIR


def claim_name(spec: Spec) -> str:
    """The claim of a `pvc://` URI, else the empty string."""
    scheme, _, rest = spec.model.uri.partition("://")
    return rest.partition("/")[0] if scheme == "pvc" else ""


def grace_seconds(drain_seconds: int) -> int:
    """Always longer than the drain, or the kubelet would kill what is still being drained."""
    return PRE_STOP_SECONDS + drain_seconds + STOP_RESERVE_SECONDS
