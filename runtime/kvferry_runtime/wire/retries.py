"""When a transfer that failed is tried once more, in the next generation."""

from __future__ import annotations

from kvferry_runtime.errors import Reason

RETRIABLE = frozenset({Reason.PEER_LOST, Reason.PEER_UNREACHABLE, Reason.CORRUPT})
"""Faults of the way, not of the ends: the same transfer may succeed on a new connection."""

GRACE_SECONDS = 5.0
"""How long the report of a transfer that is over waits for slots that the agent still has."""


def may_retry(reason: Reason, generation: int, retries: int) -> bool:
    """Whether generation + 1 may follow. retries: how many the failure policy allows."""
    return generation < retries and reason in RETRIABLE
