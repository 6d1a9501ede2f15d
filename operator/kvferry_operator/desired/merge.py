"""Strategic merge: one pod template laid on another, list items matched by their key as Kubernetes does.

Maps are merged, null removes. Lists with a key are merged by it; other lists and all scalars are replaced. Environment
variables, volumes, mounts and ports are replaced one item at a time, since their sources exclude each other; so are
the handlers of probes and hooks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvferry_operator.errors import FieldError

KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "protocol"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "resourceClaims": ("name",),
}
_WHOLE_ITEMS = frozenset({"env", "volumes", "volumeMounts", "ports"})
_USERS_FIRST = frozenset({"initContainers"})
"""A user's own init containers (wait for a network, fetch a file) run before ours, which the engine relies on."""
_HANDLERS = frozenset({"httpGet", "tcpSocket", "exec", "grpc", "sleep"})
_PLAIN_MAPS = frozenset({"labels", "annotations", "nodeSelector", "matchLabels", "requests", "limits", "overhead"})
"""Maps whose keys are the user's own words, so that a label `env` is not taken for a list of variables."""
_WITH_HANDLER = frozenset({"startupProbe", "livenessProbe", "readinessProbe", "preStop", "postStart"})


def onto(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` laid on `base`, both well-formed. Neither is changed."""
    errors: list[FieldError] = []
    merged = merge_map(base, top, "", errors)
    assert not errors, errors
    return merged


def fill(base: Mapping[str, Any], parts: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with those of `parts` that it lacks, both well-formed: what is there stays as it is and where it is."""
    filled = dict(base)
    for key, value in parts.items():
        present = filled.get(key)
        if key not in filled:
            filled[key] = value
        elif key in KEYS and isinstance(present, Sequence):
            filled[key] = _fill_list(key, present, value)
        elif isinstance(present, Mapping) and isinstance(value, Mapping):
            filled[key] = fill(present, value)
    return filled


def _fill_list(name: str, base: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
    items = {_key_of(name, item): item for item in base}
    for part in parts:
        key = _key_of(name, part)
        if key not in items:
            items[key] = part
        elif name not in _WHOLE_ITEMS:
            items[key] = fill(items[key], part)
    return list(items.values())


def merge_map(
    base: Mapping[str, Any], top: Mapping[str, Any], path: str, errors: list[FieldError], *, plain: bool = False
) -> dict[str, Any]:
    """`top` laid on `base`; what does not fit is left out and reported with its path.

    plain: below a map such as labels, where no key has a meaning.
    """
    merged = dict(base)
    for key, value in top.items():
        where = f"{path}.{key}"
        if key.startswith("$"):
            errors.append(FieldError(where, "patch directives are not supported; null removes a value"))
        elif value is None:
            merged.pop(key, None)
        elif key in KEYS and not plain:
            merged[key] = _merge_list(key, merged.get(key), value, where, errors)
        elif isinstance(merged.get(key), Mapping):
            if not isinstance(value, Mapping):
                errors.append(FieldError(where, f"must be an object, found {type(value).__name__}"))
                continue
            below = _without_other_handlers(merged[key], value) if key in _WITH_HANDLER else merged[key]
            merged[key] = merge_map(below, value, where, errors, plain=plain or key in _PLAIN_MAPS)
        elif isinstance(value, Mapping):
            merged[key] = merge_map({}, value, where, errors, plain=plain or key in _PLAIN_MAPS)
        else:
            merged[key] = value
    return merged


def _merge_list(name: str, base: object, top: object, path: str, errors: list[FieldError]) -> list[Any]:
    below = list(base) if isinstance(base, Sequence) else []
    if not isinstance(top, Sequence) or isinstance(top, str):
        errors.append(FieldError(path, f"must be a list, found {type(top).__name__}"))
        return below
    items: dict[tuple[Any, ...], Any] = {_key_of(name, item): item for item in below}
    seen: set[tuple[Any, ...]] = set()
    added: dict[tuple[Any, ...], Any] = {}
    for index, item in enumerate(top):
        if not isinstance(item, Mapping) or not isinstance(item.get(KEYS[name][0]), str | int):
            errors.append(FieldError(f"{path}[{index}]", f"must be an object with {KEYS[name][0]}"))
            continue
        key = _key_of(name, item)
        where = f"{path}[{key[0]}]"
        if key in seen:
            errors.append(FieldError(where, "appears twice"))
            continue
        seen.add(key)
        if key in items:
            items[key] = dict(item) if name in _WHOLE_ITEMS else merge_map(items[key], item, where, errors)
        else:
            added[key] = dict(item) if name in _WHOLE_ITEMS else merge_map({}, item, where, errors)
    ordered = added | items if name in _USERS_FIRST else items | added
    return list(ordered.values())


def _key_of(name: str, item: Mapping[str, Any]) -> tuple[Any, ...]:
    first, *rest = KEYS[name]
    # a port without protocol is TCP
    return (item[first], *(str(item.get(key, "TCP")) for key in rest))


def _without_other_handlers(base: Mapping[str, Any], top: Mapping[str, Any]) -> Mapping[str, Any]:
    """A probe or hook has one handler: another kind on top replaces the one below."""
    if not _HANDLERS & set(top):
        return base
    return {key: value for key, value in base.items() if key not in _HANDLERS or key in top}
