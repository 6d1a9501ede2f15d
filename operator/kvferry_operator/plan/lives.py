"""What is written down of groups of pipeline stages, on the StatefulSet of their first stage. Pure.

Pods are replaced and their counters with them, and the operator remembers nothing: how often a group was made anew, and
that this has been decided, must stand where both can be seen by whoever acts next.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from kvferry_operator.observation.times import moment_of, timestamp

MAX_WHY = 100


class Phase(StrEnum):
    """Where a group stands between two times that it is whole."""

    WHOLE = "whole"
    TORN = "torn"
    """It is made anew once its pause is over."""
    GOING = "going"
    """Pods that are left of it are deleted."""
    LEFT = "left"
    """It was made anew too often, and is left as it is."""


@dataclass(frozen=True, slots=True)
class Life:
    """Of one group. since: when the last of its pods had been made, as it was whole the last time. count, at: how often
    it was made anew, and when last. why: what tore it."""

    since: datetime
    count: int = 0
    at: datetime | None = None
    phase: Phase = Phase.WHOLE
    why: str = ""


def read(text: str) -> dict[int, Life]:
    """By ordinal. What cannot be read counts as not written: the group is looked at as if it were new."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    lives = {int(key): _life(value) for key, value in found.items() if key.isascii() and key.isdigit() and len(key) < 8}
    return {ordinal: life for ordinal, life in lives.items() if life is not None}


def written(lives: Mapping[int, Life]) -> str:
    """Empty for none. Equal lives have equal texts."""
    if not lives:
        return ""
    return json.dumps({str(ordinal): _plain(lives[ordinal]) for ordinal in sorted(lives)}, separators=(",", ":"))


def _plain(life: Life) -> dict[str, Any]:
    """Without what is as at first."""
    return {
        "since": timestamp(life.since),
        **({"count": life.count} if life.count else {}),
        **({"at": timestamp(life.at)} if life.at else {}),
        **({"phase": life.phase.value} if life.phase is not Phase.WHOLE else {}),
        **({"why": life.why[:MAX_WHY]} if life.why else {}),
    }


def _life(raw: object) -> Life | None:
    if not isinstance(raw, dict):
        return None
    since, count = moment_of(raw.get("since")), raw.get("count", 0)
    phase, why = raw.get("phase", Phase.WHOLE.value), raw.get("why", "")
    fits = since is not None and type(count) is int and count >= 0 and phase in tuple(Phase) and isinstance(why, str)
    return Life(since, count, moment_of(raw.get("at")), Phase(phase), why[:MAX_WHY]) if since and fits else None
