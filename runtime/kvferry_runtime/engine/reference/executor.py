"""One stage's share of every request: blocks, offers and loads of its layers, and passes over them.

The whole model is a stage too, the only one of its group. Orders and passes are the messages that travel between
stages, so that the first stage asks of itself what it asks of the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from kvferry_runtime.agent.base import FetchHandle, KvAgent, LoadResult, SendHandle
from kvferry_runtime.agent.staged import fetch_stage, offer_stages
from kvferry_runtime.engine.reference import group_words
from kvferry_runtime.engine.reference.chunks import PREFILL_CHUNK, Span
from kvferry_runtime.engine.reference.kv import KvPool, RequestKv
from kvferry_runtime.engine.reference.observation import AttentionMass
from kvferry_runtime.engine.reference.sampling import sample
from kvferry_runtime.engine.reference.stage_runner import StageRunner, Step
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.errors import KvferryError, Reason, TransferFailed

NO_SIDECAR = "this engine runs without a sidecar"

_log = logging.getLogger(__name__)

Report = Callable[[group.Loaded | group.Sent], None]
"""Takes the agent's last words; called from any thread, must only hand over."""


@dataclass(frozen=True, slots=True)
class StagePlace:
    """stage: of this pod. own, peers: layers (global numbers) of each stage of this role and of the one that it
    exchanges KV with."""

    stage: int
    own: Sequence[range]
    peers: Sequence[range]

    @property
    def layers(self) -> range:
        return self.own[self.stage]

    @property
    def split(self) -> bool:
        """Whether either role has more than one stage."""
        return len(self.own) > 1 or len(self.peers) > 1


@dataclass(slots=True)
class Holding:
    """What one request has here. observed: what its queries look at, where a sparse transfer is offered."""

    kv: RequestKv
    observed: AttentionMass | None = None
    send: SendHandle | None = None
    fetch: FetchHandle | None = None


class StageExecutor:
    """Used by one thread alone.

    Args:
        agent: None where there is no sidecar.
        recomputes: whether the group may compute the end of a prompt itself, of which only the beginning was loaded.
        report: see `Report`.
        beat: called whenever there is progress.
    """

    def __init__(
        self,
        runner: StageRunner,
        pool: KvPool,
        agent: KvAgent | None,
        place: StagePlace,
        recomputes: bool,
        report: Report,
        beat: Callable[[], None],
    ) -> None:
        self.runner = runner
        self.pool = pool
        self._agent = agent
        self._place = place
        # stages could be cut short at different places
        self._resume_tokens = PREFILL_CHUNK if recomputes and not place.split else 0
        self._report = report
        self._beat = beat
        self._holdings: dict[int, Holding] = {}

    @property
    def open_requests(self) -> int:
        """Requests that have blocks here. May be read from any thread."""
        return len(self._holdings)

    def obey(self, order: group.AnyCommand) -> None:
        """Do what concerns this stage.

        Raises:
            KeyError: a request that is not placed here.
        """
        match order:
            case group.Place():
                self._take_in(order)
            case group.CancelLoad():
                if (fetch := self._holdings[order.request].fetch) is not None:
                    fetch.cancel(order.reason)
            case group.CancelSend():
                if (send := self._holdings[order.request].send) is not None:
                    send.cancel(order.reason)
            case group.Release():
                self.pool.release(self._holdings.pop(order.request).kv)

    def prefill(self, work: group.PrefillPass, inputs: torch.Tensor) -> torch.Tensor | list[int]:
        """Compute a chunk. inputs: see `StageRunner.prefill`.

        Returns hidden states for the next stage; from the last stage tokens, one if the prompt is complete.

        Raises:
            KeyError: a request that is not placed here.
        """
        holding = self._holdings[work.request]

        def layer_final(layer: int, start: int, stop: int) -> None:
            self._beat()
            if holding.send is not None:
                holding.send.layer_final(layer, start, stop)

        span = Span(work.start, work.stop, complete=work.sampling is not None)
        found = self.runner.prefill(holding.kv, inputs, span, layer_final, holding.observed)
        tokens: list[int] = []
        if work.sampling is not None and not isinstance(found, torch.Tensor):
            tokens.append(sample(found[0], group_words.sampling_of(work.sampling), 0))
        if span.complete and holding.send is not None:
            holding.send.seal(tokens[0] if tokens else None)
        return found if isinstance(found, torch.Tensor) and not self.runner.model.last else tokens

    def decode(self, work: group.DecodePass, inputs: torch.Tensor) -> torch.Tensor | list[int]:
        """Compute the next token of each row. inputs: see `StageRunner.decode`.

        Returns hidden states for the next stage; from the last stage a token for each row.

        Raises:
            KeyError: a request that is not placed here.
        """
        self._beat()
        steps = [Step(self._holdings[row.request].kv, row.position, row.cached) for row in work.rows]
        found = self.runner.decode(steps, inputs)
        if isinstance(found, torch.Tensor):
            return found
        return [
            sample(logits, group_words.sampling_of(row.sampling), row.index)
            for row, logits in zip(work.rows, found, strict=False)  # behind the rows there is padding
        ]

    def _take_in(self, order: group.Place) -> None:
        holding = Holding(self.pool.reserve(order.blocks))
        try:
            self._begin_transfer(order, holding)
        except BaseException:
            self.pool.release(holding.kv)
            raise
        self._holdings[order.request] = holding

    def _begin_transfer(self, order: group.Place, holding: Holding) -> None:
        if order.transfer is None:
            return
        try:
            if self._agent is None:
                raise KvferryError(NO_SIDECAR)
            if order.transfer.role == "prefill":
                self._offer(self._agent, order, order.transfer, holding)
            else:
                self._fetch(self._agent, order, order.transfer, holding)
        except KvferryError as error:
            failure = TransferFailed(Reason.NO_CONNECTOR, str(error))
            if order.transfer.role == "prefill":
                # decode learns it from the sidecar's silence; the engine's own answer needs no transfer
                _log.warning("KV cannot be offered: %s", error, extra={"transfer_id": order.transfer.transfer_id})
                self._report(group_words.sent(self._place.stage, order.request, failure))
            else:
                self._report(group_words.loaded(self._place.stage, order.request, failure))

    def _offer(self, agent: KvAgent, order: group.Place, transfer: group.Transfer, holding: Holding) -> None:
        observed = None if order.kept_tokens is None else holding.kv.attention_mass(order.prompt_tokens)

        def done(failure: TransferFailed | None) -> None:
            self._report(group_words.sent(self._place.stage, order.request, failure))

        memory = holding.kv.share() if observed is None else holding.kv.share_observed(observed)
        holding.send = offer_stages(
            agent, group_words.transfer_of(transfer), memory, order.prompt_tokens, self._place.layers,
            self._place.peers, done,
        )  # fmt: skip
        holding.observed = observed

    def _fetch(self, agent: KvAgent, order: group.Place, transfer: group.Transfer, holding: Holding) -> None:
        def done(outcome: LoadResult | TransferFailed) -> None:
            self._report(group_words.loaded(self._place.stage, order.request, outcome))

        memory = holding.kv.share(self._resume_tokens if order.kept_tokens is None else 0)
        holding.fetch = fetch_stage(
            agent, group_words.transfer_of(transfer), memory, 0, order.prompt_tokens, self._place.stage,
            self._place.own, self._place.peers, done,
        )  # fmt: skip
