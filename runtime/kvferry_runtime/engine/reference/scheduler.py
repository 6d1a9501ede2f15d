"""What the engine does next. Pure: no clock, no tensors, no threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvferry_runtime.engine.reference.chunks import Span, next_span
from kvferry_runtime.engine.reference.request import Request, Stage


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute this chunk of this request's prompt."""

    request: Request
    span: Span

    @property
    def requests(self) -> tuple[Request, ...]:
        return (self.request,)


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute the next token of each of these, in one pass."""

    requests: tuple[Request, ...]


Work = Prefill | Decode


class Scheduler:
    """Knows every request that is not over, by stage, in the order in which it came there.

    Requests are admitted in the order of arrival, so a long one is not overtaken for ever. Prefill computes one
    prompt to its end, since half of two prompts helps nobody; between two of its chunks, everything that decodes
    makes one step. A parked request takes blocks and no time.

    Where a model is split, chunks of a prompt follow each other without waiting for results. A request's tokens cannot;
    so those that decode are dealt out to as many passes as there are stages, and each stage has something to compute.
    """

    def __init__(self, max_admitted: int, rows: int, stages: int) -> None:
        """max_admitted: requests that are parked, prefilling or running at a time. rows: of a decode pass."""
        self._max_admitted = max_admitted
        self._rows = rows
        self._stages_of_model = stages
        self._stages: dict[Stage, dict[Request, None]] = {stage: {} for stage in Stage if stage is not Stage.OVER}
        self._steps = 0
        self._steps_due = 0
        """Of those that decode, before the next chunk of a prompt."""

    def place(self, request: Request, stage: Stage) -> None:
        """Move a request, known or new, to the end of `stage`."""
        before, request.stage = request.stage, stage
        self._stages.get(stage, {}).pop(request, None)
        if stage is not Stage.OVER:
            self._stages[stage][request] = None
        if before is not stage:  # last, so that others never count one request less than there are
            self._stages.get(before, {}).pop(request, None)

    def admissible(self, free_blocks: int) -> Request | None:
        """The request to admit now, if its turn has come and there is room for it."""
        first = next(iter(self._stages[Stage.WAITING]), None)
        admitted = sum(len(self._stages[stage]) for stage in (Stage.PARKED, Stage.PREFILLING, Stage.RUNNING))
        if first is None or admitted >= self._max_admitted or first.blocks > free_blocks:
            return None
        return first

    def next(self) -> Work | None:
        """The next work: prefill and decode take turns where there is both."""
        prefill = next((one for one in self._stages[Stage.PREFILLING] if one.computed < len(one.prompt)), None)
        running = self._stages[Stage.RUNNING]
        ready = [request for request in running if not request.under_way]
        if ready and (self._steps_due > 0 or prefill is None):
            share = -(-len(running) // self._stages_of_model)
            batch = tuple(sorted(ready, key=lambda request: request.stepped)[: min(share, self._rows)])
            self._steps_due -= len(batch)
            for request in batch:
                self._steps += 1
                request.stepped = self._steps
            return Decode(batch)
        if prefill is not None:
            self._steps_due = len(running)
            return Prefill(prefill, next_span(prefill.computed, len(prefill.prompt)))
        return None

    def requests(self, stages: Iterable[Stage] = Stage) -> list[Request]:
        """Those in these stages, in order."""
        return [request for stage in stages for request in self._stages.get(stage, ())]

    def counts(self) -> dict[str, int]:
        """Requests in each stage. May be called from any thread."""
        return {stage.value: len(requests) for stage, requests in self._stages.items()}
