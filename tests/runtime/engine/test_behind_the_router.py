"""The router in front of real engines whose transfers work or fail: what clients get, and what is free then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiohttp import ClientSession, web

import reference_engines as engines
from kvferry_contract.config import FailurePolicy, Role
from kvferry_runtime.agent.loopback import Loopback, LoopbackAgent
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.http import EngineServer
from kvferry_runtime.errors import Reason
from kvferry_runtime.router.process import Router
from kvferry_runtime.router.settings import RouterSettings
from reference_engines import until
from routed_stubs import LIMIT_SECONDS, Routed, group, publish
from routed_stubs import until as eventually

BODY: dict[str, Any] = {"model": engines.NAME, "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Served(NamedTuple):
    fabric: Loopback
    prefill: Engine
    decode: Engine
    client: Routed

    async def all_free(self) -> None:
        for engine in (self.prefill, self.decode):
            await until(lambda engine=engine: engine.pool.free == engine.pool.total and engine.loop.idle())


async def listen(stack: AsyncExitStack, engine: Engine, role: str) -> str:
    server = EngineServer(engines.NAME, role)
    runner = web.AppRunner(
        server.application(), auto_decompress=False, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.serve(engine)
    return "{}:{}".format(*runner.addresses[0][:2])


@asynccontextmanager
async def served(model: Path, folder: Path, policy: FailurePolicy, lease: float = 60) -> AsyncIterator[Served]:
    fabric = Loopback()
    pair = [
        engines.start(model, LoopbackAgent(fabric), role=role, failure_policy=policy)
        for role in (Role.PREFILL, Role.DECODE)
    ]
    endpoints = folder / "endpoints.json"
    try:
        async with AsyncExitStack() as stack:
            addresses = [
                await listen(stack, engine, role) for engine, role in zip(pair, ("prefill", "decode"), strict=True)
            ]
            publish(endpoints, [group(addresses[0], "prefill"), group(addresses[1], "decode")])
            settings = RouterSettings(
                engines.NAME,
                endpoints.as_uri(),
                port=0,
                failure_policy=policy,
                timeout_seconds=lease,
                drain_seconds=0.2,
            )
            router = await stack.enter_async_context(Router(settings))
            client = Routed(router, [], [], endpoints, await stack.enter_async_context(ClientSession()))

            async def seen() -> bool:
                return '"groups":[{' in (await client.get("/v1/state"))[1]

            await eventually(seen)
            yield Served(fabric, *pair, client)
    finally:
        for engine in pair:
            await asyncio.to_thread(engine.close, 5)
        fabric.close()


@pytest.mark.parametrize("stream", [True, False])
async def test_a_transfer_that_fails_for_every_request(tiny: Path, tmp_path: Path, stream: bool) -> None:
    """Case 40: an error of the transfer alone reaches the client within 5 s and frees decode at once."""
    async with served(tiny, tmp_path, FailurePolicy.FAIL) as state:
        state.fabric.fail(Reason.CORRUPT)
        for number in range(3):
            body = {**BODY, "prompt": list(range(number, 40 + number)), "stream": stream}
            if stream:
                answer = await state.client.stream(body)
                # prefill's own token may be out already; whether or not, the stream never looks complete
                assert answer.error is not None or answer.status >= 500
                assert len(answer.text) <= 1
                assert not answer.done and not answer.finish_reasons
            else:
                async with asyncio.timeout(LIMIT_SECONDS):
                    status, answered, _ = await state.client.post(body)
                assert status == 502
                assert answered["error"]["code"] == "corrupt"
                assert answered["error"]["message"]
            await state.all_free()
        state.fabric.fail(None)
        status, answered, _ = await state.client.post({**BODY, "prompt": [1] * 40})
        assert (status, answered["kvferry"]["mode"]) == (200, "transferred")


async def test_requests_that_share_a_clients_id_keep_apart(tiny: Path, tmp_path: Path) -> None:
    """Case 41: engines make up ids of their own, clients may reuse theirs; the key is the router's transfer id."""
    prompts = [list(range(10, 70)), list(range(90, 150))]
    async with served(tiny, tmp_path, FailurePolicy.FAIL) as state:
        expected = [await engines.complete(state.decode, prompt, ignore_eos=True) for prompt in prompts]
        answers = await asyncio.gather(
            *(
                state.client.post(
                    {**BODY, "prompt": prompt, "id": "mine", "return_token_ids": True},
                    headers={"x-request-id": "mine"},
                )
                for prompt in prompts
            )
        )
        for (status, body, headers), whole in zip(answers, expected, strict=True):
            assert status == 200, body
            assert body["choices"][0]["token_ids"] == whole.tokens
            assert body["kvferry"]["mode"] == "transferred"
            assert headers["x-request-id"] == "mine"
        assert len({headers["x-kvferry-transfer-id"] for _, _, headers in answers}) == len(prompts)
        await state.all_free()


async def test_a_hundred_clients_that_leave(tiny: Path, tmp_path: Path) -> None:
    """Case 43, with a lease of 2 s: at any moment of their requests; the hundred-and-first is served."""
    async with served(tiny, tmp_path, FailurePolicy.RECOMPUTE, lease=2) as state:
        url = state.client.url("/v1/completions")
        slots = asyncio.Semaphore(10)

        async def leave(number: int) -> None:
            async with slots:
                body = {**BODY, "prompt": [number % 200] * 300, "max_tokens": 200, "stream": number % 2 == 0}
                request = asyncio.create_task(state.client.session.post(url, json=body))
                await asyncio.sleep(number % 10 * 0.01)
                request.cancel()
                for response in await asyncio.gather(request, return_exceptions=True):
                    if not isinstance(response, BaseException):
                        response.close()

        await asyncio.gather(*map(leave, range(100)))
        await state.all_free()
        agents = [engine.agent.state() for engine in (state.prefill, state.decode) if engine.agent]
        assert [agent.open_sends + agent.open_loads for agent in agents] == [0, 0]

        async def transferred() -> bool:
            status, answered, _ = await state.client.post({**BODY, "prompt": [1] * 40})
            assert status == 200
            return bool(answered["kvferry"]["mode"] == "transferred")

        await eventually(transferred)  # a busy machine may need more than the lease
