"""Loopback addresses that no other run of the tests on this machine uses, for programs whose ports are fixed."""

from __future__ import annotations

import os


def own_address(number: int) -> str:
    """number: 0 to 59; the same one is the same address in the whole run."""
    own = os.getpid()
    return f"127.{40 + number}.{own >> 8 & 255}.{own & 255 or 1}"
