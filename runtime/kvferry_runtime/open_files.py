"""How many files a process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

MANY = 1 << 16


def allow_many() -> None:
    """Raise the soft limit, often 1024, as far as `wanted` says: each session with a peer has ten descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # what is refused was not there before either
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted(soft, hard), hard))


def wanted(soft: int, hard: int) -> int:
    """The soft limit that should be: the hard one, but no more than `MANY`, and never less than it is."""
    if soft == resource.RLIM_INFINITY:
        return soft
    return max(soft, MANY if hard == resource.RLIM_INFINITY else min(hard, MANY))
