"""The end of a watch that is not wanted any more."""

from __future__ import annotations

import aiohttp


def hang_up(answer: aiohttp.ClientResponse) -> None:
    """At once. The farewell of TLS would wait for a server that goes on telling, beyond the end of a test's loop."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()
    answer.close()
