"""A router on a real loopback socket in front of stub engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from kvferry_contract.endpoints import Group, dump
from kvferry_contract.transfer import FIELD
from kvferry_runtime.router import sse
from kvferry_runtime.router.process import Router
from kvferry_runtime.router.settings import RouterSettings
from kvferry_runtime.router.stub import StubEngine, StubScript

MODEL = "org/small-model"
LIMIT_SECONDS = 5.0
"""Within this every answer or error must be there (case 40)."""


def group(engine: StubEngine | str, role: str, ordinal: int = 0, **changes: Any) -> Group:
    address = engine if isinstance(engine, str) else engine.address
    known: dict[str, Any] = {
        "role": role,
        "ordinal": ordinal,
        "revision": "r1",
        "ready": True,
        "terminating": False,
        "engine": address,
        "sidecars": (f"127.0.0.1:{7400 + ordinal}",),
        "pod": f"small-{role}-{ordinal}",
    }
    return Group(**known | changes)


def publish(path: Path, groups: Iterable[Group]) -> None:
    """Replace the endpoints file as a whole."""
    fresh = path.with_suffix(".new")
    fresh.write_text(dump(groups))
    fresh.replace(path)


Script = StubScript | Callable[[dict[str, Any]], StubScript]
"""Of every request, or what it is for the request with this body."""


class _ChoosingEngine(StubEngine):
    def __init__(self, choose: Callable[[dict[str, Any]], StubScript]) -> None:
        super().__init__()
        self._choose = choose

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.script = self._choose(msgspec.json.decode(await request.read()))
        return await super()._handle(request)


def _engine(script: Script) -> StubEngine:
    return StubEngine(script) if isinstance(script, StubScript) else _ChoosingEngine(script)


def waits_for_kv(body: dict[str, Any]) -> StubScript:
    """Of a decode engine whose KV does not come: nothing until it is asked without a transfer."""
    return StubScript(first_delay=60) if FIELD in body else StubScript()


@dataclass
class Streamed:
    """A streamed answer: its chunks, whether `[DONE]` came, and the headers."""

    status: int
    headers: dict[str, str]
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def text(self) -> str:
        return "".join(
            choice.get("text") or choice.get("delta", {}).get("content") or ""
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
        )

    @property
    def token_ids(self) -> list[int]:
        return [
            token
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
            for token in choice.get("token_ids", [])
        ]

    @property
    def finish_reasons(self) -> list[str]:
        choices = [choice for chunk in self.chunks for choice in chunk.get("choices", [])]
        return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]

    @property
    def result(self) -> dict[str, Any]:
        [found] = [chunk["kvferry"] for chunk in self.chunks if "kvferry" in chunk]
        return dict(found)

    @property
    def error(self) -> dict[str, Any] | None:
        return self.chunks[-1].get("error") if self.chunks else None


@dataclass
class Routed:
    """The router, its engines, and a client."""

    router: Router
    prefills: list[StubEngine]
    decodes: list[StubEngine]
    endpoints: Path
    session: aiohttp.ClientSession

    def url(self, path: str) -> str:
        return f"http://{self.router.address}{path}"

    async def post(
        self, body: dict[str, Any] | bytes, path: str = "/v1/completions", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, Any], dict[str, str]]:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        async with (
            asyncio.timeout(LIMIT_SECONDS),
            self.session.post(self.url(path), data=data, headers=headers) as response,
        ):
            lowered = {key.lower(): value for key, value in response.headers.items()}
            return response.status, msgspec.json.decode(await response.read()), lowered

    async def stream(self, body: dict[str, Any], path: str = "/v1/completions") -> Streamed:
        async with asyncio.timeout(LIMIT_SECONDS), self.session.post(self.url(path), json=body) as response:
            lowered = {key.lower(): value for key, value in response.headers.items()}
            answer = Streamed(response.status, lowered)
            splitter = sse.EventSplitter()
            async for part in response.content.iter_any():
                for data in splitter.feed(part):
                    if data == sse.DONE:
                        answer.done = True
                    else:
                        answer.chunks.append(msgspec.json.decode(data))
            return answer

    async def get(self, path: str) -> tuple[int, str]:
        async with self.session.get(self.url(path)) as response:
            return response.status, await response.text()

    async def counted(self, prefix: str = "kvferry_router_") -> dict[str, float]:
        """All counters that are not 0, by series without the prefix."""
        _, text = await self.get("/metrics")
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line.startswith(prefix))
        series = {name.removeprefix(prefix): float(value) for name, value in lines}
        kept = ("requests_total", "failures_total", "token_mismatch_total", "decode_retries_total")
        return {name: value for name, value in series.items() if name.startswith(kept) and value}


@asynccontextmanager
async def routed(
    folder: Path,
    *,
    prefills: Iterable[Script] = (StubScript(),),
    decodes: Iterable[Script] = (StubScript(),),
    groups: Callable[[list[StubEngine], list[StubEngine]], list[Group]] | None = None,
    **settings: Any,
) -> AsyncIterator[Routed]:
    """Stub engines with these scripts, behind a router with these settings; all stopped at the end."""
    endpoints = folder / "endpoints.json"
    async with AsyncExitStack() as stack:
        started = [
            [await stack.enter_async_context(_engine(script)) for script in scripts] for scripts in (prefills, decodes)
        ]
        made = groups or (
            lambda p, d: (
                [group(e, "prefill", i) for i, e in enumerate(p)] + [group(e, "decode", i) for i, e in enumerate(d)]
            )
        )
        publish(endpoints, made(*started))
        known = {"served_name": MODEL, "endpoints": endpoints.as_uri(), "port": 0, "drain_seconds": 0.2}
        router = await stack.enter_async_context(Router(RouterSettings(**known | settings)))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        state = Routed(router, *started, endpoints, session)
        await until(lambda: _seen(state))
        yield state


async def _seen(state: Routed) -> bool:
    return '"groups":[{' in (await state.get("/v1/state"))[1]


async def until(condition: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> None:
    """Wait for a condition (plain or awaitable) that other tasks bring about."""
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if await value if asyncio.iscoroutine(value) else value:
                return
            await asyncio.sleep(0.01)
