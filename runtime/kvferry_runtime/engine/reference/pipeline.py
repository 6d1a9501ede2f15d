"""Where requests are computed: by this process alone, or by a group of which it is the first stage.

What the engine's core decides becomes orders and passes here, and what stages report becomes one word for all of them.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.engine.reference import activations, group_words
from kvferry_runtime.engine.reference.chunks import Span
from kvferry_runtime.engine.reference.executor import StageExecutor
from kvferry_runtime.engine.reference.messages import Computed, Loaded, Message, Sent
from kvferry_runtime.engine.reference.request import Request
from kvferry_runtime.engine.reference.scheduler import Decode, Prefill, Work
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.engine.stages.ring import StageRing, in_flight
from kvferry_runtime.errors import StageUnreachable

STUCK_SECONDS = 300.0
"""Without any word for this long while passes are under way, a group is better started anew."""


@dataclasses.dataclass(slots=True)
class _Placed:
    """A request that has blocks at every stage, and the words of stages on it so far."""

    request: Request
    loads: list[group.Loaded] = dataclasses.field(default_factory=list)
    sends: list[group.Sent] = dataclasses.field(default_factory=list)


class Pipeline(ABC):
    """Used by the engine's thread alone; what stages say comes to it by `take`.

    Each pass that `compute` began ends with a `Computed`, each transfer that `place` began with a `Loaded` or `Sent`.

    Args:
        executor: of this stage, the first one. post: brings a message back to the engine's core, later.
    """

    def __init__(self, executor: StageExecutor, stages: int, post: Callable[[Message], None]) -> None:
        self.stages = stages
        self._executor = executor
        self._post = post
        self._requests = itertools.count()
        self._passes = itertools.count()
        self._placed: dict[int, _Placed] = {}
        self._under_way: dict[int, Work] = {}
        """Passes without a result."""

    @property
    def vocabulary(self) -> int:
        return self._executor.runner.model.vocabulary

    @property
    def rows(self) -> int:
        """Of a decode pass."""
        return self._executor.runner.rows

    @property
    def free_blocks(self) -> int:
        """At the first stage, which gets a block back first. The others obey its `Release` before the next `Place`, so
        what is free here is free there when it is asked for."""
        return self._executor.pool.free

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether another pass may be begun now.

        Raises:
            StageUnreachable: the group has not ended a pass for too long.
        """

    @abstractmethod
    def _order(self, order: group.AnyCommand) -> None:
        """Have it obeyed at every stage."""

    @abstractmethod
    def _go_on(self, work: group.AnyPass, found: torch.Tensor | list[int]) -> None:
        """This stage has computed a pass."""

    def place(self, request: Request, transfer: TransferParams | None, kept: int | None) -> None:
        """Reserve blocks for a request at every stage and begin its transfer. kept: see `stages.messages.Place`."""
        number = next(self._requests)
        self._placed[number] = _Placed(request)
        sent = None if transfer is None else group_words.transfer_sent(transfer)
        try:
            self._order(group.Place(number, request.blocks, len(request.prompt), sent, kept))
        except BaseException:
            del self._placed[number]
            raise
        request.number = number

    def cancel_load(self, request: Request, reason: str) -> None:
        """Its `Loaded` still comes."""
        self._order(group.CancelLoad(self._number(request), group_words.short(reason)))

    def cancel_send(self, request: Request, reason: str) -> None:
        """Its `Sent` still comes."""
        self._order(group.CancelSend(self._number(request), group_words.short(reason)))

    def release(self, request: Request) -> None:
        """Give its blocks back. No transfer and no pass of it may be under way."""
        number = self._number(request)
        request.number = None
        del self._placed[number]
        self._order(group.Release(number))

    def compute(self, work: Work) -> None:
        """Begin a pass: a chunk of a prompt, or the next token of at most `rows` requests."""
        number = next(self._passes)
        self._under_way[number] = work
        try:
            if isinstance(work, Prefill):
                self._prefill(number, work.request, work.span)
            else:
                self._decode(number, work)
        except BaseException:
            del self._under_way[number]
            raise

    def take(self, report: group.AnyReport) -> None:
        """A stage's word."""
        match report:
            case group.Loaded():
                self._loaded(report)
            case group.Sent():
                self._sent(report)
            case group.Result():
                work = self._under_way.pop(report.number)
                self._post(Computed(work, tuple(report.tokens), report.failure))

    def _prefill(self, number: int, request: Request, span: Span) -> None:
        sampling = group_words.sampling_sent(request.sampling) if span.complete else None
        work = group.PrefillPass(number, self._number(request), span.start, span.stop, sampling)
        found = self._executor.prefill(work, torch.tensor([request.prompt[span.start : span.stop]]))
        self._go_on(work, found)

    def _decode(self, number: int, work: Decode) -> None:
        rows = []
        for request in work.requests:
            position = len(request.prompt) + len(request.tokens) - 1
            sampling = group_words.sampling_sent(request.sampling)
            cached = position - request.evicted
            rows.append(group.Row(self._number(request), position, cached, len(request.tokens), sampling))
        step = group.DecodePass(number, rows)
        inputs = self._executor.runner.padded([request.tokens[-1] for request in work.requests])
        self._go_on(step, self._executor.decode(step, inputs))

    def _loaded(self, word: group.Loaded) -> None:
        placed = self._placed[word.request]
        placed.loads.append(word)
        if len(placed.loads) == self.stages:
            self._post(Loaded(placed.request, group_words.outcome_of_loads(placed.loads)))
        elif word.failure is not None:
            self.cancel_load(placed.request, word.failure.message)

    def _sent(self, word: group.Sent) -> None:
        placed = self._placed[word.request]
        placed.sends.append(word)
        if len(placed.sends) == self.stages:
            self._post(Sent(placed.request, group_words.outcome_of_sends(placed.sends)))
        elif word.failure is not None:
            self.cancel_send(placed.request, word.failure.message)

    def _number(self, request: Request) -> int:
        assert request.number is not None, "it has no blocks"
        return request.number


