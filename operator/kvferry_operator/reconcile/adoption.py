"""Fields of what we created, made fields that we apply. Pure.

An object that is missing is made by a plain create, which never touches an object that is there, and costs the API
server half of an apply. The fields then belong to our field manager by an `Update`, and a later apply under the same
name would own them a second time: what it leaves out would stay. So the entry is turned into that of an apply before
the first one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry_operator.api import names

JsonObject = Mapping[str, Any]


def adopted(managed_fields: Sequence[JsonObject]) -> list[JsonObject] | None:
    """`metadata.managedFields` in which what we created counts as applied; None when there is nothing to turn.

    The format is FieldsV1 of Kubernetes: nested objects, whose union is the union of the sets of fields.
    """
    created = [entry for entry in managed_fields if _is_ours(entry, "Update")]
    if not created:
        return None
    applied = [entry for entry in managed_fields if _is_ours(entry, "Apply")]
    fields: JsonObject = {}
    for entry in (*applied, *created):
        fields = _union(fields, entry.get("fieldsV1") or {})
    others = [entry for entry in managed_fields if entry not in created and entry not in applied]
    return [*others, {**created[0], "operation": "Apply", "fieldsV1": fields}]


def _is_ours(entry: JsonObject, operation: str) -> bool:
    """Of the object itself; subresources have owners of their own."""
    found = entry.get("manager"), entry.get("operation"), entry.get("subresource") or ""
    return found == (names.MANAGER, operation, "")


def _union(one: JsonObject, other: JsonObject) -> JsonObject:
    return {**one, **{key: _union(one.get(key) or {}, value) for key, value in other.items()}}
