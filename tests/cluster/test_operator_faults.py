"""The API server refuses, goes silent, dies and comes back: the operator converges, with nothing doubled or lost."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from aiohttp import web

import control_plane as planes
import faulty_proxy
import operator_process
from audit_log import Request
from cluster_api import Access
from eventually import eventually_async
from faulty_proxy import FaultyProxy
from kvferry_operator.kube import kinds
from model_namespace import ModelNamespace
from operator_process import OperatorProcess

pytestmark = pytest.mark.slow

RESYNC_SECONDS = 4
DEPLOYMENTS = "/deployments"


@pytest.fixture
def models(control_plane: planes.ControlPlane) -> ModelNamespace:
    return ModelNamespace(control_plane, "faults")


@pytest.fixture
async def proxy(models: ModelNamespace) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy.before(Access.of(models.kubeconfig)) as standing:
        yield standing


@pytest.fixture
async def operator(models: ModelNamespace, proxy: FaultyProxy, tmp_path: Path) -> AsyncIterator[OperatorProcess]:
    """Behind the proxy, with one model whose children are there."""
    kubeconfig = proxy.kubeconfig(Access.of(models.kubeconfig), tmp_path / "kubeconfig")
    flags = [f"--resync-seconds={RESYNC_SECONDS}"]
    with operator_process.running(kubeconfig, models.name, flags=flags) as running:
        await asyncio.to_thread(running.wait_ready)
        models.create()
        await asyncio.to_thread(models.wait_children)
        await until(lambda: len(proxy.watches) == 11, "a watch of each kind is open")
        yield running


async def until(look: Callable[[], object], what: str, seconds: float = 120.0) -> None:
    async def looked() -> object:
        return await asyncio.to_thread(look)

    await eventually_async(looked, what, seconds)


async def deployment_comes_back(models: ModelNamespace, what: str) -> None:
    """It is deleted, and made anew."""
    before = await asyncio.to_thread(models.uids, "Deployment")
    await asyncio.to_thread(models.delete, "Deployment", "tiny-router")
    await until(lambda: (now := models.uids("Deployment")) and now != before, what)


async def test_watches_that_break_are_begun_anew(
    models: ModelNamespace, proxy: FaultyProxy, operator: OperatorProcess
) -> None:
    assert proxy.reset_watches() == 11
    await deployment_comes_back(models, "after a reset")
    await until(lambda: len(proxy.watches) == 11, "all watches are there again")
    assert await proxy.expire_watches() == 11
    await deployment_comes_back(models, "after 410")
    assert operator.exit_code is None


async def test_a_silent_watch_is_made_up_for_by_lists_and_then_found_out(
    models: ModelNamespace, proxy: FaultyProxy, operator: OperatorProcess
) -> None:
    proxy.silence_watches(DEPLOYMENTS)
    assert (await asyncio.to_thread(operator.get, "/healthz"))[0] == 200
    await deployment_comes_back(models, "after a resync")
    missed = await asyncio.to_thread(operator.metric, "kvferry_operator_watch_missed_total", kind="Deployment")
    assert missed >= 1

    def told_to_restart() -> bool:
        # each round finds something that the watch has not told of
        models.plane.api.merge(
            models.path(kinds.DEPLOYMENT, "tiny-router"),
            {"metadata": {"annotations": {"example.com/x": secrets.token_hex(4)}}},
        )
        return "the watches of deployments do not tell" in operator.get("/healthz")[1]

    await until(told_to_restart, "liveness is red", 240)


async def test_conflicts_and_throttling_are_waited_out(
    models: ModelNamespace, proxy: FaultyProxy, operator: OperatorProcess
) -> None:
    conflict = proxy.refuse(409, method="POST", path="/statefulsets", times=2)
    throttled = proxy.refuse(429, method="POST", path=r"/services\?", times=3, retry_after=1)
    reset = proxy.reset(method="POST", path=DEPLOYMENTS, times=1)
    models.create(name="second")
    await until(lambda: len(models.children("second")) == 13, "all children of the second model")
    assert (conflict.hits, throttled.hits, reset.hits) == (2, 3, 1)
    overtaken = proxy.refuse(409, method="PATCH", path=f"{DEPLOYMENTS}/second", times=4)
    models.edit({"router": {"replicas": 2}}, "second")
    await until(lambda: models.objects("Deployment", "second")[0]["spec"]["replicas"] == 2, "the change of the second")
    assert overtaken.hits == 4, "more often than one pass looks"
    for result in ("conflict", "throttled", "unreachable"):
        counted = await asyncio.to_thread(operator.metric, "kvferry_operator_apply_total", result=result)
        assert counted >= 1, result


async def test_the_api_server_dies_and_comes_back(
    control_plane: planes.ControlPlane, models: ModelNamespace, proxy: FaultyProxy, operator: OperatorProcess
) -> None:
    workloads = models.uids("StatefulSet")
    control_plane.kill_api_server()
    try:
        await asyncio.sleep(2 * RESYNC_SECONDS)
    finally:
        await asyncio.to_thread(control_plane.start_api_server)
    models.create(name="second")
    await until(lambda: len(models.children("second")) == 13, "all children of a model that is made afterwards", 240)
    await deployment_comes_back(models, "after the API server")
    assert models.uids("StatefulSet") == workloads
    assert operator.exit_code is None


async def test_storage_stands_still_for_ten_seconds(
    control_plane: planes.ControlPlane, models: ModelNamespace, operator: OperatorProcess
) -> None:
    models.edit({"router": {"replicas": 2}})
    control_plane.pause_etcd()
    try:
        await asyncio.sleep(10)
    finally:
        control_plane.resume_etcd()
    await until(lambda: models.objects("Deployment")[0]["spec"]["replicas"] == 2, "the change is carried out", 240)
    await deployment_comes_back(models, "after the pause")
    assert len(models.children()) == 14, "with the budget that two routers get"
    assert operator.exit_code is None


async def test_a_watch_that_cannot_go_on_ends_the_process(proxy: FaultyProxy, operator: OperatorProcess) -> None:
    """Deaf is worse than dead: a dead one is started anew."""
    failure = {"kind": "Status", "status": "Failure", "code": 500, "message": "broken by the test"}
    line = json.dumps({"type": "ERROR", "object": failure}) + "\n"
    proxy.respond(lambda _: web.Response(text=line), path=f"{DEPLOYMENTS}.*watch=true")
    assert proxy.reset_watches(DEPLOYMENTS) == 1
    assert await asyncio.to_thread(operator.wait_end) == 1
    assert any("broken by the test" in str(each) for each in operator.lines)


async def test_the_server_selects_what_is_watched(models: ModelNamespace, operator: OperatorProcess) -> None:
    """Nobody else's objects are pulled through the network."""

    def watched() -> list[Request]:
        return [each for each in models.requests(0) if each.verb == "watch"]

    await until(lambda: len({each.resource for each in watched()}) == 11, "each watch is written down")
    watches = watched()
    unselected = {each.resource for each in watches if "labelSelector=kvferry.io" not in each.path}
    assert unselected == {"disaggregatedmodels"}
    assert all(each.namespace == models.name and "timeoutSeconds=" in each.path for each in watches)