class WholePipeline(Pipeline):
    """A model that is not split: each pass is over when it was begun."""

    def __init__(self, executor: StageExecutor, post: Callable[[Message], None]) -> None:
        super().__init__(executor, 1, post)

    @property
    def has_room(self) -> bool:
        return True

    def _order(self, order: group.AnyCommand) -> None:
        self._executor.obey(order)

    def _go_on(self, work: group.AnyPass, found: torch.Tensor | list[int]) -> None:
        assert isinstance(found, list), "the only stage is the last one"
        self.take(group.Result(work.number, found))


class GroupPipeline(Pipeline):
    """A model split over a group: the other stages obey and go on by the ring."""

    def __init__(self, executor: StageExecutor, ring: StageRing, post: Callable[[Message], None]) -> None:
        super().__init__(executor, ring.stages, post)
        self._ring = ring
        self._progress = time.monotonic()

    @property
    def has_room(self) -> bool:
        if self._under_way and time.monotonic() - self._progress > STUCK_SECONDS:
            raise StageUnreachable(
                f"no pass has come back from the stages of this group for {STUCK_SECONDS:g} s: "
                "their logs and the age in their /v1/state say which of them is stuck"
            )
        return len(self._under_way) < in_flight(self.stages)

    def compute(self, work: Work) -> None:
        if not self._under_way:
            self._progress = time.monotonic()
        super().compute(work)

    def take(self, report: group.AnyReport) -> None:
        self._progress = time.monotonic()
        super().take(report)

    def _order(self, order: group.AnyCommand) -> None:
        self._executor.obey(order)
        self._ring.send(order)

    def _go_on(self, work: group.AnyPass, found: torch.Tensor | list[int]) -> None:
        assert isinstance(found, torch.Tensor), "the last stage is another one"
        self._ring.send(work, activations.to_array(found))
