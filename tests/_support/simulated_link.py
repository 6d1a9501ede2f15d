"""A transfer in simulated time: encoder, wire and decoder work on one chunk each, the wire at a rate that may step.

Not the closed formula that `auto` predicts with: every chunk is followed from stage to stage, so that a test can tell
whether what `auto` chooses by the formula, from what it could measure, is good in the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kvferry_contract.config import OverlapMode
from kvferry_runtime.auto.choice import choose
from kvferry_runtime.auto.goodput import Goodput
from kvferry_runtime.auto.prediction import MESSAGE_SECONDS, Job
from kvferry_runtime.auto.speeds import MethodSpeed

WINDOW = 8


@dataclass(frozen=True)
class Link:
    """Bytes a second, before and after `step_at` (seconds)."""

    before: float
    after: float
    step_at: float

    def ended(self, size: float, begun: float) -> float:
        """When a message of `size` bytes has gone over it."""
        before = max(0.0, self.step_at - begun)
        if size <= before * self.before:
            return begun + size / self.before
        return max(begun, self.step_at) + (size - before * self.before) / self.after


@dataclass(frozen=True)
class Work:
    """One prompt. layers of equal size, computed one after the other in `compute_seconds`."""

    raw_bytes: int
    layers: int
    chunk_bytes: int
    compute_seconds: float
    tokens: int = 4096


Pick = Callable[[Job, float | None], str]


@dataclass(frozen=True)
class _Message:
    begun: float
    ended: float
    size: float


class Wire:
    """What several transfers in a row share: the time, and what was measured of the link."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.goodput = Goodput()
        self.now = 0.0

    def transfer(self, work: Work, methods: dict[str, MethodSpeed], layerwise: bool, pick: Pick) -> float:
        """Seconds from the start of the pass until decode can begin. At most `WINDOW` chunks are under way."""
        started = encoded = decoded = self.now
        under_way: deque[_Message] = deque()
        left = work.raw_bytes
        free_at = self.now
        for raw, ready in _chunks(work, layerwise):
            begin = max(encoded, started + ready, under_way[0].ended if len(under_way) == WINDOW else 0.0)
            while under_way and under_way[0].ended <= begin:
                self._report(under_way.popleft())
            layers = -(-left * work.layers // work.raw_bytes)
            job = Job(left, 0, layers, work.chunk_bytes, max(0.0, work.compute_seconds - (begin - started)))
            method = methods[pick(job, self.goodput.bytes_per_second(begin))]
            encoded = begin + raw / method.encode + MESSAGE_SECONDS
            message = self._send(raw * method.ratio, max(encoded, free_at))
            under_way.append(message)
            free_at = message.ended
            decoded = max(decoded, free_at) + raw / method.decode
            left -= raw
        for message in under_way:
            self._report(message)
        self.now = decoded
        return decoded - started

    def _send(self, size: float, begun: float) -> _Message:
        return _Message(begun, self.link.ended(size, begun), size)

    def _report(self, message: _Message) -> None:
        self.goodput.started(int(message.size), message.begun)
        self.goodput.ended(int(message.size), message.ended)


def _chunks(work: Work, layerwise: bool) -> list[tuple[int, float]]:
    """Size of each chunk and when it can be filled, seconds from the start of the pass."""
    if not layerwise:
        count = -(-work.raw_bytes // work.chunk_bytes)
        return [(work.raw_bytes // count, work.compute_seconds)] * count
    layer_bytes = work.raw_bytes // work.layers
    count = -(-layer_bytes // work.chunk_bytes)
    return [
        (layer_bytes // count, work.compute_seconds * (layer + 1) / work.layers)
        for layer in range(work.layers)
        for _ in range(count)
    ]


def fixed(method: str) -> Pick:
    return lambda _job, _rate: method


def automatic(methods: dict[str, MethodSpeed], overlap: OverlapMode, tokens: int) -> Pick:
    return lambda job, rate: choose(job, rate, list(methods.values()), overlap, tokens).method


def automatic_layerwise(wire: Wire, work: Work, methods: dict[str, MethodSpeed]) -> bool:
    job = Job(work.raw_bytes, 0, work.layers, work.chunk_bytes, work.compute_seconds)
    rate = wire.goodput.bytes_per_second(wire.now)
    return choose(job, rate, list(methods.values()), OverlapMode.AUTO, work.tokens).layerwise
