"""Groups come and go while requests run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kvferry_contract.endpoints import Group
from kvferry_runtime.errors import SettingsError
from kvferry_runtime.router.discovery import FileDiscovery, open_discovery
from kvferry_runtime.router.stub import StubScript
from routed_stubs import LIMIT_SECONDS, MODEL, Routed, group, publish, routed, until

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}
SLOW = StubScript(token_delay=0.2)
TEXT = "t11 t12 t13 t14 "


async def _states(state: Routed, expected: dict[str, str]) -> None:
    async def seen() -> bool:
        async with state.session.get(state.url("/v1/state")) as response:
            groups = (await response.json())["groups"]
        return {item["pod"]: item["state"] for item in groups if item["role"] == "decode"} == expected

    await until(seen)


async def test_terminating_unready_and_relabelled_groups_get_no_new_request_and_finish_theirs(tmp_path: Path) -> None:
    async with routed(tmp_path, decodes=[SLOW, StubScript(), StubScript(), StubScript()]) as state:
        prefill, (ending, unready, relabelled, good) = state.prefills[0], state.decodes
        publish(state.endpoints, [group(prefill, "prefill"), group(ending, "decode", 0)])
        await _states(state, {"small-decode-0": "ready"})
        running = asyncio.create_task(state.stream({**PROMPT, "stream": True}))
        await until(lambda: ending.record.requests)
        publish(
            state.endpoints,
            [
                group(prefill, "prefill"),
                group(ending, "decode", 0, terminating=True),
                group(unready, "decode", 1, ready=False),
                group(relabelled, "other", 2),
                group(good, "decode", 3),
            ],
        )
        await _states(state, {"small-decode-0": "terminating", "small-decode-1": "unready", "small-decode-3": "ready"})
        for _ in range(4):
            assert (await state.post(PROMPT))[0] == 200
        answer = await running
        assert [len(engine.record.requests) for engine in state.decodes] == [1, 0, 0, 4]
    assert (answer.text, answer.done) == (TEXT, True)


async def test_a_group_that_vanishes_from_the_file_finishes_its_requests(tmp_path: Path) -> None:
    async with routed(tmp_path, prefills=[SLOW], decodes=[SLOW, SLOW]) as state:
        running = asyncio.create_task(state.stream({**PROMPT, "stream": True}))
        await until(lambda: any(engine.record.requests for engine in state.decodes))
        publish(state.endpoints, [])
        await until(_unready(state))
        answer = await running
        assert (await state.post(PROMPT))[0] == 503
    assert (answer.text, answer.done) == (TEXT, True)


def _unready(state: Routed) -> Any:
    async def unready() -> bool:
        return (await state.get("/readyz"))[0] == 503

    return unready


async def test_a_file_that_cannot_be_read_keeps_the_last_view_and_is_counted(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        state.endpoints.write_text("{")

        async def counted() -> bool:
            return "kvferry_router_discovery_errors_total 1.0" in (await state.get("/metrics"))[1]

        await until(counted)
        state.endpoints.unlink()
        assert (await state.post(PROMPT))[0] == 200
        publish(state.endpoints, [])
        await until(_unready(state))


async def test_a_file_that_appears_later_is_found(tmp_path: Path) -> None:
    path, errors = tmp_path / "endpoints.json", list[None]()
    views = FileDiscovery(path, lambda: errors.append(None), poll_seconds=0.01).watch()
    coming = asyncio.ensure_future(anext(views))
    await asyncio.sleep(0.03)
    known = group("127.0.0.1:8000", "decode")
    publish(path, [known])
    assert await asyncio.wait_for(coming, LIMIT_SECONDS) == (known,)
    assert not errors


async def test_an_unchanged_file_is_told_once(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"
    publish(path, [group("127.0.0.1:8000", "decode")])
    seen: list[tuple[Group, ...]] = []

    async def watch() -> None:
        async for view in FileDiscovery(path, lambda: None, poll_seconds=0.001).watch():
            seen.append(view)

    task = asyncio.create_task(watch())
    await until(lambda: seen)
    await asyncio.sleep(0.05)
    task.cancel()
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("kubernetes://default", "kubernetes://namespace/model"),
        ("kubernetes://default/small/more", "kubernetes://namespace/model"),
        ("kubernetes:///small", "kubernetes://namespace/model"),
        ("file://relative/path", "three slashes"),
        ("file:relative", "three slashes"),
        ("http://host/", "unknown scheme"),
        ("", "unknown scheme"),
    ],
)
def test_uris_that_cannot_be_used_say_what_can(uri: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        open_discovery(uri, lambda: None)
