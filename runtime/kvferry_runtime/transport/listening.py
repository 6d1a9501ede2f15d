"""Listening TCP ports that stand a rush, and a process that has no descriptor free."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

BACKLOG = 1024
"""Connections that wait in the kernel."""
_AT_ONCE = 1
"""Connections taken in one turn of the event loop, so that an owner who turns some away frees them before the next.

Where no descriptor is free, asyncio writes as many errors into the log, and tries again as many times a second later.
"""


async def listen(make: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> asyncio.Server:
    """Raises OSError: the address is in use or not ours."""
    server = await asyncio.get_running_loop().create_server(make, host, port, backlog=_AT_ONCE)
    for each in server.sockets:
        with socket.fromfd(each.fileno(), each.family, each.type) as listener:
            listener.listen(BACKLOG)
    return server
