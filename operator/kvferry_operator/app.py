"""The watches, by kopf, which is imported here alone: what they tell goes into the store, and keys into the queue.

`on.event` handlers write nothing to any object, need no finalizer, and are neither retried nor batched: so they only
take note. An error that a watch cannot recover from ends `watch`, and with it the process, which is started anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, cast

import kopf

from kvferry_operator.api import names
from kvferry_operator.kube import kinds
from kvferry_operator.kube.client import Cluster
from kvferry_operator.kube.kinds import Kind
from kvferry_operator.metrics import WATCHED
from kvferry_operator.view.listener import Heard

Hear = Callable[[Kind, Heard, Mapping[str, Any]], None]
"""Must not block, wait or raise."""

SERVER_SECONDS = 240
"""A watch is ended by the server after this, and begun again."""
CLIENT_SECONDS = SERVER_SECONDS + 30.0
"""A server that does not end it is not waited for."""
SILENCE_SECONDS = 70.0
"""Bookmarks come every 60 s: a watch that says nothing for longer is dead."""
CONNECT_SECONDS = 10.0
REQUEST_SECONDS = 60.0
RETRY_SECONDS = (1.0, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0)
"""Pauses after failed requests; when they are used up, a server that cannot be reached is asked from the start again,
and one that refuses ends the process."""
IDLE_SECONDS = 1.0
"""So long kopf keeps a task for an object of which nothing was heard."""
PAGE_SIZE = 100

_HEARD = {None: Heard.LISTED, "DELETED": Heard.DELETED}


async def watch(
    cluster: Cluster,
    namespaces: Collection[str],
    hear: Hear,
    take_signals: Callable[[], None],
) -> None:
    """Watch models, and by their label children and pods, until it is cancelled.

    namespaces: empty for all. take_signals: called once kopf listens to signals too. At one it would wait for every
    task that began after itself, such as passes and connections of probes.

    Raises:
        Exception: a watch was refused, or broke in a way that kopf does not mend.
    """
    asyncio.get_running_loop().set_exception_handler(_report)
    others = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=_registry(cluster, hear),
        settings=_settings(),
        # else kopf asks for the name of its user, which a container's numeric user has not
        identity=cast("Any", names.MANAGER),
        standalone=True,
        clusterwide=not namespaces,
        namespaces=sorted(namespaces),
    )
    take_signals()
    await kopf.run_tasks(tasks, ignored=others)


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """As the loop does by itself, but for the streams that kopf leaves half read when it is cancelled: the end of the
    loop closes their inner parts before the outer ones, which fails and harms nothing."""
    if "asyncgen" not in context:
        loop.default_exception_handler(context)


def _registry(cluster: Cluster, hear: Hear) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry, id="login")(_login(cluster))
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry, id=kind.plural)(_ear(kind, hear))
    return registry


def _ear(kind: Kind, hear: Hear) -> Callable[..., Coroutine[Any, Any, None]]:
    async def tell(event: kopf.RawEvent, **_given: Any) -> None:
        hear(kind, _HEARD.get(event["type"], Heard.CHANGED), event["object"])

    return tell


def _login(cluster: Cluster) -> Callable[..., Coroutine[Any, Any, kopf.ConnectionInfo]]:
    refused: set[str] = set()

    async def login(**_given: Any) -> kopf.ConnectionInfo:
        if cluster.access.authorization in refused:
            # a request of the cluster's own has new ones fetched, if there are any
            await cluster.server_version()
        access = cluster.access
        refused.add(access.authorization)
        scheme, _, token = access.authorization.partition(" ")
        return kopf.ConnectionInfo(
            server=access.server,
            ca_path=access.ca_file,
            insecure=access.insecure,
            certificate_path=access.certificate_file,
            private_key_path=access.key_file,
            scheme=scheme or None,
            token=token or None,
        )

    return login


def _settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.persistence.diffbase_storage = _NothingKept()
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.networking.request_timeout = REQUEST_SECONDS
    settings.networking.connect_timeout = CONNECT_SECONDS
    settings.networking.error_backoffs = RETRY_SECONDS
    settings.watching.server_timeout = SERVER_SECONDS
    settings.watching.client_timeout = CLIENT_SECONDS
    settings.watching.connect_timeout = CONNECT_SECONDS
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.chunk_size = PAGE_SIZE
    for kind in WATCHED:
        if kind is not kinds.MODEL:
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = names.LABEL_MODEL
    return settings


class _NothingKept(kopf.DiffBaseStorage):
    """Handlers of events compare nothing: no copy of each object at each event."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        raise AssertionError("an operator without handlers of changes has nothing to store")
