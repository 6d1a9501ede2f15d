"""Each answered request has one reason, each failed one has one cause; all series are there from the start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvferry_contract.endpoints import Group
from kvferry_runtime.router.reasons import FailureReason, RouteReason
from kvferry_runtime.router.stub import FailureKind, StubEngine, StubFailure, StubScript
from routed_stubs import MODEL, group, routed, waits_for_kv

PROMPT = {"model": MODEL, "prompt": [1, 2, 3]}


def _other_revision(prefills: list[StubEngine], decodes: list[StubEngine]) -> list[Group]:
    return [group(prefills[0], "prefill", revision="r1"), group(decodes[0], "decode", revision="r2")]


CASES: dict[RouteReason, dict[str, Any]] = {
    RouteReason.DISAGGREGATED: {"decodes": [StubScript(result={"mode": "transferred", "reason": "ok"})]},
    RouteReason.CACHED: {"decodes": [StubScript(result={"mode": "local", "reason": "cached"})]},
    RouteReason.RECOMPUTED: {"decodes": [StubScript(result={"mode": "recomputed", "reason": "peer_lost"})]},
    RouteReason.SHORT_PROMPT: {"min_prompt_tokens": 4},
    RouteReason.DISABLED: {"disaggregation": False},
    RouteReason.NO_PREFILL: {"prefills": []},
    RouteReason.NO_PAIR: {"groups": _other_revision},
    RouteReason.PREFILL_FAILED: {
        "prefills": [StubScript(failure=StubFailure(FailureKind.STATUS))],
        "decodes": [waits_for_kv],
    },
}


def test_every_reason_has_a_case() -> None:
    assert set(CASES) == set(RouteReason)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reason", list(RouteReason))
async def test_a_routing_choice_has_one_reason(tmp_path: Path, reason: RouteReason, stream: bool) -> None:
    async with routed(tmp_path, **CASES[reason]) as state:
        if stream:
            answer = await state.stream({**PROMPT, "stream": True})
            headers, text = answer.headers, answer.text
        else:
            _, body, headers = await state.post(PROMPT)
            text = body["choices"][0]["text"]
        assert await state.counted() == {f'requests_total{{reason="{reason.value}"}}': 1}
    assert text == "t11 t12 t13 t14 "
    both = reason in (RouteReason.DISAGGREGATED, RouteReason.CACHED, RouteReason.RECOMPUTED)
    assert headers["x-kvferry-mode"] == ("disaggregated" if both else "aggregated")
    assert headers["x-kvferry-reason"] == ("disaggregated" if both else reason.value)
    assert ("x-kvferry-transfer-id" in headers) == both


@pytest.mark.parametrize(("prompt", "short"), [("x" * 39, True), ("x" * 40, False), ([7] * 9, True), ([7] * 10, False)])
async def test_short_is_below_the_limit(tmp_path: Path, prompt: Any, short: bool) -> None:
    async with routed(tmp_path, min_prompt_tokens=10) as state:
        _, _, headers = await state.post({"prompt": prompt})
    assert (headers["x-kvferry-reason"] == "short_prompt") == short


async def test_a_chat_prompt_is_measured_over_all_messages(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "x" * 20}, {"type": "image_url", "image_url": {"url": "data:"}}]
    messages = [{"role": "system", "content": "x" * 20}, {"role": "user", "content": parts}]
    async with routed(tmp_path, min_prompt_tokens=10) as state:
        _, _, headers = await state.post({"messages": messages}, "/v1/chat/completions")
    assert headers["x-kvferry-mode"] == "disaggregated"


async def test_all_series_are_there_at_zero_and_survive_a_model_name_with_slashes(tmp_path: Path) -> None:
    async with routed(tmp_path) as state:
        _, text = await state.get("/metrics")
        await state.post(PROMPT)
        _, later = await state.get("/metrics")
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    reasons = {("kvferry_router_requests_total", reason.value) for reason in RouteReason}
    failures = {("kvferry_router_failures_total", reason.value) for reason in FailureReason}
    assert {samples[key] for key in reasons | failures} == {0.0}
    assert samples["kvferry_router_info", MODEL] == 1
    assert samples["kvferry_router_groups", "decode", "ready"] == 1
    names = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert names == [line.rsplit(" ", 1)[0] for line in later.splitlines() if not line.startswith("#")]
