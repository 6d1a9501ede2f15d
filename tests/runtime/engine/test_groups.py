"""A model split over a group of stages answers as one engine does, and leaves nothing behind at any stage."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

import reference_engines as engines
import tiny_model
from kvferry_contract.split import Split
from kvferry_contract.transfer import MAX_DEADLINE_MS, MAX_HOST, MAX_PEERS, TransferParams
from kvferry_runtime.engine.reference import group_words, pipeline
from kvferry_runtime.engine.reference.building import load_parts
from kvferry_runtime.engine.reference.engine import Engine
from kvferry_runtime.engine.reference.executor import StageExecutor
from kvferry_runtime.engine.reference.gathering import Gathering
from kvferry_runtime.engine.reference.stage_http import StageServer
from kvferry_runtime.engine.stages import link_messages, messages
from kvferry_runtime.engine.stages.loopback import LoopbackGroup
from kvferry_runtime.errors import StageUnreachable
from reference_engines import Completion, until
from stage_groups import Group, stage_settings
from tiny_model import prompt_of

LENGTHS = (1, 16, 255, 256, 257, 1100, 2000)
SPLITS = (Split(2), Split(3, (1, 3, 1)), Split(5))
GREEDY, DRAWN = {"temperature": 0}, {"temperature": 1.0, "top_p": 0.95, "top_k": 40, "seed": 11}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model.make(tmp_path_factory.mktemp("five") / "layers", layers=5)


@pytest.fixture
def make_group(folder: Path) -> Iterator[Callable[..., Group]]:
    groups: list[Group] = []

    def make(split: Split = SPLITS[0], **changes: object) -> Group:
        groups.append(Group(folder, split, **changes))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


async def interleaved(engine: Engine, **sampling: object) -> list[Completion]:
    return await asyncio.gather(*(engines.complete(engine, prompt_of(length), **sampling) for length in LENGTHS))


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.parametrize("split", SPLITS, ids=str)
async def test_answers_are_those_of_one_engine(make_group, alone: Engine, split: Split, sampling: dict) -> None:
    group = make_group(split)
    expected = await interleaved(alone, **sampling)
    found = await interleaved(group.engine, **sampling)
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    assert [one.text for one in found] == [one.text for one in expected]
    await until(lambda: group.free)


def test_stages_that_were_split_in_other_ways_are_not_of_one_group(folder: Path) -> None:
    marks = [
        load_parts(folder, stage_settings(dataclasses.replace(engines.SETTINGS, split=split), stage)).ring_marks
        for split, stage in ((Split(2), 0), (Split(2), 1), (Split(2, (1, 4)), 1))
    ]
    assert marks[0] == marks[1] and marks[1] != marks[2]


def test_whatever_transfer_an_engine_takes_other_stages_take_too() -> None:
    """One that they could not read would end the group."""
    peers = [f"{'h' * (MAX_HOST - len(str(peer)))}{peer}:65535" for peer in range(MAX_PEERS)]
    raw = {"transfer_id": "f" * 32, "role": "decode", "peers": peers, "deadline_ms": MAX_DEADLINE_MS}
    sent = group_words.transfer_sent(TransferParams.from_dict(raw))
    carry = link_messages.Carry(messages.Place(0, 1, 1, sent, None), None)
    assert link_messages.decode(link_messages.encode(carry)) == carry


async def test_more_requests_than_blocks_rows_and_passes(make_group, alone: Engine) -> None:
    group = make_group(Split(3), kv_blocks=40)
    prompts = [prompt_of(20 + number) for number in range(40)]
    found = await asyncio.gather(*(engines.complete(group.engine, prompt, max_tokens=12) for prompt in prompts))
    expected = await asyncio.gather(*(engines.complete(alone, prompt, max_tokens=12) for prompt in prompts))
    assert [one.tokens for one in found] == [one.tokens for one in expected]
    await until(lambda: group.free)


async def test_the_smallest_cache_of_all_stages_is_the_group_s(folder: Path, make_group) -> None:
    group = make_group(Split(2), kv_blocks=30)
    assert group.engine.pool.total == 30


async def test_clients_that_leave_free_their_blocks_at_every_stage(make_group) -> None:
    """Case 43."""
    group = make_group()
    for length, state in ((2000, "prefilling"), (20, "running")) * 3:
        fields = {"max_tokens": 300, "ignore_eos": True}
        task = asyncio.create_task(engines.complete(group.engine, prompt_of(length), **fields))
        await until(lambda state=state: group.engine.loop.counts()[state] == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: group.free)
    assert len((await engines.complete(group.engine, prompt_of(20))).tokens) == 8


async def test_a_stage_that_cannot_compute_fails_those_requests_alone(
    make_group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = make_group(Split(3))
    computes = StageExecutor.prefill

    def breaks(executor: StageExecutor, work, inputs):
        if executor.runner.model.layout.first_layer == 2 and work.stop - work.start == 33:
            raise RuntimeError("out of memory")
        return computes(executor, work, inputs)

    monkeypatch.setattr(StageExecutor, "prefill", breaks)
    good, bad = await asyncio.gather(
        engines.complete(group.engine, prompt_of(600)), engines.complete(group.engine, prompt_of(1024 + 33))
    )
    assert len(good.tokens) == 8
    assert (bad.failed.status, bad.failed.code) == (500, "internal")
    await until(lambda: group.free)


async def test_a_lost_stage_ends_every_request_and_the_group(make_group) -> None:
    group = make_group(Split(3))
    fields = {"max_tokens": 2000, "ignore_eos": True}
    open_ones = [asyncio.create_task(engines.complete(group.engine, prompt_of(20), **fields)) for _ in range(3)]
    await until(lambda: group.engine.loop.counts()["running"] == 3)
    await asyncio.to_thread(group.ring.rings[1].close, 1)
    for answer in await asyncio.gather(*open_ones):
        assert (answer.failed.status, answer.failed.kind, answer.failed.code) == (503, "unavailable", "unavailable")
        assert "stage 1" in answer.failed.message
    await until(lambda: {0, 2} <= group.ended)
    assert not group.engine.loop.alive()


async def test_shutdown_fails_what_is_open(make_group) -> None:
    group = make_group()
    task = asyncio.create_task(engines.complete(group.engine, prompt_of(20), max_tokens=2000, ignore_eos=True))
    await until(lambda: group.engine.loop.counts()["running"] == 1)
    await asyncio.to_thread(group.engine.close, 5)
    assert (await task).failed.code == "draining"
    await until(lambda: 1 in group.ended)


async def test_a_stage_that_is_told_to_end_tells_the_first_one(make_group) -> None:
    group = make_group(Split(3))
    group.later[1].worker.leave()
    await until(lambda: group.leaving == [2])


async def test_a_group_that_does_not_go_on_is_given_up(make_group, monkeypatch: pytest.MonkeyPatch) -> None:
    group, stuck, computes = make_group(), threading.Event(), StageExecutor.decode

    def hangs(executor: StageExecutor, work, inputs):
        if not executor.runner.model.first:
            stuck.wait(30)
        return computes(executor, work, inputs)

    monkeypatch.setattr(pipeline, "STUCK_SECONDS", 0.2)
    monkeypatch.setattr(StageExecutor, "decode", hangs)
    try:
        answer = await engines.complete(group.engine, prompt_of(20))
        assert (answer.failed.status, answer.failed.code) == (503, "unavailable")
        assert "no pass has come back" in answer.failed.message
        await until(lambda: 0 in group.ended)
    finally:
        stuck.set()


def test_the_first_stage_says_which_stage_it_waits_for_in_vain() -> None:
    with LoopbackGroup(3, 64) as ring:
        ring.rings[1].start(lambda *_: None, lambda _: None)
        ring.rings[1].send(messages.Ready(1, 100, 8))
        with pytest.raises(StageUnreachable, match=r"stage 2 was not ready within 2 s"):
            Gathering(ring.rings[0], lambda _: None).agree(rows=8, blocks=100, seconds=2)


def test_a_group_has_the_rows_and_blocks_that_every_stage_has() -> None:
    with LoopbackGroup(3, 64) as ring:
        for stage, blocks, rows in ((1, 70, 8), (2, 90, 1)):
            ring.rings[stage].send(messages.Ready(stage, blocks, rows))
        assert Gathering(ring.rings[0], lambda _: None).agree(rows=8, blocks=100) == (1, 70)


async def test_a_later_stage_serves_health_alone(make_group) -> None:
    group, server = make_group(), StageServer("tiny", "decode")
    async with TestClient(TestServer(server.application())) as client:

        async def ask(path: str) -> tuple[int, str]:
            async with client.get(path) as response:
                return response.status, await response.text()

        assert (await ask("/healthz"))[0] == 200
        assert (await ask("/readyz"))[0] == 503
        server.serve(group.later[0])
        await until(lambda: group.later[0].worker.begun)
        assert (await ask("/readyz"))[0] == 200
        state = json.loads((await ask("/v1/state"))[1])
        assert (state["stage"], state["stages"], state["requests"]) == (1, 2, 0)
        assert "kvferry_engine_kv_blocks 400.0" in (await ask("/metrics"))[1]
        async with client.post("/v1/chat/completions", json={}) as response:
            assert response.status == 503
            assert "stage 1 of 2 of tiny: send requests to stage 0" in (await response.json())["error"]["message"]
        server.drain()
        assert (await ask("/readyz"))[1] == "draining\n"
        await asyncio.to_thread(group.ring.rings[0].close, 1)
        await until(lambda: 1 in group.ended)
        assert (await ask("/healthz"))[0] == 503
