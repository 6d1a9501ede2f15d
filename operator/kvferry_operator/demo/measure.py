"""One streamed completion, timed."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvferry_contract.transfer import RESULT_FIELD
from kvferry_operator.demo.errors import DemoFailed

_TIMEOUT = aiohttp.ClientTimeout(total=120.0)
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Answer:
    """ttft_seconds: from sending the request to the first token. result: what the engines say of the transfer."""

    tokens: tuple[int, ...]
    text: str
    prompt_tokens: int
    ttft_seconds: float
    result: dict[str, Any]


async def complete(session: aiohttp.ClientSession, url: str, model: str, prompt: str, max_tokens: int) -> Answer:
    """Ask greedily, with token ids in the answer.

    Raises:
        DemoFailed: no answer, an error, or an answer that is cut off.
    """
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
    }
    tokens: list[int] = []
    text = ""
    usage: dict[str, Any] | None = None
    result: dict[str, Any] = {}
    began, first = time.perf_counter(), 0.0
    try:
        async with session.post(f"{url}/v1/completions", json=body, timeout=_TIMEOUT) as response:
            if response.status != 200:
                raise DemoFailed(f"{url} answered {response.status}: {(await response.text())[:500]}")
            async for event in _events(response):
                if "error" in event:
                    raise DemoFailed(f"{url} failed in mid-answer: {event['error'].get('message')}")
                for choice in event.get("choices", ()):
                    ids = choice.get("token_ids") or ()
                    if ids and not tokens:
                        first = time.perf_counter()
                    tokens += ids
                    text += choice.get("text", "")
                usage = event.get("usage") or usage
                result = event.get(RESULT_FIELD) or result
    except (TimeoutError, aiohttp.ClientError) as error:
        raise DemoFailed(f"{url} gave no answer: {error or type(error).__name__}") from error
    if not tokens or usage is None:
        raise DemoFailed(f"{url} cut its answer off after {len(tokens)} tokens")
    return Answer(tuple(tokens), text, int(usage["prompt_tokens"]), first - began, result)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    """The events of the stream, without the last one, which only says that it is the last."""
    async for line in response.content:
        if line.startswith(_DATA) and not line.startswith(_DATA + _DONE):
            event: dict[str, Any] = json.loads(line[len(_DATA) :])
            yield event
