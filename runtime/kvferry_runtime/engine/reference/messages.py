"""What the engine's thread is told: by HTTP about requests, by the agent about transfers, by the group about passes."""

from __future__ import annotations

from dataclasses import dataclass

from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.engine.reference.request import Request
from kvferry_runtime.engine.reference.scheduler import Work
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.errors import TransferFailed


@dataclass(frozen=True, slots=True)
class Submit:
    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client went away."""

    request: Request


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody will fetch the KV that was offered under this id (any more)."""

    transfer_id: str


@dataclass(frozen=True, slots=True)
class Reported:
    """A stage's word, this one's included."""

    report: group.AnyReport


@dataclass(frozen=True, slots=True)
class Loaded:
    """The last word on a fetch, of all stages."""

    request: Request
    result: LoadResult | TransferFailed


@dataclass(frozen=True, slots=True)
class Sent:
    """The last word on an offer, of all stages."""

    request: Request
    failure: TransferFailed | None


@dataclass(frozen=True, slots=True)
class Computed:
    """A pass is over at all stages. tokens: one for each request, or none where its prompt goes on.

    failure: why it could not be computed, empty where it could.
    """

    work: Work
    tokens: tuple[int, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class GroupLost:
    """The ring is broken, and with it everything that is open in this group. text: names the stage."""

    text: str


Message = Submit | Cancel | Withdraw | Reported | Loaded | Sent | Computed | GroupLost
