"""What is made from the chart's values.yaml and the CRD: `python tests/_support/chart_reference.py` writes it all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import crd_schema

CHART = crd_schema.ROOT / "charts" / "kvferry"
PAGE = crd_schema.ROOT / "docs" / "reference" / "chart.md"
DEFAULTS = CHART / "templates" / "_defaults.tpl"
CRD_COPY = CHART / "files" / crd_schema.CRD_FILE.name
_HEAD = """\
# Values of the Helm chart

Made from `charts/kvferry/values.yaml`; do not edit. A value that is absent or null means its default, whatever the
release was installed with before; a value that is not in this list is refused. How to install, upgrade and uninstall
is in [operations](../operations.md#installing-upgrading-uninstalling).

| Value | Default | |
| --- | --- | --- |
"""
_MARK = "# -- "


@dataclass(frozen=True)
class Value:
    """One documented value. `text` is empty where the comment that documents a value is missing."""

    path: str
    default: Any
    text: str


def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


def schema() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return loaded


def resolved(node: dict[str, Any]) -> dict[str, Any]:
    """The schema that `node` stands for, if it is a reference."""
    found: dict[str, Any] = schema()["definitions"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node
    return found


def documented() -> Iterator[Value]:
    """Every value that the schema knows, in the order of values.yaml."""
    text = (CHART / "values.yaml").read_text()
    root = yaml.compose(text)
    assert isinstance(root, yaml.MappingNode)
    yield from _below(root, text.splitlines(), schema(), "")


def page() -> str:
    rows = []
    for value in documented():
        default = json.dumps(value.default, ensure_ascii=False)
        rows.append(f"| `{value.path}` | `{default}` | {value.text.replace('|', '/')} |")
    return _HEAD + "\n".join(rows) + "\n"


def defaults() -> str:
    """values.yaml as a named template, since a template cannot read the chart's own defaults."""
    body = yaml.safe_dump(values(), sort_keys=False, width=110)
    return (
        "{{/* values.yaml without its comments, made by tests/_support/chart_reference.py; do not edit. */}}\n"
        '{{- define "kvferry.defaults" -}}\n' + body + "{{- end -}}\n"
    )


def _below(node: yaml.MappingNode, lines: list[str], described: dict[str, Any], prefix: str) -> Iterator[Value]:
    for key, value in node.value:
        child = resolved(described["properties"].get(key.value, {}))
        path = f"{prefix}{key.value}"
        text = _comment(lines, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and "properties" in child and not text:
            yield from _below(value, lines, child, f"{path}.")
        else:
            yield Value(path, yaml.safe_load(yaml.serialize(value)), text)


def _comment(lines: list[str], line: int) -> str:
    """The comment right above a line, from its `# -- ` on."""
    words: list[str] = []
    for above in reversed(lines[:line]):
        stripped = above.strip()
        if not stripped.startswith("#"):
            break
        if stripped.startswith(_MARK):
            return " ".join([stripped.removeprefix(_MARK), *words])
        words.insert(0, stripped.removeprefix("#").strip())
    return ""


def write(page_file: Path = PAGE, defaults_file: Path = DEFAULTS, crd_file: Path = CRD_COPY) -> None:
    page_file.write_text(page())
    defaults_file.write_text(defaults())
    crd_file.write_text(crd_schema.CRD_FILE.read_text())


if __name__ == "__main__":
    write()
