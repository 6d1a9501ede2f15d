"""Whether the router knows what the supervisor told it: it reads the endpoints file a moment after it was written."""

from __future__ import annotations

import asyncio

import aiohttp

_PERIOD_SECONDS = 0.05
_ANSWER = aiohttp.ClientTimeout(total=2)


async def until_ready_groups(session: aiohttp.ClientSession, url: str, groups: int) -> None:
    """Wait until the router at `url` sends requests to this many groups. The caller sets the deadline."""
    while await _ready_groups(session, url) < groups:  # noqa: ASYNC110  the router tells nobody when its view changes
        await asyncio.sleep(_PERIOD_SECONDS)


async def _ready_groups(session: aiohttp.ClientSession, url: str) -> int:
    """-1 while it gives no answer: it may be starting again."""
    try:
        async with session.get(f"{url}/v1/state", timeout=_ANSWER) as response:
            response.raise_for_status()
            return sum(group["state"] == "ready" for group in (await response.json())["groups"])
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return -1
