"""The CRD as an API server uses it: defaulting, structural validation and CEL rules, without an API server."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import yaml

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "crds" / "kvferry.io_disaggregatedmodels.yaml"
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@cache
def crd() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(CRD_FILE.read_text())
    return loaded


def schema() -> dict[str, Any]:
    found: dict[str, Any] = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def spec_schema() -> dict[str, Any]:
    found: dict[str, Any] = schema()["properties"]["spec"]
    return found


def walk(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below and including `node`, with its path; `[]` for items, `{}` for values of a map."""
    yield path, node
    for key, child in node.get("properties", {}).items():
        yield from walk(child, f"{path}.{key}")
    if "items" in node:
        yield from walk(node["items"], f"{path}[]")
    if "additionalProperties" in node:
        yield from walk(node["additionalProperties"], f"{path}{{}}")


def defaulted(value: Any, node: dict[str, Any] | None = None) -> Any:
    """`value` with the schema's defaults, as the API server stores it."""
    node = schema() if node is None else node
    if isinstance(value, dict):
        filled = copy.deepcopy(value)
        for key, child in node.get("properties", {}).items():
            if key not in filled and "default" in child:
                filled[key] = copy.deepcopy(child["default"])
            if key in filled:
                filled[key] = defaulted(filled[key], child)
        return filled
    if isinstance(value, list) and "items" in node:
        return [defaulted(item, node["items"]) for item in value]
    return value


def schema_errors(value: Any) -> list[str]:
    """What strict field validation of an API server would refuse, rules apart."""
    validator = jsonschema.Draft202012Validator(_strict(schema()))
    return [f"{'.'.join(map(str, error.path))}: {error.message}" for error in validator.iter_errors(value)]


def _strict(node: dict[str, Any]) -> dict[str, Any]:
    made = {key: value for key, value in node.items() if not key.startswith("x-") and key != "default"}
    if "properties" in made:
        made["properties"] = {key: _strict(child) for key, child in made["properties"].items()}
        made.setdefault("additionalProperties", "x-kubernetes-preserve-unknown-fields" in node)
    if "items" in made:
        made["items"] = _strict(made["items"])
    return made


@dataclass(frozen=True)
class Rule:
    """One CEL rule, the schema path it stands at, and the program. told: a program that makes a better message."""

    path: str
    message: str
    expression: str
    told: str = ""

    def broken(self, spec: dict[str, Any]) -> list[str]:
        """What is said of each part of the defaulted spec to which the rule applies and that breaks it."""
        keeps = _program(self.expression)
        bad = [value for value in _values(spec, self.path) if not keeps.evaluate({"self": celpy.json_to_cel(value)})]
        return [self._said(value) for value in bad]

    def _said(self, value: Any) -> str:
        return str(_program(self.told).evaluate({"self": celpy.json_to_cel(value)})) if self.told else self.message


def rules() -> list[Rule]:
    return [
        Rule(path, rule["message"], rule["rule"], rule.get("messageExpression", ""))
        for path, node in walk(spec_schema())
        for rule in node.get("x-kubernetes-validations", ())
    ]


@cache
def _program(expression: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(expression))


def _values(value: Any, path: str) -> Iterator[Any]:
    if not path:
        yield value
    elif path.startswith("[]"):
        for item in value:
            yield from _values(item, path[2:])
    else:
        key, rest = _head(path[1:])
        if isinstance(value, dict) and key in value:
            yield from _values(value[key], rest)


def _head(path: str) -> tuple[str, str]:
    cut = min((index for index in (path.find("."), path.find("[")) if index >= 0), default=len(path))
    return path[:cut], path[cut:]
