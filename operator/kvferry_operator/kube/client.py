"""The API server as the operator uses it: a dozen calls, plain JSON in and out, errors of our own.

The official client logs in and keeps the connections. Its models stay out: an operator that applies hundreds of
objects a second has no time to turn each into classes and back.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from kvferry_operator.api import names
from kvferry_operator.desired.stage import Manifest
from kvferry_operator.errors import Conflict, Forbidden, Unreachable
from kvferry_operator.kube import connection, failures, kinds, paths
from kvferry_operator.kube.calls import Answer, Call
from kvferry_operator.kube.connection import Connection
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.kube.login import Access, Login, login

Kept = TypeVar("Kept")

PAGE_SIZE = 100
PAGE_DEADLINE_SECONDS = 30.0

_STRICT = {"fieldManager": names.MANAGER, "fieldValidation": "Strict"}
_VERSION = Kind("v1", "Version", "version")


@asynccontextmanager
async def connect(kubeconfig: Path | None = None) -> AsyncIterator[Cluster]:
    """A client for the cluster that `kubeconfig` names, or for the one that `login` finds.

    No request is made yet.

    Raises:
        InputError: no kubeconfig, or one that cannot be used.
    """
    found = await login(kubeconfig)
    async with connection.opened(found) as server:
        yield Cluster(server, found)


class Cluster:
    """Made by `connect`. Every call has a deadline and raises nothing but `ClusterError`s."""

    def __init__(self, server: Connection, access: Login) -> None:
        self._server = server
        self._login = access

    @property
    def access(self) -> Access:
        """Where the server is and how this client gets in, for another client; as it was at the last request."""
        return self._login.access

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """The object, or None if there is none."""
        call = Call("get", kind, namespace, name)
        answer = await self._server.ask(call, "GET", paths.item(kind, namespace, name))
        return None if failures.not_there(answer) else _content(call, answer)

    async def collect(
        self, kind: Kind, namespace: str | None, selector: str, keep: Callable[[Manifest], Kept]
    ) -> list[Kept]:
        """Of each object that `list` would give what `keep` makes of it: only one page of them is ever in memory."""
        try:
            return await _pages(self._server, kind, namespace, selector, keep)
        except Conflict:
            # 410: reading took so long that the server has forgotten the moment of the first page
            return await _pages(self._server, kind, namespace, selector, keep)

    async def list(self, kind: Kind, namespace: str | None, selector: str = "") -> list[Manifest]:
        """All objects that carry the labels of `selector` (`a=b,c`), read in pages, as of one moment.

        namespace: None for the whole cluster.
        """
        return await self.collect(kind, namespace, selector, lambda item: item)

    async def apply(self, manifest: Manifest, subresource: str = "", manager: str = names.MANAGER) -> Manifest:
        """Server-side apply: what `manifest` says is so afterwards, and what it said before and no longer says is gone.

        Returns:
            the object as it is stored now.
        """
        kind, namespace, name = _identity(manifest)
        call = Call("apply", kind, namespace, name, subresource)
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": "true"}
        path = paths.item(kind, namespace, name, subresource)
        return _content(call, await self._server.ask(call, "PATCH", path, query, manifest, connection.APPLY))

    async def create(self, manifest: Manifest) -> Manifest | None:
        """Make a new object, and give it as it is stored. None: one of that name exists already, and stays as it is.

        Its fields belong to `names.MANAGER`, but not in the way of an apply: see `reconcile.adoption`.
        """
        kind, namespace, name = _identity(manifest)
        call = Call("create", kind, namespace, name)
        answer = await self._server.ask(call, "POST", paths.collection(kind, namespace), _STRICT, manifest)
        return None if failures.already_exists(answer) else _content(call, answer)

    async def set_managers(self, live: Manifest, managed_fields: Sequence[Mapping[str, Any]]) -> None:
        """Write down anew who manages which fields of an object, and leave the object itself as it is.

        live: as it was read.

        Raises:
            Conflict: it has changed since.
        """
        kind, namespace, name = _identity(live)
        call = Call("patch", kind, namespace, name)
        version = live["metadata"]["resourceVersion"]
        body = {"metadata": {"resourceVersion": version, "managedFields": list(managed_fields)}}
        path = paths.item(kind, namespace, name)
        _content(call, await self._server.ask(call, "PATCH", path, _STRICT, body, connection.MERGE))

    async def replace(self, manifest: Manifest) -> Manifest:
        """Write a whole object over the one with the same resourceVersion.

        Raises:
            Conflict: it has another resourceVersion by now, or is gone.
        """
        kind, namespace, name = _identity(manifest)
        call = Call("update", kind, namespace, name)
        path = paths.item(kind, namespace, name)
        return _content(call, await self._server.ask(call, "PUT", path, _STRICT, manifest))

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        """Delete this very object, and in the background what it owns. Gone already is fine.

        Raises:
            Conflict: another object has the name now.
        """
        call = Call("delete", kind, namespace, name)
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        answer = await self._server.ask(call, "DELETE", paths.item(kind, namespace, name), body=options)
        if not failures.not_there(answer):
            _content(call, answer)

    async def scale(self, namespace: str, stateful_set: str, replicas: int) -> None:
        """Set the replicas of a StatefulSet, and nothing else of it."""
        call = Call("patch", kinds.STATEFUL_SET, namespace, stateful_set, "scale")
        path = paths.item(kinds.STATEFUL_SET, namespace, stateful_set, "scale")
        body = {"spec": {"replicas": replicas}}
        _content(call, await self._server.ask(call, "PATCH", path, _STRICT, body, connection.MERGE))

    async def ask_pod(self, namespace: str, pod: str, port: int, path: str, limit: int) -> bytes:
        """What a pod answers to a GET, asked through the API server. limit: the most bytes that are taken.

        Raises:
            Forbidden: the right to get pods/proxy is missing.
            Unreachable: no such pod, nobody listens, another status than 200, too long an answer.
        """
        call = Call("get", kinds.POD, namespace, f"{pod}:{port}", "proxy")
        answer = await self._server.ask(call, "GET", paths.pod_proxy(namespace, pod, port, path), limit=limit)
        if answer.status == 200:
            return answer.body
        error = failures.error(call, answer)
        # whatever else it is: of the pod's own refusals none is about an object of ours
        raise error if isinstance(error, Forbidden) else Unreachable(str(error))

    async def server_version(self) -> tuple[int, int]:
        """Major and minor number."""
        call = Call("get", _VERSION)
        content = _content(call, await self._server.ask(call, "GET", paths.VERSION))
        try:
            # some vendors write `34+`
            return int(content["major"]), int(content["minor"].rstrip("+"))
        except (KeyError, ValueError, AttributeError) as error:
            raise Unreachable(f"{call}: found {content!r}, which is no version") from error

    async def model_schema(self) -> Mapping[str, Any] | None:
        """The schema of a DisaggregatedModel as the server knows it; None if it knows none."""
        call = Call("get", kinds.MODEL, name="schema")
        answer = await self._server.ask(call, "GET", paths.schemas(kinds.MODEL.api_version))
        if answer.status == 404:
            return None
        schemas = _content(call, answer).get("components", {}).get("schemas", {})
        return next((schema for schema in schemas.values() if _describes(schema, kinds.MODEL)), None)


async def _pages(
    server: Connection, kind: Kind, namespace: str | None, selector: str, keep: Callable[[Manifest], Kept]
) -> list[Kept]:
    call = Call("list", kind, namespace)
    path = paths.collection(kind, namespace)
    query = {"limit": str(PAGE_SIZE)} | ({"labelSelector": selector} if selector else {})
    found: list[Kept] = []
    while True:
        page = _content(call, await server.ask(call, "GET", path, query, deadline=PAGE_DEADLINE_SECONDS))
        # the items of a list do not say themselves what they are
        found += (keep({"apiVersion": kind.api_version, "kind": kind.kind, **item}) for item in page["items"])
        more = page["metadata"].get("continue")
        if not more:
            return found
        query["continue"] = more


def _identity(manifest: Manifest) -> tuple[Kind, str | None, str]:
    metadata = manifest["metadata"]
    return kinds.of(manifest), metadata.get("namespace"), metadata["name"]


def _content(call: Call, answer: Answer) -> Manifest:
    """The object in a successful answer.

    Raises:
        ClusterError: it is not a success, or not an object.
    """
    if not 200 <= answer.status < 300:
        raise failures.error(call, answer)
    try:
        content = json.loads(answer.body)
    except ValueError as error:
        raise Unreachable(f"{call}: the answer is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise Unreachable(f"{call}: the answer is no object but {type(content).__name__}")
    return content


def _describes(schema: Mapping[str, Any], kind: Kind) -> bool:
    return any(
        entry.get("kind") == kind.kind and entry.get("group") == kind.group
        for entry in schema.get("x-kubernetes-group-version-kind", ())
    )
