"""What the sidecars say about transfers: recent ones for the table, single ones for the demo."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from kvferry_contract import ports
from kvferry_contract.config import Role
from kvferry_contract.transfer import stage_transfer
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


@dataclass(frozen=True, slots=True)
class StageTransfer:
    """What one stage of decode loaded. received: its own record. sent: of each prefill stage that it loaded from, None
    where that one knows nothing of it."""

    received: Transfer
    sent: tuple[Transfer | None, ...]


def senders_of(received: Transfer) -> list[str]:
    """`host:port` of the sidecars that a receiver's record names, in its order."""
    return [peer for peer in str(received.get("peer") or "").split(",") if peer]


async def finished(
    session: aiohttp.ClientSession, record: Record, transfer_id: str, seconds: float
) -> tuple[StageTransfer | None, ...]:
    """What became of a request's transfer, for each stage of decode; None where it is not over within this time."""
    if not transfer_id:
        return ()
    deadline = asyncio.get_running_loop().time() + seconds
    pods = [pod for pod in record.pods if pod.role == Role.DECODE]
    stages = max((pod.stages for pod in pods), default=0)
    return tuple(
        await asyncio.gather(
            *(
                _of_stage(
                    session,
                    [pod.address for pod in pods if pod.stage == stage],
                    stage_transfer(transfer_id, stage, stages),
                    deadline,
                )
                for stage in range(stages)
            )
        )
    )


async def _of_stage(
    session: aiohttp.ClientSession, addresses: Sequence[str], transfer_id: str, deadline: float
) -> StageTransfer | None:
    """addresses: of this stage's pod in every group of decode; one of them has loaded."""
    received = await _over(session, addresses, transfer_id, "receive", deadline)
    if received is None:
        return None
    senders = [peer.rpartition(":")[0] for peer in senders_of(received)]
    sent = await asyncio.gather(*(_over(session, [sender], transfer_id, "send", deadline) for sender in senders))
    return StageTransfer(received, tuple(sent))


async def _over(
    session: aiohttp.ClientSession, addresses: Sequence[str], transfer_id: str, direction: str, deadline: float
) -> Transfer | None:
    """One transfer's record once it is over; None when no sidecar at these addresses has it in time.

    direction: `send` or `receive`.
    """
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
