"""The schema and the code read the same fields, with the same defaults and bounds: neither can drift alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, get_args

import pytest

import crd_schema
from kvferry_operator.api import constraints, quantity
from kvferry_operator.api.parse import Field, fields_of, resolve
from kvferry_operator.api.types import Spec


def _pairs(kind: Any, node: dict[str, Any], path: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Every dataclass of the spec with the schema at its place."""
    yield path, kind, node
    for item in fields_of(kind):
        child = node.get("properties", {}).get(item.key, {})
        inner, bound = resolve(item.hint)
        if isinstance(bound, constraints.Items):
            inner, child = resolve(get_args(inner)[0])[0], child.get("items", {})
        if dataclasses.is_dataclass(inner):
            yield from _pairs(inner, child, f"{path}.{item.key}")


PAIRS = list(_pairs(Spec, crd_schema.spec_schema(), "spec"))
FIELDS = [
    (f"{path}.{item.key}", item, node["properties"].get(item.key, {}))
    for path, kind, node in PAIRS
    for item in fields_of(kind)
]


@pytest.mark.parametrize(("path", "kind", "node"), PAIRS, ids=[path for path, _, _ in PAIRS])
def test_the_schema_has_every_field_that_is_read_and_no_other(path: str, kind: Any, node: dict[str, Any]) -> None:
    assert list(node["properties"]) == [item.key for item in fields_of(kind)]
    assert node.get("required", []) == [item.key for item in fields_of(kind) if item.required]


@pytest.mark.parametrize(("path", "item", "node"), FIELDS, ids=[path for path, _, _ in FIELDS])
def test_default_and_bounds_are_the_same(path: str, item: Field, node: dict[str, Any]) -> None:
    kind, bound = resolve(item.hint)
    if not item.required:
        assert _default(item, bound, node) == _expected_default(item, node)
    match bound:
        case constraints.Range(low, high):
            assert (node["type"], node["minimum"], node["maximum"]) == ("integer", low, high)
        case constraints.Text(most, pattern, _, least):
            assert node["type"] == "string"
            assert (node["maxLength"], node.get("pattern", ""), node.get("minLength", 0)) == (most, pattern, least)
        case constraints.Items(most, key, unique):
            assert (node["type"], node["maxItems"]) == ("array", most)
            expected = "map" if key else "set" if unique else "atomic"
            assert node["x-kubernetes-list-type"] == expected
            assert node.get("x-kubernetes-list-map-keys", []) == ([key] if key else [])
        case constraints.Quantities(most):
            assert node["maxProperties"] == most
            assert node["additionalProperties"]["x-kubernetes-int-or-string"]
        case constraints.Bytes():
            assert (node["x-kubernetes-int-or-string"], node["pattern"]) == (True, constraints.QUANTITY)
        case constraints.Decimal():
            assert (node["type"], node["pattern"]) == ("string", constraints.DECIMAL)
        case constraints.Open():
            assert node["x-kubernetes-preserve-unknown-fields"]
        case _ if isinstance(kind, type) and issubclass(kind, StrEnum):
            assert node["enum"] == [option.value for option in kind]
        case _ if kind is bool:
            assert node["type"] == "boolean"


def _default(item: Field, bound: Any, node: dict[str, Any]) -> Any:
    default = node.get("default")
    if dataclasses.is_dataclass(item.default) and default is not None:
        return crd_schema.defaulted(default, node)
    if isinstance(bound, constraints.Bytes) and default is not None:
        return quantity.to_bytes(default)
    if isinstance(bound, constraints.Decimal) and default is not None:
        return float(default)
    return default


def _expected_default(item: Field, node: dict[str, Any]) -> Any:
    if dataclasses.is_dataclass(item.default):
        return crd_schema.defaulted({}, node)
    if item.default in ("", (), None) or item.default == {}:
        return None
    return item.default


def test_parsing_a_defaulted_object_gives_what_parsing_the_bare_one_gives() -> None:
    import builders
    from kvferry_operator.api.parse import parse

    bare = builders.raw()
    assert parse(crd_schema.defaulted(bare)).spec == parse(bare).spec
