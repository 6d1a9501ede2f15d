"""The course of one transfer: chosen when it is bound to a peer, looked at again before each chunk. Pure.

Whether layer by layer is decided once, since the plan of its chunks follows from it; the method may change from chunk
to chunk, as the rate of the link does.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import dataclass, replace

from kvferry_contract.config import OverlapMode
from kvferry_runtime.auto.choice import Choice, Why, choose
from kvferry_runtime.auto.prediction import Job
from kvferry_runtime.auto.prefix import Ending, best_ending
from kvferry_runtime.auto.speeds import EXACT, MethodSpeed

SAFETY = 4
"""Tokens that a lossy method must leave exact share chunks with others only if a link slower by this factor would not
make a lossy method the better one: a chunk that holds one of them can only go exact."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the engine offers to send, and how.

    fixed: the method, empty if it is to be chosen. methods: those that may be used, least lossy first; the first one
    is exact if one is to be chosen. overlap: AUTO if that is to be chosen. exact_tokens: that lossy methods must leave
    alone. tokens, raw_bytes: at least 1. compute_seconds: expected of the forward pass, from the first of the layers
    that go; 0 if unknown. tail_seconds: of them after the last of these layers.
    """

    fixed: str
    methods: Sequence[MethodSpeed]
    overlap: OverlapMode
    tokens: int
    exact_tokens: int
    raw_bytes: int
    layers: int
    chunk_bytes: int
    compute_seconds: float
    tail_seconds: float = 0.0


class Course:
    """Of one transfer. `now` is in seconds of a monotonic clock; rates are this transfer's share of what its session's
    network takes, in wire bytes a second, None if that was never measured."""

    def __init__(self, proposal: Proposal) -> None:
        self._proposal = proposal
        self._pass_began: float | None = None
        self._pass_over = False
        self._usable = proposal.methods
        self._overlap = proposal.overlap
        self._left = proposal.raw_bytes
        self._last = ""
        self.changes = 0
        """How often another method was taken than for the chunk before."""

    def computing(self, now: float) -> None:
        """A layer is final; only the first one tells when the pass began."""
        if self._pass_began is None:
            self._pass_began = now

    def computed(self) -> None:
        """The forward pass is over."""
        self._pass_over = True

    def bound(
        self, known: Collection[str], layerwise: bool, bytes_per_second: float | None, now: float
    ) -> tuple[Course, Choice]:
        """The course to this peer from the first chunk on, and how it begins. This one stays: the peer may be refused.

        Args:
            known: methods that it can decode.
            layerwise: whether both ends can go layer by layer.
        """
        proposal = self._proposal
        course = copy(self)
        course._left = proposal.raw_bytes
        course._overlap = proposal.overlap if layerwise else OverlapMode.REQUEST
        course._usable = [speed for speed in proposal.methods if speed.method in known]
        choice = course._choose(bytes_per_second, now)
        course._overlap = OverlapMode.LAYERWISE if choice.layerwise else OverlapMode.REQUEST
        return course, replace(choice, method=proposal.fixed, why=Why.FIXED) if proposal.fixed else choice

    def exact_apart(self, bytes_per_second: float | None, now: float) -> bool:
        """Whether tokens that must stay exact need chunks of their own, since a lossy method may well be used."""
        if bytes_per_second is None or self._proposal.fixed:
            return True
        return self._choose(bytes_per_second / SAFETY, now).method not in EXACT

    def method(self, raw_bytes: int, bytes_per_second: float | None, now: float) -> str:
        """For the next chunk, of this size, which is handed to the engine now."""
        method = self._proposal.fixed or self._choose(bytes_per_second, now).method
        self.changes += int(self._last not in ("", method))
        self._last = method
        self._left = max(0, self._left - raw_bytes)
        return method

    def may_end_early(self, bytes_per_second: float | None) -> bool:
        """Whether `ending` could name a place: methods are free, and link and forward pass are known."""
        free = bool(self._usable) and not self._proposal.fixed
        return free and self._proposal.compute_seconds > 0 and bytes_per_second is not None

    def ending(self, endings: Sequence[Ending], raw_bytes: int, bytes_per_second: float | None) -> Ending | None:
        """Where to end, as decode computes the rest sooner than the link brings it; None if everything should be sent.

        endings, raw_bytes: see `prefix.best_ending`. Decode is taken to compute as fast as this engine did.
        """
        if bytes_per_second is None or not self.may_end_early(bytes_per_second):
            return None
        proposal = self._proposal
        fastest = max(min(speed.encode, bytes_per_second / speed.ratio) for speed in self._usable)
        return best_ending(endings, proposal.tokens, raw_bytes, fastest, proposal.tokens / proposal.compute_seconds)

    def _choose(self, bytes_per_second: float | None, now: float) -> Choice:
        proposal = self._proposal
        if not self._usable:
            return Choice(EXACT[0], self._overlap is OverlapMode.LAYERWISE, Why.ONLY, None)
        compute_seconds = self._compute_left(now)
        job = Job(
            raw_bytes=self._left,
            exact_bytes=self._left * proposal.exact_tokens // proposal.tokens,
            layers=max(1, -(-self._left * proposal.layers // proposal.raw_bytes)),
            chunk_bytes=proposal.chunk_bytes,
            compute_seconds=compute_seconds,
            tail_seconds=min(proposal.tail_seconds, compute_seconds),
        )
        return choose(job, bytes_per_second, self._usable, self._overlap, proposal.tokens)

    def _compute_left(self, now: float) -> float:
        if self._pass_over:
            return 0.0
        passed = 0.0 if self._pass_began is None else now - self._pass_began
        return max(0.0, self._proposal.compute_seconds - passed)
