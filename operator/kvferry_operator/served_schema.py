"""Whether the CRD in the cluster knows the fields of this release: an upgrade may have left an old one. Pure.

What an old CRD does not know, the API server drops in silence or refuses; objects that do without it go on working.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from kvferry_operator.api import constraints
from kvferry_operator.api.parse import fields_of, resolve
from kvferry_operator.api.types import Spec


def lacking(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Paths of fields that are read here and missing in the schema as served, such as `spec.transfer.verify`."""
    return tuple(_lacking(Spec, _property(schema, "spec"), "spec"))


def known(value: Any, schema: Mapping[str, Any]) -> Any:
    """A part of an object without the fields that its schema, as served, does not have."""
    if isinstance(value, Mapping) and "properties" in schema:
        fields = schema["properties"]
        return {key: known(item, fields[key]) for key, item in value.items() if key in fields}
    if isinstance(value, list) and "items" in schema:
        return [known(item, schema["items"]) for item in value]
    return value


def _lacking(kind: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for field in fields_of(kind):
        where, below = f"{path}.{field.key}", _property(schema, field.key)
        if not below:
            yield where
            continue
        inner, bound = resolve(field.hint)
        if isinstance(bound, constraints.Items):
            inner, below = resolve(get_args(inner)[0])[0], below.get("items") or {}
        if dataclasses.is_dataclass(inner):
            yield from _lacking(inner, below, where)


def _property(schema: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (schema.get("properties") or {}).get(key) or {}
    return found
