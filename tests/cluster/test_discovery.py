"""The router's view of a real control plane: what its Services' EndpointSlices say while pods come, go and change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
import yaml
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

import builders
import control_plane as planes
import rendered
from eventually import eventually_async
from kubelet_stand_in import KubeletStandIn
from kvferry_contract.endpoints import Group
from kvferry_operator.api import names
from kvferry_operator.api.parse import parse
from kvferry_operator.desired.build import build
from kvferry_runtime.router.endpoint_slices import EndpointSliceDiscovery, client_for
from kvferry_runtime.router.process import Router
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.stub import StubEngine, StubScript
from pod_behaviours import READY, UNREADY, by_labels
from routed_stubs import MODEL, Routed

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
SLOW = StubScript(token_delay=0.3)


@dataclass
class Seen:
    """Discovery at work, and what it told last."""

    source: EndpointSliceDiscovery
    groups: tuple[Group, ...] = ()
    views: int = 0
    errors: list[None] = field(default_factory=list)

    async def until(self, condition: Callable[[tuple[Group, ...]], bool], what: str) -> tuple[Group, ...]:
        async def look() -> bool:
            return condition(self.groups)

        await eventually_async(look, what)
        return self.groups

    async def follow(self) -> None:
        async for groups in self.source.watch():
            self.groups, self.views = groups, self.views + 1


def apply(plane: planes.ControlPlane, namespace: str, changes: dict[str, Any]) -> None:
    """What the operator would apply for the minimal object with these changes."""
    raw = builders.raw(changes)
    raw["metadata"]["namespace"] = namespace
    objects = build(parse(raw), rendered.SETTINGS)
    plane.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))


def as_router(plane: planes.ControlPlane, namespace: str) -> Callable[[], Any]:
    """Logs in with the account that the operator gives to the router, and its rights alone."""
    kubeconfig: Path = plane.service_account_kubeconfig(namespace, names.router("tiny"))

    async def connect() -> ApiClient:
        configuration = Configuration()
        await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        return client_for(configuration)

    return connect


@asynccontextmanager
async def discovering(plane: planes.ControlPlane, namespace: str, **options: Any) -> AsyncIterator[Seen]:
    connect = await asyncio.to_thread(as_router, plane, namespace)
    errors: list[None] = []
    source = EndpointSliceDiscovery(namespace, "tiny", lambda: errors.append(None), connect=connect, **options)
    seen = Seen(source, errors=errors)
    task = asyncio.create_task(seen.follow())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def ready(count: int) -> Callable[[tuple[Group, ...]], bool]:
    return lambda groups: sum(group.ready and not group.terminating for group in groups) == count


@pytest.fixture
async def namespace(control_plane: planes.ControlPlane) -> str:
    return await asyncio.to_thread(control_plane.namespace, "discovery")


async def test_groups_are_pods_of_all_stages_with_the_ports_of_their_containers(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, namespace: str
) -> None:
    kubelet.policy = by_labels(({names.LABEL_STAGE: "1"}, UNREADY))
    await asyncio.to_thread(apply, control_plane, namespace, {"prefill.parallelism.pipeline": 2, "decode.replicas": 2})
    async with discovering(control_plane, namespace) as seen:
        groups = await seen.until(lambda groups: len(groups) == 3 and ready(2)(groups), "two decode groups are ready")
        assert [(group.role, group.ordinal, group.ready) for group in groups] == [
            ("decode", 0, True), ("decode", 1, True), ("prefill", 0, False),
        ]  # fmt: skip
        errors = len(seen.errors)  # the router's rights may have come after its first try
        prefill = groups[2]
        assert prefill.pod.endswith("-s0-0") and prefill.engine.endswith(":8000")
        assert len(set(prefill.sidecars)) == len(set(prefill.sidecar_http)) == 2
        assert all(address.endswith(":7400") for address in prefill.sidecars)
        assert all(address.endswith(":7401") for address in prefill.sidecar_http)
        kubelet.policy = lambda pod: READY
        await seen.until(ready(3), "the second stage is ready, and so is its group")
        assert len(seen.errors) == errors


async def test_terminating_unready_and_relabelled_pods_get_no_new_request_and_streams_go_on(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, namespace: str
) -> None:
    """Case 38."""
    kubelet.policy = lambda pod: READY.lingering(math.inf)
    await asyncio.to_thread(apply, control_plane, namespace, {"decode.replicas": 4})
    async with AsyncExitStack() as stack:
        seen = await stack.enter_async_context(discovering(control_plane, namespace))
        groups = await seen.until(ready(5), "all groups are ready")
        decodes = {group.pod: group for group in groups if group.role == "decode"}
        ending, unready, relabelled, good = sorted(decodes)
        engines = {pod: await stack.enter_async_context(StubEngine(SLOW)) for pod in decodes}
        prefill = await stack.enter_async_context(StubEngine())
        connect = await asyncio.to_thread(as_router, control_plane, namespace)
        source = EndpointSliceDiscovery(namespace, "tiny", lambda: None, connect=connect)
        settings = RouterSettings(MODEL, "file:///unused", port=0, drain_seconds=0.2)
        router = await stack.enter_async_context(Router(settings, Played(source, engines, prefill)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        state = Routed(router, [prefill], list(engines.values()), Path(), session)

        async def states() -> dict[str, str]:
            async with session.get(state.url("/v1/state")) as response:
                found = (await response.json())["groups"]
            return {item["pod"]: item["state"] for item in found if item["role"] == "decode"}

        async def served_by_the_ending_one() -> bool:
            running.append(asyncio.create_task(state.stream({**PROMPT, "stream": True})))
            await asyncio.sleep(0.05)
            return bool(engines[ending].record.requests)

        running: list[asyncio.Task[Any]] = []
        await eventually_async(states, "the router knows its groups")
        await eventually_async(served_by_the_ending_one, "a stream runs at each decode group")
        pods = f"/api/v1/namespaces/{namespace}/pods"
        kubelet.policy = lambda pod: UNREADY if pod["metadata"]["name"] == unready else READY.lingering(math.inf)
        await asyncio.to_thread(control_plane.api.delete, f"{pods}/{ending}")
        await asyncio.to_thread(
            control_plane.api.merge, f"{pods}/{relabelled}", {"metadata": {"labels": {"kvferry.io/role": "other"}}}
        )

        async def only_one_is_left() -> bool:
            return {pod for pod, kind in (await states()).items() if kind == "ready"} == {good}

        await eventually_async(only_one_is_left, "the three are out")
        before = {pod: len(engine.record.requests) for pod, engine in engines.items()}
        for _ in range(3):
            assert (await state.post(PROMPT))[0] == 200
        served = {pod: len(engine.record.requests) - before[pod] for pod, engine in engines.items()}
        assert {pod for pod, count in served.items() if count} == {good}
        answers = await asyncio.gather(*running)
        assert all(answer.done and answer.text == "t11 t12 t13 t14 " for answer in answers)


@dataclass
class Played:
    """Real groups, at whose addresses nobody listens, served by stubs."""

    source: EndpointSliceDiscovery
    decodes: dict[str, StubEngine]
    prefill: StubEngine

    async def watch(self) -> AsyncIterator[tuple[Group, ...]]:
        async for groups in self.source.watch():
            yield tuple(replace(group, engine=self._engine(group)) for group in groups)

    def _engine(self, group: Group) -> str:
        return self.decodes[group.pod].address if group.pod in self.decodes else self.prefill.address


async def test_the_last_view_stays_while_the_api_server_is_away(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, namespace: str
) -> None:
    await asyncio.to_thread(apply, control_plane, namespace, {})
    async with discovering(control_plane, namespace) as seen:
        await seen.until(ready(2), "both groups are ready")
        before = len(seen.errors)
        await asyncio.to_thread(control_plane.kill_api_server)
        try:
            await seen.until(lambda _: len(seen.errors) > before, "the watch broke")
            known, views = seen.groups, seen.views
            assert ready(2)(known)
            await seen.until(lambda _: len(seen.errors) > before + 2, "it tried again and failed")
            assert (seen.groups, seen.views) == (known, views)
        finally:
            await asyncio.to_thread(control_plane.start_api_server)
        kubelet.policy = lambda pod: UNREADY
        await seen.until(ready(0), "what changed meanwhile and after is seen")


async def test_a_silent_watch_is_given_up_and_begun_again(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, namespace: str
) -> None:
    await asyncio.to_thread(apply, control_plane, namespace, {})
    async with discovering(control_plane, namespace, silence_seconds=0.2) as seen:
        await seen.until(ready(2), "both groups are ready")
        before = len(seen.errors)
        await seen.until(lambda _: len(seen.errors) > before + 1, "silence is an error")
        assert ready(2)(seen.groups)
        kubelet.policy = lambda pod: UNREADY
        await seen.until(ready(0), "a change is seen by a later list or watch")


async def test_without_rights_it_says_so_and_finds_groups_once_it_has_them(
    control_plane: planes.ControlPlane, kubelet: KubeletStandIn, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with discovering(control_plane, namespace) as seen:
        await seen.until(lambda _: bool(seen.errors), "it is refused")
        assert "answered 403" in caplog.text and "endpointslices" in caplog.text
        await asyncio.to_thread(apply, control_plane, namespace, {})
        await seen.until(ready(2), "the router's Role is there, and so are the groups")


async def test_a_pod_logs_in_by_the_account_that_is_mounted_in_it(
    control_plane: planes.ControlPlane,
    kubelet: KubeletStandIn,
    namespace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await asyncio.to_thread(apply, control_plane, namespace, {})
    kubeconfig = await asyncio.to_thread(control_plane.service_account_kubeconfig, namespace, names.router("tiny"))
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text(yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"])
    authority.write_text(control_plane.api.access.authority)
    server = urlsplit(control_plane.api.access.url)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", str(server.hostname))
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    monkeypatch.setattr("kubernetes.aio.config.incluster_config.SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr("kubernetes.aio.config.incluster_config.SERVICE_CERT_FILENAME", str(authority))
    settings = RouterSettings(MODEL, f"kubernetes://{namespace}/tiny", port=0, drain_seconds=0.2)
    async with Router(settings) as router, aiohttp.ClientSession() as session:

        async def served() -> bool:
            async with session.get(f"http://{router.address}/readyz") as response:
                return response.status == 200

        await eventually_async(served, "the router has a ready decode group")
