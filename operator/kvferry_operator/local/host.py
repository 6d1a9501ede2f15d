"""Which machines local mode runs on. Imports nothing that only Linux has."""

from __future__ import annotations

import sys

from kvferry_operator.local.errors import CannotStart


def check_linux(platform: str = sys.platform) -> None:
    """
    Raises:
        CannotStart: another operating system.
    """
    if platform != "linux":
        raise CannotStart(
            f"local mode runs on Linux only (this is {platform}): it needs the network 127.0.0.0/8, /dev/shm and "
            "UCX; use a Linux machine or virtual machine, or a cluster"
        )
