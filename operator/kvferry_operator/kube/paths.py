"""Where the API server keeps things. Pure."""

from __future__ import annotations

from urllib.parse import quote

from kvferry_operator.kube.kinds import POD, Kind

VERSION = "/version"


def collection(kind: Kind, namespace: str | None = None) -> str:
    """All objects of a kind; without namespace: of the whole cluster, or of a kind that has none."""
    prefix = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
    return f"{prefix}/namespaces/{_segment(namespace)}/{kind.plural}" if namespace else f"{prefix}/{kind.plural}"


def item(kind: Kind, namespace: str | None, name: str, subresource: str = "") -> str:
    """One object, or a subresource of it such as `status`."""
    tail = f"/{subresource}" if subresource else ""
    return f"{collection(kind, namespace)}/{_segment(name)}{tail}"


def pod_proxy(namespace: str, pod: str, port: int, path: str) -> str:
    """What a pod answers on a port, asked through the API server. path: with a slash in front."""
    return f"{item(POD, namespace, f'{pod}:{port}', 'proxy')}{quote(path)}"


def schemas(api_version: str) -> str:
    """OpenAPI v3 of one group and version, as served."""
    return f"/openapi/v3/apis/{api_version}"


def _segment(name: str) -> str:
    """No name can leave its place in a path: `..`, `/` and `?` are written out, and dots alone name nothing."""
    if name.strip(".") == "":
        raise ValueError(f"{name!r} is no name of an object")
    return quote(name, safe=":")
