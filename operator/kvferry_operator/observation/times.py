"""Times as Kubernetes writes them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

_YEARS = range(1970, 9000)
"""A zero time is none, and one at the end of the calendar cannot be counted with."""


def timestamp(moment: datetime) -> str:
    """In whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def moment_of(text: object) -> datetime | None:
    """What a timestamp says, in whole seconds; None for anything else."""
    try:
        moment = datetime.fromisoformat(str(text)).replace(microsecond=0)
        moment = moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return moment if moment.year in _YEARS else None
