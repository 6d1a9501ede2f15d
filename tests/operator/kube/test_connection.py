"""What a real API server does rarely: answers of a server that misbehaves on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from eventually import eventually_async
from kvferry_operator.errors import Conflict, Forbidden, Throttled, Unreachable
from kvferry_operator.kube import connection, kinds
from kvferry_operator.kube.calls import Call
from kvferry_operator.kube.client import Cluster, connect
from kvferry_operator.kube.connection import opened
from kvferry_operator.kube.login import login

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

CALL = Call("get", kinds.POD, "models", "p")


def kubeconfig(folder: Path, server: str, user: dict[str, Any] | None = None) -> Path:
    path = folder / "kubeconfig"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(content))
    return path


@asynccontextmanager
async def served(handler: Handler) -> AsyncIterator[str]:
    """Address of a server that answers every request with `handler`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.0, handler_cancellation=True)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def talking_to(handler: Handler, folder: Path) -> AsyncIterator[Cluster]:
    async with served(handler) as server, connect(kubeconfig(folder, server)) as cluster:
        yield cluster


async def test_a_server_that_says_nothing_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with served(silent) as server, opened(await login(kubeconfig(tmp_path, server))) as asked:
        with pytest.raises(Unreachable, match=r"get Pod models/p: no answer in 0\.1 s"):
            await asked.ask(CALL, "GET", "/", deadline=0.1)


async def test_an_answer_that_stops_half_way_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    async def stalling(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'{"kind":')
        await asyncio.Event().wait()
        return response

    async with served(stalling) as server, opened(await login(kubeconfig(tmp_path, server))) as asked:
        with pytest.raises(Unreachable, match=r"no answer in 0\.1 s"):
            await asked.ask(CALL, "GET", "/", deadline=0.1)


async def test_connections_are_bounded_and_waiting_for_one_counts_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers: set[Any] = set()

    async def silent(request: web.Request) -> web.StreamResponse:
        peers.add(request.transport)
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(connection, "CONNECTIONS", 2)
    async with served(silent) as server, opened(await login(kubeconfig(tmp_path, server))) as asked:
        patient = [asyncio.create_task(asked.ask(CALL, "GET", "/", deadline=600.0)) for _ in range(2)]
        await eventually_async(lambda: asyncio.sleep(0, len(peers) == 2), "both connections are taken")
        with pytest.raises(Unreachable, match=r"no answer in 0\.1 s"):
            await asked.ask(CALL, "GET", "/", deadline=0.1)
        for task in patient:
            task.cancel()
        await asyncio.wait(patient)
    assert len(peers) == 2


async def test_nobody_listens(tmp_path: Path) -> None:
    async with connect(kubeconfig(tmp_path, "http://127.0.0.1:1")) as cluster:
        with pytest.raises(Unreachable, match=r"get Pod models/p: .*127\.0\.0\.1"):
            await cluster.get(kinds.POD, "models", "p")


@pytest.mark.parametrize("body", [b"<html>proxy login</html>", b"[1]", b"\xff", b""])
async def test_what_is_no_object_is_no_answer(tmp_path: Path, body: bytes) -> None:
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    async with talking_to(odd, tmp_path) as cluster:
        with pytest.raises(Unreachable, match="the answer is no"):
            await cluster.get(kinds.POD, "models", "p")


async def test_the_servers_wish_to_come_back_later_is_passed_on(tmp_path: Path) -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "7"}, text="slow down")

    async with talking_to(busy, tmp_path) as cluster:
        with pytest.raises(Throttled) as caught:
            await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "n"}})
    assert caught.value.retry_after == 7.0


@pytest.mark.parametrize(("expired", "found"), [(1, 4), (2, None)])
async def test_a_list_whose_moment_is_forgotten_starts_again_once(
    tmp_path: Path, expired: int, found: int | None
) -> None:
    left = expired

    async def forgetful(request: web.Request) -> web.StreamResponse:
        nonlocal left
        if "continue" not in request.query:
            return web.json_response({"metadata": {"continue": "x"}, "items": [{}, {}]})
        if left:
            left -= 1
            return web.json_response({"kind": "Status", "reason": "Expired", "message": "too old"}, status=410)
        return web.json_response({"metadata": {}, "items": [{}, {}]})

    async with talking_to(forgetful, tmp_path) as cluster:
        if found is None:
            with pytest.raises(Conflict, match="list Pod: too old"):
                await cluster.list(kinds.POD, None)
        else:
            assert len(await cluster.list(kinds.POD, None)) == found


async def test_a_pod_leads_nowhere_else_and_leaves_nothing_behind(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []

    async def sly(request: web.Request) -> web.StreamResponse:
        seen.append((request.path, request.headers.get("Cookie", "")))
        if request.path.endswith("/proxy/v1/pairs"):
            response = web.Response(status=302, headers={"Location": "/api/v1/secrets"})
            response.set_cookie("a", "b")
            return response
        return web.json_response({"kind": "Pod"})

    async with talking_to(sly, tmp_path) as cluster:
        with pytest.raises(Unreachable, match="leads to /api/v1/secrets, which is not followed"):
            await cluster.ask_pod("models", "p", 8080, "/v1/pairs", 100)
        await cluster.get(kinds.POD, "models", "p")
    assert seen == [
        ("/api/v1/namespaces/models/pods/p:8080/proxy/v1/pairs", ""),
        ("/api/v1/namespaces/models/pods/p", ""),
    ]


@pytest.mark.parametrize("status", [200, 500])
async def test_a_pod_that_talks_without_end_is_cut_off(tmp_path: Path, status: int) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)

    async with talking_to(endless, tmp_path) as cluster:
        with pytest.raises(Unreachable) as caught:
            await cluster.ask_pod("models", "p", 8080, "/", 5000)
    assert len(str(caught.value)) < 2000


async def test_an_answer_of_just_the_limit_is_taken(tmp_path: Path) -> None:
    async def fits(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 5000)

    async with talking_to(fits, tmp_path) as cluster:
        assert await cluster.ask_pod("models", "p", 8080, "/", 5000) == b"x" * 5000
        with pytest.raises(Unreachable, match="more than 4999 bytes"):
            await cluster.ask_pod("models", "p", 8080, "/", 4999)


async def test_many_refused_requests_start_a_plugin_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvferry_operator.kube.login._RENEWAL_PAUSE_SECONDS", 3600.0)
    started = tmp_path / "started"
    plugin = tmp_path / "plugin"
    plugin.write_text(
        f"#!/bin/sh\necho x >> {started}\n"
        """echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", """
        """"status": {"token": "stale"}}'\n"""
    )
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}

    async def refusing(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, text=request.headers["Authorization"])

    async with served(refusing) as server, connect(kubeconfig(tmp_path, server, user)) as cluster:
        for _ in range(5):
            with pytest.raises(Forbidden, match="does not accept our credentials"):
                await cluster.get(kinds.POD, "models", "p")
    assert started.read_text().count("x") == 2, "once to log in, once after the first refusal"
