"""What the sidecars say about transfers: recent ones for the table, single ones for the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import aiohttp

from kvferry_contract import ports
from kvferry_operator.local.record import Record

_PAUSE_SECONDS = 0.05
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)

Transfer = dict[str, Any]
"""One record of a sidecar: id, direction, state, reason, bytes_raw, bytes_wire, lanes, …"""


async def of(record: Record, count: int) -> list[Transfer]:
    """The latest transfers of an instance, as its prefill sidecars tell them, newest first."""
    senders = [pod.address for pod in record.pods if pod.role == "prefill"]
    async with aiohttp.ClientSession(trust_env=False) as session:
        return await recent(session, senders, count)


async def recent(session: aiohttp.ClientSession, addresses: Iterable[str], count: int) -> list[Transfer]:
    """The latest transfers that the sidecars at these addresses know of, newest first.

    A sidecar that does not answer has none.
    """
    answers = await asyncio.gather(*(_get(session, f"{_base(address)}/v1/transfers") for address in addresses))
    found = [transfer for answer in answers if answer for transfer in answer.get("transfers", ())]
    return sorted(found, key=lambda transfer: transfer.get("started_unix", 0.0), reverse=True)[:count]


async def finished(
    session: aiohttp.ClientSession, addresses: Sequence[str], transfer_id: str, direction: str, seconds: float
) -> Transfer | None:
    """One transfer's record once it is over; None when no sidecar at these addresses has it within this time.

    direction: `send` or `receive`.
    """
    if not transfer_id:
        return None
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        urls = [f"{_base(address)}/v1/transfers/{transfer_id}?direction={direction}" for address in addresses]
        for record in await asyncio.gather(*(_get(session, url) for url in urls)):
            if record is not None and record.get("over"):
                return record
        if asyncio.get_running_loop().time() > deadline:
            return None
        await asyncio.sleep(_PAUSE_SECONDS)  # the sidecar tells of no change


def _base(address: str) -> str:
    return f"http://{address}:{ports.SIDECAR_HTTP}"


async def _get(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with session.get(url, timeout=_TIMEOUT) as response:
            if response.status != 200:
                return None
            answer: dict[str, Any] = await response.json()
            return answer
    except (TimeoutError, OSError, ValueError, aiohttp.ClientError):
        return None
