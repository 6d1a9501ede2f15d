"""Which method carries a prompt, and whether layer by layer. Pure.

The method is the least lossy one with which decode can begin at most `TOLERANCE` later, counted from the start of the
forward pass, than with the fastest of those that are allowed. So a transfer that hides behind the pass goes exact; a
lossier method is taken only where each less lossy one is slower by more than that; and nothing that is predicted to
be slower than a less lossy method is ever taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvferry_contract.config import OverlapMode
from kvferry_runtime.auto.prediction import Job, exposed_seconds
from kvferry_runtime.auto.speeds import MethodSpeed

TOLERANCE = 0.03
NEGLIGIBLE_SECONDS = 1e-3
"""A wait this short is met by any method: nobody would give up exact values to shorten it."""
LAYERWISE_MIN_TOKENS = 512
"""From this prompt length on, layer by layer if nothing was measured yet, or if that wins more than the negligible
wait. Below it the forward pass is too short to hide much behind: published layer-wise transfers gain 48 % of TTFT from
1k tokens on, but lose 18 % at 256."""
LAYERWISE_GAIN = 0.1
"""Of the whole time: what more and smaller messages must win for a shorter prompt. Each costs something of its own, so
their rate is measured too low; with a smaller gain the choice would depend on what was sent before."""


class Why(StrEnum):
    """Why this method. A bounded set: it is a metric label."""

    FIXED = "fixed"
    """The object names it."""
    ONLY = "only"
    """No other one is allowed and known at both ends."""
    UNMEASURED = "unmeasured"
    """Nothing was sent to this peer yet: the least lossy one."""
    HIDDEN = "hidden"
    """The least lossy one: what it takes hides behind the forward pass, or is negligible."""
    LINK_FAST = "link_fast"
    """The least lossy one: the link is so fast that nothing else would be faster."""
    LINK_SLOW = "link_slow"
    """The least lossy one that is not slowed down by the link."""


@dataclass(frozen=True, slots=True)
class Choice:
    """exposed_seconds: the wait that is predicted, None if nothing was measured."""

    method: str
    layerwise: bool
    why: Why
    exposed_seconds: float | None


def choose(
    job: Job, bytes_per_second: float | None, methods: Sequence[MethodSpeed], overlap: OverlapMode, tokens: int
) -> Choice:
    """The best way for what is left of a prompt of `tokens` tokens.

    Args:
        bytes_per_second: this transfer's share of the link, on the wire; None if it was never measured.
        methods: allowed at both ends, least lossy first; at least one. The first one is exact.
    """
    exact = methods[0]
    if bytes_per_second is None:
        layerwise = tokens >= LAYERWISE_MIN_TOKENS if overlap is OverlapMode.AUTO else overlap is OverlapMode.LAYERWISE
        why = Why.ONLY if len(methods) == 1 else Why.UNMEASURED
        return Choice(exact.method, layerwise, why, None)
    ways = [_way(job, bytes_per_second, method, exact, overlap, tokens) for method in methods]
    fastest = min(exposed for exposed, _ in ways)
    limit = max(NEGLIGIBLE_SECONDS, fastest + TOLERANCE * (job.compute_seconds + fastest))
    index = next(number for number, (exposed, _) in enumerate(ways) if exposed <= limit)
    exposed, layerwise = ways[index]
    if len(methods) == 1:
        why = Why.ONLY
    elif index > 0:
        why = Why.LINK_SLOW
    elif exposed <= max(NEGLIGIBLE_SECONDS, TOLERANCE * job.compute_seconds):
        why = Why.HIDDEN
    else:
        why = Why.LINK_FAST
    return Choice(methods[index].method, layerwise, why, exposed)


def _way(
    job: Job, bytes_per_second: float, method: MethodSpeed, exact: MethodSpeed, overlap: OverlapMode, tokens: int
) -> tuple[float, bool]:
    """The wait with this method, and whether layer by layer."""
    together = exposed_seconds(job, bytes_per_second, method, exact, layerwise=False)
    if overlap is OverlapMode.REQUEST:
        return together, False
    apart = exposed_seconds(job, bytes_per_second, method, exact, layerwise=True)
    gain = NEGLIGIBLE_SECONDS
    if tokens < LAYERWISE_MIN_TOKENS:
        gain = max(gain, LAYERWISE_GAIN * (job.compute_seconds + together))
    if overlap is OverlapMode.LAYERWISE or together - apart > gain:
        return apart, True
    return together, False
