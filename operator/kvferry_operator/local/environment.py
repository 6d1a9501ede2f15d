"""The environment of a container, as the kubelet would resolve it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvferry_operator.local.errors import Unsupported
from kvferry_operator.local.objects import Store
from kvferry_operator.local.pods import Container, Pod

_REFERENCE = re.compile(r"\$(\$|\(([A-Za-z_.\-][\w.\-]*)\))")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, `$$` a dollar sign; an unknown name stays as it is written."""

    def replacement(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)


def resolve(pod: Pod, container: Container, address: str, store: Store, host: Mapping[str, str]) -> dict[str, str]:
    """All variables that the container declares, in order, each seeing those before it.

    host: this machine's environment; it stands in for a Secret or ConfigMap that exists only in a cluster, under
    the variable's own name (`HF_TOKEN`).

    Raises:
        Unsupported: a source that only a cluster has, or one that is missing; names pod, container and variable.
    """
    found: dict[str, str] = {}
    for source in container.spec.get("envFrom", ()):
        found |= _whole(source, store)
    for entry in container.spec.get("env", ()):
        name = entry["name"]
        if "valueFrom" not in entry:
            found[name] = expand(str(entry.get("value", "")), found)
            continue
        where = f"pod {pod.name}, container {container.name}, env {name}"
        value = _from(entry["valueFrom"], name, where, pod, address, store, host)
        if value is not None:
            found[name] = value
    return found


def _whole(source: Mapping[str, Any], store: Store) -> dict[str, str]:
    prefix = source.get("prefix", "")
    if "configMapRef" in source:
        data = store.config_map(source["configMapRef"]["name"])
    else:
        data = store.secret(source["secretRef"]["name"])
    return {prefix + key: value.decode() for key, value in data.items()}


def _from(
    source: Mapping[str, Any], name: str, where: str, pod: Pod, address: str, store: Store, host: Mapping[str, str]
) -> str | None:
    if "fieldRef" in source:
        return _field(source["fieldRef"]["fieldPath"], where, pod, address)
    for key, kind, data in (
        ("configMapKeyRef", "ConfigMap", store.config_maps),
        ("secretKeyRef", "Secret", store.secrets),
    ):
        if key in source:
            return _key(source[key], data, host.get(name), f"{where}: {kind}", name)
    raise Unsupported(f"{where}: {', '.join(source)} exists only in a cluster")


def _key(
    reference: Mapping[str, Any], data: Mapping[str, Mapping[str, bytes]], stand_in: str | None, what: str, name: str
) -> str | None:
    value = data.get(reference["name"], {}).get(reference["key"])
    if value is not None:
        return value.decode()
    if stand_in is not None or reference.get("optional"):
        return stand_in
    raise Unsupported(
        f"{what} {reference['name']}, key {reference['key']}, exists only in a cluster: "
        f"set {name} in the environment of this command instead"
    )


def _field(path: str, where: str, pod: Pod, address: str) -> str:
    plain = {
        "metadata.name": pod.name,
        "metadata.namespace": pod.namespace,
        "metadata.uid": f"local-{pod.name}",
        "status.podIP": address,
        "status.podIPs": address,
        "status.hostIP": address,
        "spec.nodeName": "localhost",
        "spec.serviceAccountName": str(pod.spec.get("serviceAccountName", "default")),
    }
    if path in plain:
        return plain[path]
    subscript = _SUBSCRIPT.fullmatch(path)
    if subscript:
        return (pod.labels if subscript[1] == "labels" else pod.annotations).get(subscript[2], "")
    raise Unsupported(f"{where}: field {path} exists only in a cluster")
