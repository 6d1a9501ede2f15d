"""DisaggregatedModels for tests: the minimal object, with values set by their dotted path."""

from __future__ import annotations

import copy
from typing import Any

from kvferry_operator.api.parse import parse
from kvferry_operator.api.types import DisaggregatedModel

MISSING = object()
"""As a value: takes the field out."""

_MINIMAL: dict[str, Any] = {
    "apiVersion": "kvferry.io/v1alpha1",
    "kind": "DisaggregatedModel",
    "metadata": {"name": "tiny", "namespace": "models"},
    "spec": {
        "model": {"uri": "hf://HuggingFaceTB/SmolLM2-135M-Instruct"},
        "engine": {"type": "reference"},
        "prefill": {"replicas": 1},
        "decode": {"replicas": 1},
    },
}


def raw(changes: dict[str, Any] | None = None, *, name: str = "tiny") -> dict[str, Any]:
    """The minimal object; changes map dotted paths below `spec` to values, such as `transfer.transport`."""
    built = copy.deepcopy(_MINIMAL)
    built["metadata"]["name"] = name
    for path, value in (changes or {}).items():
        *parents, last = path.split(".")
        place = built["spec"]
        for key in parents:
            place = place.setdefault(key, {})
        if value is MISSING:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return built


def model(changes: dict[str, Any] | None = None, *, name: str = "tiny") -> DisaggregatedModel:
    """The same, read."""
    return parse(raw(changes, name=name))
