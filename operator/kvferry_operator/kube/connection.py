"""Requests to the API server: the one place where they are made, tried again after new credentials, and given up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client import ApiClient

from kvferry_operator.api import names
from kvferry_operator.errors import Forbidden, InputError, Unreachable
from kvferry_operator.kube.calls import Answer, Call
from kvferry_operator.kube.login import Login
from kvferry_operator.kube.server_warnings import Warnings

DEADLINE_SECONDS = 10.0
"""For one call, everything included: a free connection, new credentials, the whole answer."""
CONNECTIONS = 32

JSON = "application/json"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"

_MAX_REFUSAL_BYTES = 16 << 10
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)
"""The deadline is ours, around the whole call."""

logger = logging.getLogger(__name__)


@asynccontextmanager
async def opened(login: Login) -> AsyncIterator[Connection]:
    """A pool of at most CONNECTIONS connections, all closed at the end. No request is made yet."""
    configuration = login.configuration
    configuration.connection_pool_maxsize = CONNECTIONS
    # pods answer through the same server: what they say must neither lead elsewhere nor be kept for other requests
    configuration.trace_configs = [_without_redirects()]
    configuration.client_session_kwargs = {
        "cookie_jar": aiohttp.DummyCookieJar(),
        "trust_env": False,  # looking for proxies at each request doubles its cost; `login` has looked once
    }
    async with ApiClient(configuration) as api:
        yield Connection(api, login)


class Connection:
    """Made by `opened`."""

    def __init__(self, api: ApiClient, login: Login) -> None:
        self._api = api
        self._login = login
        self._warnings = Warnings(logger)

    async def ask(
        self,
        call: Call,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        *,
        deadline: float = DEADLINE_SECONDS,
        limit: int | None = None,
    ) -> Answer:
        """The answer, whatever its status.

        deadline: seconds. limit: the most bytes that an answer with status 200 may have.

        Raises:
            Unreachable: no answer in time, a broken connection, or too long an answer.
            Forbidden: the credentials were refused, and there are no others.
        """
        url = f"{self._login.configuration.host}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            async with asyncio.timeout(deadline):
                credentials = await self._login.authorization()
                answer = await self._send(method, url, credentials, body, content_type, limit)
                # refused for its credentials, a request has done nothing: the one case to try again here
                if answer.status == 401 and await self._login.renew(credentials):
                    credentials = await self._login.authorization()
                    answer = await self._send(method, url, credentials, body, content_type, limit)
        except TimeoutError as error:
            raise Unreachable(f"{call}: no answer in {deadline:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{call}: {str(error) or type(error).__name__}") from error
        except InputError as error:
            raise Forbidden(f"{call}: {error}") from error
        self._warnings.note(call, answer.warnings)
        return answer

    async def _send(
        self,
        method: str,
        url: str,
        credentials: str,
        body: Mapping[str, Any] | None,
        content_type: str,
        limit: int | None,
    ) -> Answer:
        headers = {"Accept": JSON, "Content-Type": content_type, "User-Agent": names.MANAGER}
        if credentials:
            headers["Authorization"] = credentials
        sent = await self._api.call_api(method, url, headers, body, _request_timeout=_NO_TIMEOUT)
        response: aiohttp.ClientResponse = sent.response
        async with response:
            content = await response.read() if limit is None else await _read(response, limit)
        said = response.headers
        return Answer(response.status, content, said.get("Retry-After", ""), tuple(said.getall("Warning", ())))


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The whole answer if it has at most `limit` bytes; of a refusal, its beginning. The rest is dropped unread."""
    most = limit if response.status == 200 else _MAX_REFUSAL_BYTES
    content = bytearray()
    async for part in response.content.iter_any():
        content += part
        if len(content) > most:
            response.close()
            if response.status == 200:
                raise aiohttp.ClientPayloadError(f"the answer has more than {limit} bytes")
            break
    return bytes(content[:most])


def _without_redirects() -> aiohttp.TraceConfig:
    async def refuse(
        session: aiohttp.ClientSession, context: SimpleNamespace, seen: aiohttp.TraceRequestRedirectParams
    ) -> None:
        del session, context
        seen.response.close()
        raise aiohttp.ClientError(f"the answer leads to {seen.response.headers.get('Location')}, which is not followed")

    trace = aiohttp.TraceConfig()
    trace.on_request_redirect.append(refuse)
    return trace
