"""Threads that tests must not leave behind."""

from __future__ import annotations

import threading
from collections.abc import Set


def new_threads(others: Set[threading.Thread]) -> list[threading.Thread]:
    """Of ours; others: that were there before."""
    return [each for each in threading.enumerate() if each not in others and each.name.startswith("kvferry")]
