"""Groups found in EndpointSlices: list, then watch from there; list again when a watch ends, for whatever reason.

The only module of the runtime that imports the Kubernetes client. It logs in and makes the requests; what comes back is
read here, line by line and bounded.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration, DiscoveryV1Api

from kvferry_contract.endpoints import Group
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.router.slice_view import SliceView, WatchLost, refusal
from kvferry_runtime.router.slices import LABEL_MODEL, Slice, groups_of
from kvferry_runtime.router.upstream import CONNECT_SECONDS, probed_socket

LIST_SECONDS = 10.0
WATCH_SECONDS = 240
"""After which the server ends a watch, give or take a fifth: the next list heals one that missed a change."""
SILENCE_SECONDS = 90.0
"""A watch that says nothing for this long is given up; a live one sends a bookmark every minute."""
STABLE_SECONDS = 10.0
"""A watch that lasted this long says that the server is well, so that the next pause is short again."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.2, 15.0
MAX_LIST_BYTES = 32 << 20

Connect = Callable[[], Awaitable[ApiClient]]

logger = logging.getLogger(__name__)


class EndpointSliceDiscovery:
    """Groups of `model` (the value of its label) in `namespace`.

    Whatever goes wrong changes nothing: the last good view stays, and `on_error` is called once for each failure.

    connect: makes a client that is logged in. family: of addresses, preferred where a pod has both.
    """

    def __init__(
        self,
        namespace: str,
        model: str,
        on_error: Callable[[], None],
        *,
        connect: Connect | None = None,
        family: str = "IPv4",
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._namespace = namespace
        self._selector = f"{LABEL_MODEL}={model}"
        self._on_error = on_error
        self._connect = connect or in_cluster
        self._family = family
        self._silence_seconds = silence_seconds

    async def watch(self) -> AsyncIterator[tuple[Group, ...]]:
        """As `Discovery.watch`.

        Raises:
            SettingsError: this process does not run in a cluster.
        """
        clock = asyncio.get_running_loop().time
        told: tuple[Group, ...] | None = None
        failures = 0
        async with await self._connect() as client:
            api = DiscoveryV1Api(client)
            while True:
                began = clock()
                try:
                    async with aclosing(self._views(api)) as views:
                        async for slices in views:
                            groups = groups_of(slices, self._family)
                            if groups != told:
                                told = groups
                                yield groups
                except (WatchLost, ApiException, aiohttp.ClientError, TimeoutError, OSError) as error:
                    logger.warning(
                        "groups not read, the last view stays: %s",
                        str(error) or type(error).__name__,
                        extra={"namespace": self._namespace, "selector": self._selector},
                    )
                    self._on_error()
                failures = 0 if clock() - began >= STABLE_SECONDS else failures + 1
                await asyncio.sleep(pause(failures))

    async def _views(self, api: DiscoveryV1Api) -> AsyncGenerator[list[Slice], None]:
        """All slices, once and after each change; ends when the server ends the watch.

        Raises:
            WatchLost: refused, expired, silent or malformed.
            ApiException, ClientError, TimeoutError, OSError: no connection, or it broke.
        """
        view = SliceView(await self._listed(api))
        yield view.slices
        async with self._watched(api, view.version) as response:
            while line := await self._line(response):
                if view.take(line):
                    yield view.slices

    async def _listed(self, api: DiscoveryV1Api) -> bytes:
        async with asyncio.timeout(LIST_SECONDS):
            response = await api.list_namespaced_endpoint_slice_without_preload_content(
                self._namespace, label_selector=self._selector
            )
            try:
                return await _body(response)
            finally:
                response.close()

    @asynccontextmanager
    async def _watched(self, api: DiscoveryV1Api, since: str) -> AsyncIterator[aiohttp.ClientResponse]:
        seconds = int(WATCH_SECONDS * random.uniform(0.8, 1.2))  # noqa: S311  spreads load, guards nothing
        async with asyncio.timeout(LIST_SECONDS):
            response = await api.list_namespaced_endpoint_slice_without_preload_content(
                self._namespace,
                label_selector=self._selector,
                resource_version=since,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=seconds,
                # the server ends it first; silence has a limit of its own
                _request_timeout=seconds + SILENCE_SECONDS,
            )
        try:
            if response.status != 200:
                raise await _refused(response)
            yield response
        finally:
            _hang_up(response)

    async def _line(self, response: aiohttp.ClientResponse) -> bytes:
        """The next event, empty at the end of the watch.

        Raises:
            WatchLost: silence, too long an event, or the watch ended within one.
        """
        try:
            async with asyncio.timeout(self._silence_seconds):
                line = await response.content.readline()
        except TimeoutError as error:
            raise WatchLost(f"the watch said nothing for {self._silence_seconds:g} s") from error
        except ValueError as error:
            raise WatchLost(f"the watch sent too long an event: {error}") from error
        if line and not line.endswith(b"\n"):
            raise WatchLost("the watch ended within an event")
        return line


async def in_cluster() -> ApiClient:
    """A client with this pod's service account, whose token is read again as it is replaced on disk.

    Raises:
        SettingsError: this is no pod, or its token is not mounted.
    """
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException as error:
        raise SettingsError(
            f"no service account: {error} Endpoints of kubernetes:// are for a router that runs in a pod with its "
            "token mounted; elsewhere give file:///path"
        ) from error
    return client_for(configuration)


def client_for(configuration: Configuration) -> ApiClient:
    """A client whose connections notice a dead machine or a cut link within seconds, also while nothing is said."""
    client = ApiClient(configuration)
    context = client.rest_client.ssl_context
    connector = aiohttp.TCPConnector(ssl=context, limit=4, socket_factory=probed_socket)
    client.rest_client.pool_manager = aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS),
        read_bufsize=1 << 21,
    )
    return client


def family_of(host: str) -> str:
    """Address family of a literal address; IPv4 for a name."""
    try:
        return f"IPv{ipaddress.ip_address(host).version}"
    except ValueError:
        return "IPv4"


def pause(failures: int) -> float:
    """Seconds until the next try: doubling from the first pause to the last, at random within its upper half."""
    longest: float = min(LAST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(failures, 16))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311  spreads load, guards nothing


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """At once: the farewell of TLS would wait for a server that goes on telling of changes."""
    if response.connection is not None and response.connection.transport is not None:
        response.connection.transport.abort()
    response.close()


async def _body(response: aiohttp.ClientResponse) -> bytes:
    if response.status != 200:
        raise await _refused(response)
    body = bytearray()
    async for part in response.content.iter_any():
        body += part
        if len(body) > MAX_LIST_BYTES:
            raise WatchLost(f"the list of EndpointSlices is longer than {MAX_LIST_BYTES} bytes")
    return bytes(body)


async def _refused(response: aiohttp.ClientResponse) -> WatchLost:
    """What the API server says against it; 403 means that the router's Role is not there (yet)."""
    async with asyncio.timeout(LIST_SECONDS):
        text = await response.content.read(1 << 14)
    return WatchLost(f"the API server answered {response.status}: {refusal(text) or response.reason}")
