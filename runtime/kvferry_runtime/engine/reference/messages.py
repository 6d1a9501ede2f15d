"""What the engine's thread is told by others: by HTTP about requests, by the agent about transfers."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.engine.reference.request import Request
from kvferry_runtime.errors import TransferFailed


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client went away."""

    request: Request


@dataclass(frozen=True, slots=True)
class Loaded:
    """The agent's last word on a fetch."""

    request: Request
    result: LoadResult | TransferFailed


@dataclass(frozen=True, slots=True)
class Sent:
    """The agent's last word on an offer."""

    request: Request
    failure: TransferFailed | None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody will fetch the KV that was offered under this id (any more)."""

    transfer_id: str


Message = Submit | Cancel | Loaded | Sent | Withdraw
