"""Owner references: what makes Kubernetes delete the children with the object."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.stage import Manifest


def reference(model: DisaggregatedModel) -> Manifest:
    """A controller reference. It does not block the owner's deletion, which would need a right of its own."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": model.name,
        "uid": model.uid,
        "controller": True,
    }


def owned(objects: Iterable[Manifest], model: DisaggregatedModel) -> tuple[Manifest, ...]:
    """The objects with `model` as their controller; `model` must have been read from a cluster (it has a uid)."""
    if not model.uid:
        raise ValueError(f"{model.name} has no uid: only an object that is in a cluster can own others")
    return tuple(
        {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference(model)]}}
        for manifest in objects
    )
