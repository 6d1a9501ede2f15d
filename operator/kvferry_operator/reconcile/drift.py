"""Whether an object in the cluster is still as we applied it. Pure; this is what makes a steady model cost no request.

Two questions. Has what we want changed since it was applied? The annotation on the object answers it: a hash of what
was applied, so that a restart of the operator applies nothing. Has somebody changed the object since? Every field that
we want is looked up in it. What the API server and others add (defaults, injected containers, labels) is not looked
at, as far as applying again would leave it there as well.

Lists with keys, and maps that are replaced as a whole, are those that the API server's own schemas name for the kinds
that we make.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvferry_operator.api import names, quantity

ANNOTATION = f"{names.GROUP}/applied"
_HASH_LENGTH = 16

_KEYS: Mapping[str, tuple[str, ...]] = {
    "ownerReferences": ("uid",),
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "secrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "resourceClaims": ("name",),
    "claims": ("name",),
    "schedulingGates": ("name",),
}
_PORT_KEYS: Mapping[str, tuple[str, ...]] = {"Service": ("port", "protocol")}
_CONTAINER_PORT_KEYS = ("containerPort", "protocol")
_DEFAULTS = {"protocol": "TCP"}

_SELECTORS = frozenset({"selector", "podSelector", "namespaceSelector", "labelSelector", "nodeSelector"})
_RULES = frozenset({"NetworkPolicy", "Role", "RoleBinding"})
"""Kinds in which an addition to an item of a list opens what should be closed, and an apply takes it away again."""

_QUANTITIES = frozenset({"requests", "limits", "overhead", "sizeLimit", "divisor"})
_FREE_MAPS = frozenset(
    {"labels", "annotations", "matchLabels", "nodeSelector", "requests", "limits", "overhead", "data"}
)
"""Maps from text to text, with keys of the user's choice: no key has a meaning, and an empty map is not stored."""
_NOT_STORED_WHEN_ZERO = frozenset(
    {
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "hostPort",
        "readOnly",
        "stdin",
        "stdinOnce",
        "tty",
        "initialDelaySeconds",
        "minReadySeconds",
        "publishNotReadyAddresses",
        "paused",
    }
)

JsonObject = Mapping[str, Any]
_MAP, _LIST = dict, (list, tuple)
"""What manifests are made of. Asked a few hundred times for each object: of abstract classes the answer takes long."""


def applied_hash(manifest: JsonObject) -> str:
    """Of everything that the manifest says, whatever the order of its keys; without the annotation that holds it."""
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_HASH_LENGTH]


def stamped(manifest: JsonObject) -> dict[str, Any]:
    """The manifest with its hash as an annotation, to be applied."""
    metadata = manifest["metadata"]
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: applied_hash(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def differences(desired: JsonObject, live: JsonObject) -> Iterator[str]:
    """Paths of all fields that are not as desired, like `spec.template.spec.containers[engine].image`.

    desired: as built, not `stamped`. live: the object of the same kind and name as the API server gave it.
    """
    comparison = _Comparison(str(desired["kind"]))
    for key, value in desired.items():
        if key not in ("apiVersion", "kind"):
            yield from comparison.value(key, key, value, live.get(key))


class _Comparison:
    """Of one object. A `path` is for people, a `key` is the name of the field that a value stands in."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def value(self, path: str, key: str, desired: Any, live: Any, *, whole: bool = False) -> Iterator[str]:
        """whole: a map may have no more keys than desired."""
        if desired is None or (live is None and _is_not_stored(key, desired)):
            return
        if isinstance(desired, _MAP) and isinstance(live, _MAP):
            yield from self._map(path, key, desired, live, whole=whole or key in _SELECTORS)
        elif isinstance(desired, _LIST) and isinstance(live, _LIST):
            yield from self._list(path, key, desired, live)
        elif not _is_equal(key, desired, live):
            yield path

    def _map(self, path: str, key: str, desired: JsonObject, live: JsonObject, *, whole: bool) -> Iterator[str]:
        for name, value in desired.items():
            if key not in _FREE_MAPS:
                yield from self.value(f"{path}.{name}", name, value, live.get(name), whole=whole)
            elif name not in live or not _is_equal(key, value, live[name]):
                yield f"{path}.{name}"
        if whole:
            yield from (f"{path}.{name}" for name, value in live.items() if name not in desired and _says(name, value))

    def _list(self, path: str, key: str, desired: Sequence[Any], live: Sequence[Any]) -> Iterator[str]:
        keys = self._keys(key)
        if not keys or not all(isinstance(item, _MAP) for item in (*desired, *live)):
            yield from self._plain_list(path, desired, live)
            return
        found = {_identity(keys, item): item for item in live}
        ours = [_identity(keys, item) for item in desired]
        wanted = set(ours)
        for identity, item in zip(ours, desired, strict=True):
            yield from self.value(f"{path}[{identity[0]}]", "", item, found.get(identity))
        # an apply restores our order, which decides what starts first and which variables may refer to which
        present = [identity for identity in found if identity in wanted]
        if present != [identity for identity in ours if identity in found]:
            yield path

    def _plain_list(self, path: str, desired: Sequence[Any], live: Sequence[Any]) -> Iterator[str]:
        if len(desired) != len(live):
            yield path
            return
        for index, (wanted, item) in enumerate(zip(desired, live, strict=True)):
            yield from self.value(f"{path}[{index}]", "", wanted, item, whole=self._kind in _RULES)

    def _keys(self, key: str) -> tuple[str, ...]:
        if self._kind in _RULES and key != "ownerReferences":
            return ()
        return _PORT_KEYS.get(self._kind, _CONTAINER_PORT_KEYS) if key == "ports" else _KEYS.get(key, ())


def _says(name: str, value: Any) -> bool:
    """Whether a field that we did not ask for means anything."""
    return value not in (None, {}, [], "", _DEFAULTS.get(name))


def _identity(keys: Sequence[str], item: JsonObject) -> tuple[Any, ...]:
    return tuple(item.get(key, _DEFAULTS.get(key)) for key in keys)


def _is_not_stored(key: str, desired: Any) -> bool:
    """Whether the API server leaves such a value out, as it means the same as none."""
    if isinstance(desired, _MAP):
        return not desired and key in _FREE_MAPS
    if isinstance(desired, (*_LIST, str)):
        return not desired
    return not desired and key in _NOT_STORED_WHEN_ZERO


def _is_equal(key: str, desired: Any, live: Any) -> bool:
    if key in _QUANTITIES:
        return bool(_amount(desired) == _amount(live))
    # True is 1 in Python, but not in JSON
    return isinstance(desired, bool) == isinstance(live, bool) and bool(desired == live)


def _amount(value: Any) -> Any:
    """By value, so that `0.5` and `500m` are the same; as it stands if it is none that we can read."""
    try:
        return quantity.parse(str(value) if isinstance(value, float) else value)
    except quantity.QuantityError:
        return value
