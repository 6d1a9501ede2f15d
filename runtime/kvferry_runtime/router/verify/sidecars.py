"""What sidecars tell the router: a transfer's record, and their own state. Every answer is bounded in time and size."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from kvferry_runtime.router.upstream import Malformed, Refused, Upstream, UpstreamError

ANSWER_SECONDS = 2.0
AT_ONCE = 16
"""Sidecars that are asked at a time."""


class Record(msgspec.Struct, frozen=True):
    """The part of `GET /v1/transfers/ID` that is read.

    peer, digest: of a receiver, one for each sender, with commas between them.
    """

    state: str
    over: bool
    reason: str = ""
    message: str = ""
    peer: str = ""
    codec: str = ""
    chunks: int = 0
    bytes_raw: int = 0
    bytes_wire: int = 0
    digest: str = ""
    lanes: tuple[str, ...] = ()


class Totals(msgspec.Struct, frozen=True):
    """Of the transfers that a sidecar sent since it started; bytes, seconds."""

    sent: int = 0
    bytes_raw: int = 0
    bytes_wire: int = 0
    wire_seconds: float = 0.0
    hidden_seconds: float = 0.0
    max_relative_error: float | None = None


class State(msgspec.Struct, frozen=True):
    """The part of `GET /v1/state` that is read. group: `namespace/pod`."""

    boot_id: str
    group: str
    fingerprint: str = ""
    memlock_bytes: int | None = None
    devices: tuple[str, ...] = ()
    lanes: tuple[str, ...] = ()
    totals: Totals = Totals()


logger = logging.getLogger(__name__)

_T = TypeVar("_T", Record, State)


async def record(upstream: Upstream, address: str, transfer_id: str, direction: str) -> Record | None:
    """One transfer as the sidecar at `address` knows it; None if it does not.

    Raises:
        UpstreamError: no answer that can be read.
    """
    try:
        return await _get(upstream, address, f"/v1/transfers/{transfer_id}?direction={direction}", Record)
    except Refused as error:
        if error.status == 404:
            return None
        raise


async def states(upstream: Upstream, addresses: Iterable[str]) -> dict[str, State]:
    """The state of each sidecar that answers, by address."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(address: str) -> tuple[str, State] | None:
        async with places:
            try:
                return address, await _get(upstream, address, "/v1/state", State)
            except Malformed as error:
                logger.warning("the state of a sidecar cannot be read: %s", error)
                return None
            except UpstreamError:
                return None

    answers = await asyncio.gather(*(one(address) for address in addresses))
    return dict(answer for answer in answers if answer is not None)


async def _get(upstream: Upstream, address: str, path: str, kind: type[_T]) -> _T:
    body = await upstream.get(address, path, ANSWER_SECONDS)
    try:
        return msgspec.json.decode(body, type=kind)
    except ValueError as error:
        raise Malformed(address, str(error)) from error
