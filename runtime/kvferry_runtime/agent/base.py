"""The library in the engine's process: what every engine uses to hand over KV, and who owns a block when.

Prefill. The engine `offer`s a transfer before its forward pass. Each time a layer's K and V for a range of tokens are
final it calls `layer_final`, which only records (never blocks, never copies). From then until `on_done` the agent may
read those rows from its own thread and the engine must neither change nor free them. After the pass the engine calls
`seal`. `on_done` is called exactly once, also after `cancel` and when the sidecar died; from then on the blocks are
the engine's again.

Where decode has several stages, one prompt is offered several times over the same memory, each time with some of the
layers and under an id of its own (`agent.staged`); the blocks are the engine's when every offer has had its `on_done`.

Decode. The engine reserves memory, calls `fetch` and parks the request. Until `on_done` the agent writes into that
memory and nobody else may read or write it. `on_done` is called exactly once: with a `LoadResult`, then every row of
the range is in place and verified, or with a `TransferFailed`, then the content is undefined. With a sparse method the
memory needs room for the tokens that are kept alone (`codec.sparse.budget`), and is addressed by their rank.

Callbacks run in the agent's thread: they must only hand over to the engine's own loop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.codec.base import Rows
from kvferry_runtime.codec.sparse.selection import Scores
from kvferry_runtime.errors import TransferFailed
from kvferry_runtime.layout import KvLayout


class KvMemory(Protocol):
    """One request's KV cache in the engine, as the agent reads or writes it."""

    def rows(self, layer: int, part: int, token_start: int, token_stop: int) -> Rows:
        """Views (not copies) of these tokens of this global layer's part, tokens in order.

        Each array is C-contiguous [tokens_i * heads, head_dim] in the unsigned integer type of the dtype's width
        (see `codec.base.Rows`). Contiguous caches give one array, paged caches one for each block.
        """
        ...


@runtime_checkable
class ScoredMemory(KvMemory, Protocol):
    """Memory of an engine that knows which tokens of a prompt are looked at."""

    def scores(self, layer: int) -> Scores:
        """[tokens] of this global layer; called only when the layer is final for the whole prompt, from a thread of the
        agent's. May take some milliseconds."""
        ...


@runtime_checkable
class ResumableMemory(KvMemory, Protocol):
    """Memory of an engine that can compute the end of a prompt by itself, from its beginning in place.

    resume_tokens: from multiples of so many tokens on; 0: not this time.
    """

    resume_tokens: int


@dataclass(frozen=True, slots=True)
class LoadResult:
    """first_token: sampled by prefill, None if it did not say. Bytes: counted over all chunks of all peers.

    kept_tokens: after a sparse transfer, how many tokens of the prompt every layer has; they lie one behind the other
    from the first place of the memory on. None: all tokens are there.
    tokens: into a `ResumableMemory`, how many tokens are there; the rest was faster computed than sent. None: all.
    """

    first_token: int | None
    chunks: int
    raw_bytes: int
    wire_bytes: int
    kept_tokens: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class AgentState:
    """attached: a sidecar is there. lent_slots: slots being copied now. open_*: transfers without `on_done`."""

    attached: bool
    open_sends: int
    open_loads: int
    lent_slots: int


class SendHandle(ABC):
    """One offered transfer."""

    @abstractmethod
    def layer_final(self, layer: int, token_start: int, token_stop: int) -> None:
        """This global layer's rows of these tokens are final. For each layer, ranges must follow each other from 0.

        Raises:
            LayoutError: they do not, or the layer was not offered.
        """

    @abstractmethod
    def seal(self, first_token: int | None) -> None:
        """The forward pass is over: every layer that was offered was announced for every token."""

    @abstractmethod
    def cancel(self, reason: str) -> None:
        """Stop as soon as possible. `on_done` still comes. Idempotent."""


class FetchHandle(ABC):
    """One transfer that is being loaded."""

    @abstractmethod
    def cancel(self, reason: str) -> None:
        """Stop as soon as possible. `on_done` still comes, and only then is the memory the engine's. Idempotent."""


class KvAgent(ABC):
    """Connects one engine to the sidecar of its pod. Calls may come from any thread."""

    @abstractmethod
    def start(self, layout: KvLayout, fingerprint: Mapping[str, str], engine_age: Callable[[], float]) -> None:
        """Start attaching, and attach again whenever the sidecar comes back.

        fingerprint: beside the layout's own parts, what decode must share (model, revision, dtype, engine).
        engine_age: seconds since the engine's loop last turned; called once a second from the agent's thread.
        """

    @abstractmethod
    def offer(
        self,
        params: TransferParams,
        memory: KvMemory,
        tokens: int,
        on_done: Callable[[TransferFailed | None], None],
        layers: range | None = None,
    ) -> SendHandle:
        """Offer the KV of a prompt of `tokens` tokens. Without a sidecar `on_done` gets NO_CONNECTOR soon.

        layers: which of those held here, global numbers; None for all of them.

        Raises:
            LayoutError: `tokens` is less than 1, or some of the layers are not held here; `on_done` is not called.
        """

    @abstractmethod
    def fetch(
        self,
        params: TransferParams,
        memory: KvMemory,
        token_start: int,
        token_stop: int,
        on_done: Callable[[LoadResult | TransferFailed], None],
    ) -> FetchHandle:
        """Load the rows of these tokens of every layer held here.

        A `ResumableMemory` gets a shorter range only where one pod holds every layer on either side: stages could be
        cut short at different places.
        """

    @abstractmethod
    def state(self) -> AgentState:
        """For readiness, metrics and tests."""

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Fail what is open (SIDECAR_LOST never, CANCELLED), wait for running copies, detach. Idempotent."""
