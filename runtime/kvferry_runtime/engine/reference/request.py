"""One request inside the engine: what was asked, where it stands, what it tells its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import FetchHandle, LoadResult, SendHandle
from kvferry_runtime.engine.reference.kv import RequestKv, blocks_for
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.engine.reference.sampling import Sampling
from kvferry_runtime.engine.reference.text import TextStream


class Stage(StrEnum):
    """Where a request stands. A set of metric labels."""

    WAITING = "waiting"
    """For free blocks."""
    PARKED = "parked"
    """Its KV is being loaded."""
    PREFILLING = "prefilling"
    RUNNING = "running"
    """Decoding."""
    HELD = "held"
    """Answered or given up, but the agent may still read or write its blocks."""
    OVER = "over"


class Mode(StrEnum):
    """How the prompt's KV came about."""

    LOCAL = "local"
    TRANSFERRED = "transferred"
    RECOMPUTED = "recomputed"


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Delta:
    """`text` may be empty (half of a character, the possible beginning of a stop string)."""

    index: int
    token: int
    text: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The regular end. why: the `errors.Reason` of a recomputation, else empty. transfer: where KV was loaded."""

    reason: FinishReason
    mode: Mode
    why: str
    cached_tokens: int
    transfer: LoadResult | None


@dataclass(frozen=True, slots=True)
class Failed:
    """The irregular end. status: of HTTP. code: for machines, a `Reason` where a transfer failed."""

    status: int
    kind: str
    code: str
    message: str


Event = Delta | Finished | Failed


@dataclass(eq=False, slots=True)
class Request:
    """Written by the engine's thread alone, once submitted.

    sink: takes every event, in the engine's thread; the last one is Finished or Failed, unless the request was
    cancelled by its client. computed: tokens of the prompt whose KV is in place. parked: since when (monotonic).
    given_up: its KV is not awaited any longer, though the agent's last word is. kept: tokens of the prompt that a
    sparse transfer will bring, None where the cache holds all of them. observed: what its queries look at, where a
    sparse transfer is offered.
    """

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    end_tokens: frozenset[int]
    text: TextStream
    sink: Callable[[Event], None]
    transfer: TransferParams | None
    arrived: float

    stage: Stage = Stage.WAITING
    kv: RequestKv | None = None
    observed: AttentionMass | None = None
    computed: int = 0
    tokens: list[int] = field(default_factory=list)
    mode: Mode = Mode.LOCAL
    why: str = ""
    loaded: LoadResult | None = None
    send: SendHandle | None = None
    fetch: FetchHandle | None = None
    parked: float = 0.0
    given_up: bool = False
    kept: int | None = None

    @property
    def evicted(self) -> int:
        """Tokens of the prompt that its cache does not hold: so much lies each later token before its position."""
        return 0 if self.kept is None else len(self.prompt) - self.kept

    @property
    def blocks(self) -> int:
        """Room for the prompt and everything it may generate; the last token's KV is never needed."""
        return blocks_for(len(self.prompt) - self.evicted + self.max_tokens - 1)

    @property
    def hands_over(self) -> bool:
        """Whether another engine goes on with this completion."""
        return self.transfer is not None and self.transfer.role == "prefill"

    @property
    def agent_holds(self) -> bool:
        """Whether the agent may still touch the blocks."""
        return self.send is not None or self.fetch is not None

    def expires(self) -> float | None:
        """Monotonic time at which its transfer has failed, None without a transfer."""
        return None if self.transfer is None else self.arrived + self.transfer.deadline_ms / 1000

    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed here."""
        if self.mode is not Mode.TRANSFERRED:
            return 0
        shortened = None if self.loaded is None else self.loaded.tokens
        return len(self.prompt) if shortened is None else shortened
