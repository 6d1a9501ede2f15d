"""Looking things up in rendered objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvferry_operator.api.types import DisaggregatedModel
from kvferry_operator.desired.build import build
from kvferry_operator.desired.settings import Images, Settings

SETTINGS = Settings(images=Images.of_release("1.2.3"))
"""Fixed, so that a release changes no golden file."""


def of_kind(objects: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def stateful_set(model: DisaggregatedModel, role: str, stage: int = 0, settings: Settings = SETTINGS) -> dict[str, Any]:
    """The StatefulSet of a role's stage."""
    wanted = {"kvferry.io/role": role, "kvferry.io/stage": str(stage)}
    (found,) = (
        item
        for item in of_kind(build(model, settings), "StatefulSet")
        if wanted.items() <= item["metadata"]["labels"].items()
    )
    return found


def pod(
    model: DisaggregatedModel, role: str = "decode", stage: int = 0, settings: Settings = SETTINGS
) -> dict[str, Any]:
    """The pod template of a role's stage."""
    template: dict[str, Any] = stateful_set(model, role, stage, settings)["spec"]["template"]
    return template


def containers(template: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All containers of a pod template by name, init containers too."""
    spec = template["spec"]
    return {item["name"]: item for item in (*spec.get("initContainers", ()), *spec["containers"])}


def env(container: dict[str, Any]) -> dict[str, Any]:
    """Variables by name: the value, or the source."""
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container.get("env", ())}
