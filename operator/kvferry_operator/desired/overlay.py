"""The user's own pod template, laid on ours last. What makes a pod one of ours cannot be changed by it.

A clash is an error with its path, never ignored. Setting a protected value to what it is anyway is no clash, so that
laying the same template on twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvferry_contract import paths
from kvferry_operator.api import names
from kvferry_operator.api.rules import ENV_PREFIX, FREE_ENV
from kvferry_operator.desired import devices, merge, pod, sidecar
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import FieldError

_PROTECTED_MOUNTS = frozenset({paths.RING_DIR, paths.CONFIG_DIR, paths.KEY_DIR})
_PROTECTED_VOLUMES = frozenset({pod.VOLUME_CONFIG, sidecar.VOLUME_RING, pod.VOLUME_KEY})
_SIDECAR_FIELDS = ("command", "args", "restartPolicy", "ports", "startupProbe")


@dataclass(frozen=True, slots=True)
class Guard:
    """What the rendered template insists on beyond labels, variables and mounts.

    least_grace: the shortest termination grace period. device: the RDMA resource that only the sidecar may ask for.
    """

    least_grace: int
    device: str = ""
    device_path: str = ""


def apply(ours: Manifest, users: Mapping[str, Any], path: str, guard: Guard) -> tuple[Manifest, tuple[FieldError, ...]]:
    """The merged template and all clashes; path is where the user's template stands, `spec.decode.template`.

    With errors the merged template is not to be used.
    """
    errors = [FieldError(f"{path}.{key}", "unknown field; a template has metadata and spec") for key in _foreign(users)]
    errors += _misplaced(ours, users, path)
    merged = merge.merge_map(
        ours, {key: users[key] for key in ("metadata", "spec") if users.get(key) is not None}, path, errors
    )
    if not errors:
        merged = _with_joined_networks(ours, merged, users, path, errors)
        errors += _metadata_clashes(ours["metadata"], merged["metadata"], f"{path}.metadata")
        errors += _pod_clashes(ours["spec"], merged["spec"], f"{path}.spec", guard)
    return merged, tuple(errors)


def _foreign(users: Mapping[str, Any]) -> list[str]:
    return [key for key in users if key not in ("metadata", "spec")]


def _misplaced(ours: Manifest, users: Mapping[str, Any], path: str) -> list[FieldError]:
    """Our containers named in the list in which they are not."""
    spec = users.get("spec")
    if not isinstance(spec, Mapping):
        return []
    errors = []
    for wrong, right in (("containers", "initContainers"), ("initContainers", "containers")):
        given = spec.get(wrong)
        known = {container["name"] for container in ours["spec"].get(right, ())}
        for item in given if isinstance(given, list) else ():
            if isinstance(item, Mapping) and isinstance(item.get("name"), str) and item["name"] in known:
                errors.append(FieldError(f"{path}.spec.{wrong}[{item['name']}]", f"belongs in {right}"))
    return errors


def _with_joined_networks(
    ours: Manifest, merged: Manifest, users: Mapping[str, Any], path: str, errors: list[FieldError]
) -> Manifest:
    """Networks of the user's annotation after those of `rdma.networks`, each once."""
    own = ours["metadata"]["annotations"].get(names.ANNOTATION_NETWORKS, "")
    theirs = ((users.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_NETWORKS, "")
    if not own or not theirs:
        return merged
    if not isinstance(theirs, str) or theirs.lstrip().startswith("["):
        where = f"{path}.metadata.annotations[{names.ANNOTATION_NETWORKS}]"
        errors.append(FieldError(where, "the JSON form cannot be joined with rdma.networks; use names, or this alone"))
        return merged
    joined = ",".join(dict.fromkeys(item.strip() for item in f"{own},{theirs}".split(",")))
    return merge.onto(merged, {"metadata": {"annotations": {names.ANNOTATION_NETWORKS: joined}}})


def _metadata_clashes(ours: Manifest, merged: Manifest, path: str) -> Iterable[FieldError]:
    for label, value in merged.get("labels", {}).items():
        if not isinstance(value, str):
            yield FieldError(f"{path}.labels[{label}]", "must be text; put it in quotes")
        elif _is_ours(label) and ours["labels"].get(label) != value:
            yield FieldError(f"{path}.labels[{label}]", "is set by kvferry and cannot be changed")
    for name, value in merged.get("annotations", {}).items():
        if not isinstance(value, str):
            yield FieldError(f"{path}.annotations[{name}]", "must be text; put it in quotes")
    for label in ours["labels"]:
        if label not in merged.get("labels", {}):
            yield FieldError(f"{path}.labels[{label}]", "is set by kvferry and cannot be removed")
    for key in ("name", "namespace"):
        if key in merged:
            yield FieldError(f"{path}.{key}", "is set by kvferry and cannot be changed")


def _is_ours(label: str) -> bool:
    return label in names.OUR_LABELS or label.startswith(f"{names.GROUP}/")


def _pod_clashes(ours: Manifest, merged: Manifest, path: str, guard: Guard) -> Iterable[FieldError]:
    if merged.get("restartPolicy", "Always") != "Always":
        yield FieldError(f"{path}.restartPolicy", f"must be Always, found {merged['restartPolicy']}")
    grace = merged.get("terminationGracePeriodSeconds")
    if isinstance(grace, bool) or not isinstance(grace, int) or grace < guard.least_grace:
        message = f"must be at least {guard.least_grace} (drain and reserves), found {grace}"
        yield FieldError(f"{path}.terminationGracePeriodSeconds", message)
    yield from _changed(ours, merged, "volumes", "name", _PROTECTED_VOLUMES, path)
    for kind in ("initContainers", "containers"):
        own = {container["name"]: container for container in ours.get(kind, ())}
        present = {container["name"] for container in merged.get(kind, ())}
        for name in own:
            if name not in present:
                yield FieldError(f"{path}.{kind}[{name}]", "is set by kvferry and cannot be removed")
        for container in merged.get(kind, ()):
            where = f"{path}.{kind}[{container['name']}]"
            yield from _container_clashes(own.get(container["name"], {}), container, where)
            yield from _device_clashes(container, where, guard)


def _container_clashes(ours: Manifest, merged: Manifest, path: str) -> Iterable[FieldError]:
    if not ours:
        return
    protected = {item["name"] for item in ours.get("env", ()) if item["name"].startswith(ENV_PREFIX)}
    protected |= {item["name"] for item in merged.get("env", ()) if str(item["name"]).startswith(ENV_PREFIX)} - FREE_ENV
    yield from _changed(ours, merged, "env", "name", protected, path)
    yield from _changed(ours, merged, "volumeMounts", "mountPath", _PROTECTED_MOUNTS, path)
    if merged["name"] == names.CONTAINER_SIDECAR:
        for key in _SIDECAR_FIELDS:
            if merged.get(key) != ours.get(key):
                yield FieldError(f"{path}.{key}", "is set by kvferry and cannot be changed")
    for item in merged.get("env", ()):
        if not isinstance(item.get("value", ""), str):
            yield FieldError(f"{path}.env[{item['name']}].value", "must be text; put it in quotes")
    taken = [str(port["name"]) for port in merged.get("ports", ()) if "name" in port]
    for name in sorted({name for name in taken if taken.count(name) > 1}):
        yield FieldError(f"{path}.ports", f"two ports are named {name}")


def _changed(
    ours: Manifest, merged: Manifest, kind: str, key: str, protected: Iterable[str], path: str
) -> Iterable[FieldError]:
    """Protected items of a list that were changed, added or removed."""
    before = {item[key]: item for item in ours.get(kind, ())}
    after = {item[key]: item for item in merged.get(kind, ())}
    for name in sorted(protected):
        if before.get(name) != after.get(name):
            yield FieldError(f"{path}.{kind}[{name}]", "is set by kvferry and cannot be changed")


def _device_clashes(container: Manifest, path: str, guard: Guard) -> Iterable[FieldError]:
    resources = container.get("resources")
    if resources is None:
        return
    if not isinstance(resources, Mapping):
        yield FieldError(f"{path}.resources", "must be an object")
        return
    yield from devices.extended_errors(resources, f"{path}.resources")
    if not guard.device:
        return
    for side in ("requests", "limits"):
        amounts = resources.get(side)
        amount = amounts.get(guard.device) if isinstance(amounts, Mapping) else None
        if amount is not None and container["name"] != names.CONTAINER_SIDECAR:
            message = f"goes to the sidecar alone; set its number in {guard.device_path}"
            yield FieldError(f"{path}.resources.{side}.{guard.device}", message)
