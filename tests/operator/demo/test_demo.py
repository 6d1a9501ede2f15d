"""The demo: what it measures, what counts as a failure, what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kvferry_operator.cli.demo import run as run_command
from kvferry_operator.cli.main import build_parser, main
from kvferry_operator.demo import report
from kvferry_operator.demo.comparison import Row, compare, first_difference
from kvferry_operator.demo.errors import DemoFailed
from kvferry_operator.demo.measure import Answer, complete
from kvferry_operator.demo.model import FOLDER
from kvferry_operator.demo.prompts import PROMPTS
from kvferry_operator.demo.run import Demo
from kvferry_operator.local import state
from kvferry_operator.local.transfers import StageTransfer

TOKENS = st.lists(st.integers(0, 3), max_size=6)
SENT = {
    "bytes_raw": 4096,
    "bytes_wire": 2176,
    "wire_seconds": 2**-17,
    "hidden_seconds": 0.875 * 2**-17,
    "lanes": ["tcp:lo"],
    "digest": "ab",
}
ONE_PEER = "127.64.0.1:7400"


def moved(*sent: dict[str, Any] | None, peer: str = ONE_PEER, digest: str = "ab") -> StageTransfer:
    """What one stage of decode loaded from these senders."""
    return StageTransfer({"peer": peer, "digest": digest}, sent)


def answer(tokens: tuple[int, ...] = (1, 2, 3), mode: str = "transferred", reason: str = "") -> Answer:
    return Answer(tokens, "text", 7, 0.25, {"mode": mode, "reason": reason})


def row(method: str = "none", **changes: Any) -> Row:
    given_parts: dict[str, Any] = {"routed": answer(), "aggregated": answer(), "transfers": [moved(SENT)]} | changes
    return compare("ferry", method, **given_parts)


@given(one=TOKENS, other=TOKENS)
def test_the_first_difference_is_where_two_answers_part(one: list[int], other: list[int]) -> None:
    found = first_difference(one, other)
    if found is None:
        assert one == other
    else:
        assert one[:found] == other[:found]
        assert one[found : found + 1] != other[found : found + 1]


@pytest.mark.parametrize(
    ("found", "failure"),
    [
        (row(), ""),
        (row("fp8"), ""),
        (row("fp8", routed=answer((1, 9, 3))), ""),
        (row("none", routed=answer((1, 9, 3))), "token 1 differs, and none may not change anything"),
        (row("none", routed=answer((1, 2))), "token 2 differs, and none may not change anything"),
        (row("fp8", routed=answer(mode="recomputed", reason="deadline")), "was not transferred (recomputed: deadline)"),
        (row("none", transfers=[moved(SENT, digest="cd")]), "different digests"),
        (row("none", transfers=[moved(None)]), "different digests"),
        (row("none", transfers=[moved(SENT), None]), "different digests"),
        (row("none", transfers=[moved(SENT), moved(SENT, digest="cd")]), "different digests"),
        (row("none", transfers=[]), "different digests"),
    ],
)
def test_what_fails_the_demo(found: Row, failure: str) -> None:
    assert failure in found.failure
    assert bool(failure) == bool(found.failure)


def test_the_json_line_has_the_names_that_other_tools_read() -> None:
    line = json.loads(json.dumps(row("fp8", routed=answer((1, 9, 3))).to_json()))
    assert line == {
        "name": "demo",
        "prompt": "ferry",
        "prompt_tokens": 7,
        "output_tokens": 3,
        "tokens": [1, 9, 3],
        "method": "fp8",
        "ttft_s": 0.25,
        "aggregated_ttft_s": 0.25,
        "bytes_raw": 4096,
        "bytes_wire": 2176,
        "goodput_bytes_per_s": 4096 * 2**17,
        "hidden_share": 0.875,
        "lane": "tcp:lo",
        "mode": "transferred",
        "digests_equal": True,
        "tokens_equal": False,
        "first_difference": 1,
    }


def test_a_prompt_is_one_row_whatever_the_number_of_stages() -> None:
    """Two prefill stages, of which the second sends to both stages of decode."""
    far = "127.64.0.2:7400"
    half = SENT | {"wire_seconds": 1.0, "hidden_seconds": 0.5, "bytes_raw": 3000, "bytes_wire": 1500}
    other = half | {"digest": "cd", "lanes": ["tcp:eth1"], "hidden_seconds": 1.0}
    found = row(transfers=[moved(half, other, peer=f"{ONE_PEER},{far}", digest="ab,cd"), moved(half, peer=far)])
    assert (found.bytes_raw, found.bytes_wire, found.lane) == (9000, 4500, "tcp:lo,tcp:eth1")
    assert found.goodput_bytes_per_second == pytest.approx(9000 / 2.0)
    assert found.hidden_share == pytest.approx(2.0 / 3.0)
    assert not found.failure
    assert found.to_json().keys() == row().to_json().keys()
    swapped = moved(half, other, peer=f"{ONE_PEER},{far}", digest="cd,ab")
    assert "different digests" in row(transfers=[swapped]).failure


def test_the_table_has_a_line_a_prompt_for_each_method() -> None:
    lines = report.lines([row(), row("fp8", routed=answer((1, 9, 3)))])
    text = "\n".join(lines)
    assert "compression none" in text and "compression fp8" in text
    assert any(line.split()[-2:] == ["all", "3"] and "tcp:lo" in line and "0.54 GB/s" in line for line in lines)
    assert any(line.endswith("differ from token 1") for line in lines)
    assert "no comparison of speed" in text


def test_there_are_enough_prompts_and_two_are_long() -> None:
    assert len(PROMPTS) >= 8
    assert len({prompt.title for prompt in PROMPTS}) == len(PROMPTS)
    assert sum(len(prompt.text.split()) > 1000 for prompt in PROMPTS) >= 2


@asynccontextmanager
async def served(*events: dict[str, Any] | str, status: int = 200) -> AsyncIterator[str]:
    """An engine that answers every completion with these events."""

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        assert body["stream"] and body["return_token_ids"] and body["temperature"] == 0
        response = web.StreamResponse(status=status)
        await response.prepare(request)
        for event in events:
            await response.write(f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n".encode())
        return response

    application = web.Application()
    application.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def chunk(*ids: int, text: str = "x") -> dict[str, Any]:
    return {"choices": [{"text": text, "token_ids": list(ids)}]}


LAST = {"choices": [], "usage": {"prompt_tokens": 7}, "kvferry": {"mode": "transferred"}}


async def test_an_answer_is_read_whole() -> None:
    async with served(chunk(5), chunk(6, 7, text="yz"), LAST, "[DONE]") as url, aiohttp.ClientSession() as session:
        found = await complete(session, url, "m", "hello", 3)
    assert (found.tokens, found.text, found.prompt_tokens) == ((5, 6, 7), "xyz", 7)
    assert found.result == {"mode": "transferred"}
    assert found.ttft_seconds > 0


@pytest.mark.parametrize(
    ("events", "status", "message"),
    [
        ((chunk(5),), 200, "cut its answer off after 1 tokens"),
        (({"error": {"message": "no room"}},), 200, "failed in mid-answer: no room"),
        (("overloaded",), 503, "answered 503: data: overloaded"),
    ],
)
async def test_a_broken_answer_fails_in_words(events: tuple[Any, ...], status: int, message: str) -> None:
    async with served(*events, status=status) as url, aiohttp.ClientSession() as session:
        with pytest.raises(DemoFailed, match=message):
            await complete(session, url, "m", "hello", 3)


async def test_nobody_there_is_said_in_words() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(DemoFailed, match=r"http://127\.64\.0\.1:9 gave no answer"):
            await complete(session, "http://127.64.0.1:9", "m", "hello", 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--compression", "zip"], "--compression: 'zip' is not one of none, lossless, fp8"),
        (["--json", "/proc/no/demo.jsonl"], "--json /proc/no/demo.jsonl: cannot be written"),
        (["--log-dir", "/proc/x"], "--log-dir /proc/x: cannot be written"),
        (["--trace", "/proc/x"], "--trace /proc/x: cannot be written"),
        (["--prefill", "0"], "--prefill and --decode must be at least 1"),
        (["--prefill-stages", "0"], "--prefill-stages and --decode-stages must be at least 1"),
        (["--decode-stages", "-2"], "--prefill-stages and --decode-stages must be at least 1"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build_parser().parse_args(["demo"]).func is run_command
    assert main(["demo", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prefill-stages", "4"], "--prefill-stages: 4 pipeline stages for a model of 3 layers"),
        (["--prefill-stages", "3", "--decode-stages", "65"], "--decode-stages: 65 pipeline stages for a model of 3"),
    ],
)
def test_more_stages_than_layers_are_refused_before_anything_starts(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 3}')
    (folder / "model.safetensors").touch()
    assert main(["demo", "--model-dir", str(tmp_path), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said and "starting" not in said


def test_a_second_demo_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / FOLDER
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 3}')
    (folder / "model.safetensors").touch()
    claim = state.claim(tmp_path / "kvferry", "default-demo-aggregated", "", tmp_path)
    try:
        assert main(["demo", "--model-dir", str(tmp_path)]) == 1
    finally:
        claim.release()
    said = capsys.readouterr().err
    assert f"(pid {os.getpid()}): another demo runs; wait for it, or end it with Ctrl-C\n" in said
    assert "--name" not in said


def test_a_demo_that_a_signal_ends_says_that_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def run(_: Demo) -> list[Row]:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(Demo, "run", run)
    assert main(["demo"]) == 130
    assert capsys.readouterr().err.endswith("stopped; nothing is left running\n")
