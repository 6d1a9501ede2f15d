"""What the engine does next. Pure: no clock, no tensors, no threads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvferry_runtime.engine.reference.request import Request, Stage


@dataclass(frozen=True, slots=True)
class Prefill:
    """Compute the next chunk of this request's prompt."""

    request: Request


@dataclass(frozen=True, slots=True)
class Decode:
    """Compute the next token of each of these."""

    requests: tuple[Request, ...]


Work = Prefill | Decode


class Scheduler:
    """Knows every request that is not over, by stage, in the order in which it came there.

    Requests are admitted in the order of arrival, so a long one is not overtaken for ever. Prefill computes one
    prompt to its end, since half of two prompts helps nobody; between two of its chunks, everything that decodes
    makes one step. A parked request takes blocks and no time.
    """

    def __init__(self, max_admitted: int) -> None:
        """max_admitted: requests that are parked, prefilling or running at a time."""
        self._max_admitted = max_admitted
        self._stages: dict[Stage, dict[Request, None]] = {stage: {} for stage in Stage if stage is not Stage.OVER}
        self._decode_is_next = False

    def place(self, request: Request, stage: Stage) -> None:
        """Move a request, known or new, to the end of `stage`."""
        self._stages.get(request.stage, {}).pop(request, None)
        request.stage = stage
        if stage is not Stage.OVER:
            self._stages[stage][request] = None

    def admissible(self, free_blocks: int) -> Request | None:
        """The request to admit now, if its turn has come and there is room for it."""
        first = next(iter(self._stages[Stage.WAITING]), None)
        admitted = sum(len(self._stages[stage]) for stage in (Stage.PARKED, Stage.PREFILLING, Stage.RUNNING))
        if first is None or admitted >= self._max_admitted or first.blocks > free_blocks:
            return None
        return first

    def next(self) -> Work | None:
        """The next work: prefill and decode take turns where there is both."""
        prefilling, running = self._stages[Stage.PREFILLING], self._stages[Stage.RUNNING]
        if running and (self._decode_is_next or not prefilling):
            self._decode_is_next = False
            return Decode(tuple(running))
        if prefilling:
            self._decode_is_next = True
            return Prefill(next(iter(prefilling)))
        return None

    def requests(self, stages: Iterable[Stage] = Stage) -> list[Request]:
        """Those in these stages, in order."""
        return [request for stage in stages for request in self._stages.get(stage, ())]

    def counts(self) -> dict[str, int]:
        """Requests in each stage. May be called from any thread."""
        return {stage.value: len(requests) for stage, requests in self._stages.items()}
