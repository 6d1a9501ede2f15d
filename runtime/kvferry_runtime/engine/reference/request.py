"""One request inside the engine: what was asked, where it stands, what it tells its client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import LoadResult
from kvferry_runtime.engine.reference.kv import blocks_for
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
    """Answered or given up, but an agent may still read or write its blocks, or a pass over them is under way."""
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
    cancelled by its client. number: by which the pipeline knows it while it has blocks, else None. computed: tokens of
    the prompt whose KV is in place, or will be when the passes have ended that are under way. parked: since when
    (monotonic). given_up: its KV is not awaited any longer, though the agent's last word is. kept: tokens of the prompt
    that a sparse transfer will bring, None where the cache holds all of them. sending, loading: the agent's last word
    is still to come. under_way: passes without a result. stepped: the scheduler's count when it decoded last.
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
    number: int | None = None
    computed: int = 0
    under_way: int = 0
    stepped: int = 0
    tokens: list[int] = field(default_factory=list)
    mode: Mode = Mode.LOCAL
    why: str = ""
    loaded: LoadResult | None = None
    sending: bool = False
    loading: bool = False
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
    def in_use(self) -> bool:
        """Whether an agent or a pass may still touch the blocks."""
        return self.sending or self.loading or self.under_way > 0

    def expires(self) -> float | None:
        """Monotonic time at which its transfer has failed, None without a transfer."""
        return None if self.transfer is None else self.arrived + self.transfer.deadline_ms / 1000

    def cached_tokens(self) -> int:
        """Tokens of the prompt that were not computed here."""
        if self.mode is not Mode.TRANSFERRED:
            return 0
        shortened = None if self.loaded is None else self.loaded.tokens
        return len(self.prompt) if shortened is None else shortened
