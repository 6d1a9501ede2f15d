"""`bench overlap`: how much of the transfer lies behind the forward pass, and what that does to a client's wait.

Layers of a fixed length stand for the forward pass. The same prompt goes once as a whole after the pass and once layer
by layer. Without overlap decode waits for the whole transfer after the last layer, with it for the rest alone; the
hidden share is the part of that wait that is gone; its headline is the worst where the pass is at least as long as the
transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from kvferry_contract.config import Method, OverlapMode
from kvferry_runtime.bench import layouts, namespaces, pair
from kvferry_runtime.bench.figures import Figure
from kvferry_runtime.bench.pair import Pair, Transfer
from kvferry_runtime.bench.rate import Rate

Measured = TypeVar("Measured")

LONG_TOKENS, SHORT_TOKENS = 1024, 128
COMPUTE_SHARES = (0.25, 0.5, 1.0, 1.25, 2.0)
"""Length of the forward pass, in transfers of the same prompt."""
SHORT_COMPUTE_SECONDS = 0.03
"""Of a short prompt: a few layers' worth of nothing to hide behind."""


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: of the link; None for loopback, which needs no rights and has no limit. count: transfers for a figure."""

    rate: Rate | None
    count: int


@dataclass(frozen=True, slots=True)
class _Waits:
    """Medians in seconds, after the last layer and since the first one began."""

    after: float
    whole: float


def figures(plan: Plan, progress: Callable[[str], None]) -> Iterator[Figure]:
    """Measure and give each figure as soon as it is known.

    Raises:
        KvferryError: a process did not start, or a transfer failed.
    """
    with namespaces.linked() if plan.rate is not None else nullcontext() as link:
        if link is not None and plan.rate is not None:
            link.limit(plan.rate)
        with pair.running(_setup(OverlapMode.REQUEST), link) as pods:
            pods.prepare(LONG_TOKENS)
            pods.check(LONG_TOKENS, 0.0)
            progress("the whole request after the pass")
            wire = median(_repeat(plan, lambda: pods.move(LONG_TOKENS).seconds))
            apart = {share: _serve(pods, plan, LONG_TOKENS, share * wire) for share in COMPUTE_SHARES}
            short_apart = _serve(pods, plan, SHORT_TOKENS, SHORT_COMPUTE_SECONDS)
        yield Figure("overlap.transfer_s", wire, "s", None, None, plan.count)
        with pair.running(_setup(OverlapMode.LAYERWISE), link) as pods:
            pods.prepare(LONG_TOKENS)
            worst = 1.0
            for share in COMPUTE_SHARES:
                progress(f"layer by layer, compute of {share:g} transfers")
                together = _serve(pods, plan, LONG_TOKENS, share * wire)
                hidden = 1 - together.after / apart[share].after
                if share >= 1:
                    worst = min(worst, hidden)
                yield Figure(f"overlap.hidden_share.{share:g}", hidden, "share", None, None, plan.count)
                yield _ratio(f"overlap.wait.{share:g}", apart[share], together, plan)
            yield Figure("overlap.hidden_share", worst, "share", None, None, plan.count)
        with pair.running(_setup(OverlapMode.AUTO), link) as pods:
            pods.prepare(LONG_TOKENS)
            progress("short prompts")
            yield _ratio(
                "overlap.short_prompt", short_apart, _serve(pods, plan, SHORT_TOKENS, SHORT_COMPUTE_SECONDS), plan
            )


def _setup(mode: OverlapMode) -> pair.Setup:
    return pair.Setup(layouts.SMALL, Method.NONE, mode)


def _serve(pods: Pair, plan: Plan, tokens: int, compute_seconds: float) -> _Waits:
    served: list[Transfer] = _repeat(plan, lambda: pods.serve(tokens, compute_seconds))
    return _Waits(median(item.seconds for item in served), median(item.until_loaded for item in served))


def _repeat(plan: Plan, do: Callable[[], Measured]) -> list[Measured]:
    """After one that does not count."""
    do()
    return [do() for _ in range(plan.count)]


def _ratio(name: str, apart: _Waits, ours: _Waits, plan: Plan) -> Figure:
    """A client's wait, whole request / ours."""
    return Figure(name, ours.whole, "s", apart.whole, apart.whole / ours.whole, plan.count)
