"""The revision: a short hash over everything that needs new pods, shared by both roles.

Replicas, scaling, ratio, rollout, restart, drain, budgets, placement, router, network policy, verification and
`paused` stay out: they change nothing that two pods must agree on, and reach new pods without a rollout (StatefulSets
are updated `OnDelete`). Only values that differ from their default count, so that a field that is new in the next
release restarts nobody.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from kvferry_operator.api import names
from kvferry_operator.api.types import DisaggregatedModel, EngineType, RoleSpec
from kvferry_operator.desired.settings import Settings
from kvferry_operator.desired.stage import roles


def revision(model: DisaggregatedModel, settings: Settings) -> str:
    """Eight hexadecimal digits."""
    canonical = json.dumps(_content(model, settings), sort_keys=True, separators=(",", ":"))
    return names.short_hash(canonical)


def _content(model: DisaggregatedModel, settings: Settings) -> dict[str, Any]:
    spec = model.spec
    return {
        "mode": spec.mode.value,
        "model": _given(spec.model),
        "engine": _given(spec.engine),
        "roles": {role.value: _role(part) for role, part in roles(model)},
        "transfer": {key: value for key, value in _given(spec.transfer).items() if key != "verify"},
        "sidecar": _given(spec.sidecar),
        "images": _default_images(model, settings),
        "restartID": spec.restart_id,
    }


def _role(spec: RoleSpec) -> dict[str, Any]:
    return {
        "parallelism": _given(spec.parallelism),
        "resources": _given(spec.resources),
        "rdma": _given(spec.rdma),
        "template": spec.template,
    }


def _default_images(model: DisaggregatedModel, settings: Settings) -> list[str]:
    """Images that the installation gives: another release means new pods, since both ends speak one protocol."""
    images, engine = settings.images, model.spec.engine
    found = [] if model.spec.sidecar.image else [images.runtime]
    if not engine.image:
        found.append(images.vllm if engine.type is EngineType.VLLM else images.engine)
    if engine.type is EngineType.VLLM:
        found.append(images.runtime)
    return sorted(set(found))


def _given(part: Any) -> dict[str, Any]:
    """The fields of a part of the spec that differ from their defaults, as plain values."""
    found = {}
    for item in dataclasses.fields(part):
        value = getattr(part, item.name)
        default = item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default
        if value != default:
            found[item.name] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return _given(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
