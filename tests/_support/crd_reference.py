"""Writes docs/reference/crd.md from the CRD: `python tests/_support/crd_reference.py`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crd_schema

PAGE = crd_schema.ROOT / "docs" / "reference" / "crd.md"
_HEAD = """\
# DisaggregatedModel

The fields of `kvferry.io/v1alpha1`, made from `crds/kvferry.io_disaggregatedmodels.yaml`; do not edit.
`kubectl explain dm.spec` shows the same. A field in **bold** is required.

The smallest object names a model, an engine and the two roles' replicas: see `examples/minimal.yaml`.
"""


def page() -> str:
    parts = [_HEAD]
    seen: dict[str, str] = {}
    for key in ("spec", "status"):
        for path, node in _objects(crd_schema.schema()["properties"][key], key):
            shape = repr({name: value for name, value in node.items() if name not in ("description", "default")})
            parts.append(f"## {path}\n\n{node.get('description', '')}".rstrip() + "\n")
            if shape in seen:
                parts.append(f"The same fields as [{seen[shape]}](#{_anchor(seen[shape])}).\n")
                continue
            seen[shape] = path
            parts.append(_table(path, node))
            rules = [rule["message"] for rule in node.get("x-kubernetes-validations", ())]
            if rules:
                parts.append("Rules:\n\n" + "\n".join(f"- {rule}" for rule in rules) + "\n")
    return "\n".join(parts)


def _objects(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object with fields, parents first; a role is shown once, since both have the same fields."""
    yield path, node
    if path == "spec.decode":
        return
    for key, child in node.get("properties", {}).items():
        inner = child.get("items", child)
        if "properties" in inner:
            described = {**inner, "description": child["description"]}
            yield from _objects(described, f"{path}.{key}" + ("[]" if "items" in child else ""))


def _table(path: str, node: dict[str, Any]) -> str:
    rows = ["| Field | Type | Default | |", "| --- | --- | --- | --- |"]
    for key, child in node["properties"].items():
        name = f"**{key}**" if key in node.get("required", ()) else key
        inner = child.get("items", child)
        if "properties" in inner:
            name = f"[{name}](#{_anchor(f'{path}.{key}' + ('[]' if 'items' in child else ''))})"
        default = child.get("default")
        shown = (
            f"`{str(default).lower() if isinstance(default, bool) else default}`"
            if default is not None and "properties" not in inner
            else ""
        )
        rows.append(f"| {name} | {_type(child)} | {shown} | {child['description']} |")
    return "\n".join(rows) + "\n"


def _type(node: dict[str, Any]) -> str:
    if "enum" in node:
        return ", ".join(f"`{option}`" for option in node["enum"])
    if node.get("x-kubernetes-int-or-string"):
        return "quantity"
    if node.get("x-kubernetes-preserve-unknown-fields"):
        return "object, as in Kubernetes"
    if node["type"] == "array":
        return f"list of {_type(node['items'])}, at most {node['maxItems']}"
    if "additionalProperties" in node:
        return "map of quantities"
    if node["type"] == "integer":
        return f"{node['minimum']} to {node['maximum']}" if "maximum" in node else "integer"
    if node.get("pattern") == r"^[0-9]{1,6}(\.[0-9]{1,6})?$":
        return "decimal number as text"
    return {"string": "text", "boolean": "`true`, `false`"}.get(str(node["type"]), str(node["type"]))


def _anchor(path: str) -> str:
    return "".join(letter for letter in path.lower() if letter.isalnum() or letter in "-_")


def write(path: Path = PAGE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page())


if __name__ == "__main__":
    write()
