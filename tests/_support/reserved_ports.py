"""TCP ports that stay ours for as long as a program may want to listen on them, restarts included."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator


@contextlib.contextmanager
def reserved(count: int, address: str = "127.0.0.1") -> Iterator[list[int]]:
    """Free ports, held by sockets that never listen; a program that sets SO_REUSEPORT can listen on them."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            each.bind((address, 0))
        yield [each.getsockname()[1] for each in sockets]
