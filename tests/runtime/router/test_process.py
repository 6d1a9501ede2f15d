"""A router's life: it drains, and ends cleanly."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import aiohttp

from kvferry_runtime.router import sse
from kvferry_runtime.router.stub import FailureKind, StubFailure, StubScript
from routed_stubs import LIMIT_SECONDS, MODEL, routed, until

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}


async def test_running_answers_end_before_the_router_does(tmp_path: Path) -> None:
    slow = StubScript(token_delay=0.1)
    async with routed(tmp_path, decodes=[slow], drain_seconds=60) as state:
        running = asyncio.create_task(state.stream({**PROMPT, "stream": True}))
        await until(lambda: state.decodes[0].record.requests)
        stopping = asyncio.create_task(state.router.__aexit__(None, None, None))
        answer = await running
        await stopping
        assert (answer.text, answer.done) == ("t11 t12 t13 t14 ", True)
        try:
            await state.post(PROMPT)
        except aiohttp.ClientConnectionError:
            return
    raise AssertionError("the router still listens")


async def test_an_answer_that_takes_longer_than_the_drain_is_an_error_and_frees_both_engines(tmp_path: Path) -> None:
    endless = StubScript(first_delay=60)
    async with routed(tmp_path, prefills=[endless], decodes=[endless], drain_seconds=0.1) as state:
        running = asyncio.create_task(state.post(PROMPT))
        await until(lambda: state.decodes[0].record.requests)
        await state.router.__aexit__(None, None, None)
        await until(lambda: all(engine.record.open == 0 for engine in (*state.prefills, *state.decodes)))
        status, body, _ = await running
    assert (status, body["error"]["code"]) == (503, "shutdown")


async def test_a_stream_that_takes_longer_than_the_drain_ends_with_an_error_event(tmp_path: Path) -> None:
    hanging = StubScript(failure=StubFailure(FailureKind.HANG, 2))
    async with routed(tmp_path, decodes=[hanging], drain_seconds=0.1) as state:
        asked = state.session.post(state.url("/v1/completions"), json={**PROMPT, "stream": True})
        async with asyncio.timeout(LIMIT_SECONDS), asked as response:
            splitter = sse.EventSplitter()
            first = splitter.feed(await response.content.readuntil(b"\n\n"))
            await state.router.__aexit__(None, None, None)
            rest = splitter.feed(await response.content.read())
    events = [*first, *rest]
    assert sse.DONE not in events
    assert json.loads(events[0])["choices"][0]["text"] == "t11 "
    assert json.loads(events[-1])["error"]["code"] == "shutdown"


async def test_sigterm_is_a_clean_end(tmp_path: Path) -> None:
    code = (
        "import sys; from kvferry_runtime.router.settings import RouterSettings;"
        "from kvferry_runtime.router.process import serve; from kvferry_contract import logs;"
        "logs.setup('text', 'info'); sys.exit(serve(RouterSettings('m', sys.argv[1], port=0)))"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, (tmp_path / "endpoints.json").as_uri(), stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    async with asyncio.timeout(120):
        while b"router listens" not in await process.stderr.readline():
            assert process.returncode is None
        process.terminate()
        assert await process.wait() == 0
