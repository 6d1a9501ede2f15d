"""What the proxy breaks is broken, and nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

import control_plane as planes
import faulty_proxy
from cluster_api import Access, Api, Refused
from faulty_proxy import FaultyProxy


@pytest.fixture
async def proxy(control_plane: planes.ControlPlane) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy.before(control_plane.api.access) as standing:
        yield standing


@pytest.fixture
def through(control_plane: planes.ControlPlane, proxy: FaultyProxy, tmp_path: Path) -> Api:
    """The administrator, by way of the proxy."""
    return Api(Access.of(proxy.kubeconfig(control_plane.api.access, tmp_path / "kubeconfig")))


@pytest.fixture
def maps(control_plane: planes.ControlPlane) -> str:
    return f"/api/v1/namespaces/{control_plane.namespace()}/configmaps"


class Watch:
    """A watch by way of the proxy, its events one by one."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def event(self) -> Any:
        line = await asyncio.wait_for(self.answer.content.readline(), 90.0)
        return json.loads(line) if line else None

    async def named(self, name: str) -> None:
        """Wait for an event about the object."""
        while (await self.event())["object"]["metadata"]["name"] != name:
            pass


@pytest.fixture
async def watch(control_plane: planes.ControlPlane, proxy: FaultyProxy, maps: str) -> AsyncIterator[Watch]:
    headers = {"Authorization": f"Bearer {control_plane.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{proxy.url}{maps}?watch=1") as answer:
        watch = Watch(answer)
        control_plane.api.create(maps, _map("first"))
        await watch.named("first")
        yield watch


def _map(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": {"text": "x" * 100_000}}


@pytest.mark.parametrize(("code", "reason"), [(409, "Conflict"), (429, "TooManyRequests"), (500, "InternalError")])
async def test_a_request_is_refused_as_often_as_asked(
    proxy: FaultyProxy, through: Api, maps: str, code: int, reason: str
) -> None:
    fault = proxy.refuse(code, method="POST", path=f"{maps}$", times=2, retry_after=1)
    for _ in range(2):
        with pytest.raises(Refused) as caught:
            await asyncio.to_thread(through.create, maps, _map("mine"))
        assert (caught.value.code, caught.value.reason) == (code, reason)
    assert await asyncio.to_thread(through.get, maps)
    await asyncio.to_thread(through.create, maps, _map("mine"))
    assert fault.hits == 2


async def test_a_reset_is_no_answer(proxy: FaultyProxy, through: Api, maps: str) -> None:
    proxy.reset(path=maps, times=1)
    with pytest.raises(OSError):
        await asyncio.to_thread(through.get, maps)
    assert await asyncio.to_thread(through.get, maps)


async def test_a_delayed_request_arrives(proxy: FaultyProxy, through: Api, maps: str) -> None:
    fault = proxy.delay(0.01, method="POST", path=maps)
    made = await asyncio.to_thread(through.create, maps, _map("late"))
    assert (made["metadata"]["name"], fault.hits) == ("late", 1)


async def test_an_answer_in_the_stead_of_a_pod(proxy: FaultyProxy, through: Api) -> None:
    proxy.respond(lambda request: web.json_response({"asked": request.path}), path=r"/pods/[^/]+:8080/proxy/v1/pairs")
    path = "/api/v1/namespaces/default/pods/router-0:8080/proxy/v1/pairs"
    assert await asyncio.to_thread(through.get, path) == {"asked": path}


async def test_a_silenced_watch_stays_open_and_a_later_one_speaks(
    control_plane: planes.ControlPlane, proxy: FaultyProxy, maps: str, watch: Watch
) -> None:
    fault = proxy.silence_watches(maps)
    control_plane.api.create(maps, _map("unheard"))
    fault.end()
    headers = {"Authorization": f"Bearer {control_plane.admin_token}"}
    async with aiohttp.ClientSession(headers=headers) as session, session.get(f"{proxy.url}{maps}?watch=1") as answer:
        await Watch(answer).named("unheard")
        assert len(proxy.watches) == 2
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.event(), 0.2)


async def test_an_expired_watch_ends_with_the_error_that_asks_for_a_new_list(
    proxy: FaultyProxy, maps: str, watch: Watch
) -> None:
    assert await proxy.expire_watches(maps) == 1
    event = await watch.event()
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)
    assert await watch.event() is None


async def test_a_watch_that_is_reset_breaks(proxy: FaultyProxy, maps: str, watch: Watch) -> None:
    assert proxy.reset_watches(maps) == 1
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await watch.event()
