"""The processes of one group, over UCX: they serve as one engine, and end together."""

import json
import random
import signal
import threading
from pathlib import Path

import pytest

import reference_engines as engines
from kvferry_contract.split import Split
from late_names import LateNames
from reference_engines import until
from stage_processes import NAME, Launch, StageProcess, group, starting, wait_ready

pytestmark = pytest.mark.slow


def state_of(stage: StageProcess) -> dict:
    return json.loads(stage.get("/v1/state")[1])


async def test_two_processes_serve_as_one_engine_until_they_are_told_to_end(tiny: Path, tmp_path: Path) -> None:
    prompts = [random.Random(length).choices(range(256), k=length) for length in (5, 700, 1600)]
    alone = engines.start(tiny)
    expected = [(await engines.complete(alone, prompt)).tokens for prompt in prompts]
    alone.close(5)
    with group(tiny, Split(2), tmp_path) as (first, second):
        for prompt, tokens in zip(prompts, expected, strict=True):
            status, body = first.complete(prompt=prompt, max_tokens=8)
            assert status == 200
            assert body["choices"][0]["token_ids"] == tokens
        status, body = second.complete(prompt="x")
        assert (status, body["error"]["code"]) == (503, "unavailable")
        assert f"stage 1 of 2 of {NAME}" in body["error"]["message"]
        await until(lambda: state_of(second)["requests"] == 0)
        assert (state_of(second)["stage"], state_of(second)["blocks"]) == (1, {"total": 400, "free": 400})
        assert "kvferry_engine_kv_blocks_free" in second.get("/metrics")[1]
        assert '"layers": "2 to 2 of 3"' in second.log or "layers=2 to 2 of 3" in second.log

        # both are told at once, as a rollout does: what runs is brought to its end
        answers: list[tuple[int, dict]] = []
        body = {"prompt": prompts[0], "max_tokens": 300, "ignore_eos": True}
        client = threading.Thread(target=lambda: answers.append(first.complete(**body)))
        client.start()
        await until(lambda: state_of(first)["requests"]["running"] > 0)
        for stage in (second, first):
            stage.process.send_signal(signal.SIGTERM)
        client.join(120)
        assert answers[0][0] == 200
        assert len(answers[0][1]["choices"][0]["token_ids"]) == 300
        assert [stage.process.wait(120) for stage in (first, second)] == [0, 0], first.log + second.log


async def test_a_killed_stage_ends_what_is_open_and_its_whole_group(tiny: Path, tmp_path: Path) -> None:
    with group(tiny, Split(2), tmp_path) as (first, second):
        answers: list[tuple[int, dict]] = []
        body = {"prompt": "x", "max_tokens": 3000, "ignore_eos": True}
        client = threading.Thread(target=lambda: answers.append(first.complete(**body)))
        client.start()
        await until(lambda: state_of(first)["requests"]["running"] > 0)
        second.process.kill()
        client.join(120)
        status, answer = answers[0]
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        assert "stage 1" in answer["error"]["message"]
        assert first.process.wait(120) == 1
        assert "stage 1" in first.log


async def test_the_name_of_a_late_stage_is_awaited(tiny: Path, tmp_path: Path) -> None:
    """Case 37: the group is complete once it has an address; until then nothing is ready and nothing ends."""
    hosts = ["tiny-s0-0.tiny-s0", "tiny-s1-0.tiny-s1"]
    (tmp_path / "resolver").mkdir()
    names = LateNames(tmp_path / "resolver", hosts)
    with starting(tiny, Split(2), tmp_path, Launch(hosts=hosts, environ=names.environ)) as stages:
        names.appears(hosts[0], stages[0].address)
        await until(lambda: names.asked(hosts[1]) >= 4, 180)
        assert [stage.process.poll() for stage in stages] == [None, None]
        assert all(stage.get("/readyz")[0] != 200 for stage in stages)
        names.appears(hosts[1], stages[1].address)
        wait_ready(stages)
        assert stages[0].complete(prompt="x", max_tokens=2)[0] == 200
