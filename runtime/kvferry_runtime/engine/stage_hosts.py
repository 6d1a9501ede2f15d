"""The names of the pods that make up one group of pipeline stages, and their addresses.

A pod's name appears in DNS some seconds after the pod, and the pods of a group start in any order. So whoever asks for
an address asks again until a deadline (`stages.links`), and nobody goes on with a name that has none.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kvferry_contract import env
from kvferry_runtime.errors import SettingsError, StageUnreachable

WAIT_SECONDS = 300.0
"""For the whole group: a pod may first have to get a node and pull its image; a wrong name should still be told."""
LOOKUP_SECONDS = 5.0

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Addresses of a name; raises OSError if it has none."""


def read(environ: Mapping[str, str], stages: int) -> tuple[str, ...]:
    """Host names of a group's pods, by stage; empty where the model is not split.

    Raises:
        SettingsError: not one name for each stage.
    """
    if stages == 1:
        return ()
    text = environ.get(env.STAGE_HOSTS, "")
    hosts = tuple(part.strip() for part in text.split(","))
    if len(hosts) != stages or not all(hosts):
        raise SettingsError(
            f"{env.STAGE_HOSTS}={text!r} names {sum(map(bool, hosts))} hosts, the group has {stages} stages: "
            "give one name for each, with commas between them"
        )
    return hosts


async def address(host: str, lookup: Lookup) -> str:
    """The first address of this name, asked for once.

    Raises:
        StageUnreachable: it has none now; says why.
    """
    try:
        async with asyncio.timeout(LOOKUP_SECONDS):
            found = [each for each in await lookup(host) if each]
        problem = "the name has no address"
    except (OSError, TimeoutError, UnicodeError) as error:
        found, problem = [], str(error) or "the resolver did not answer"
    if not found:
        raise StageUnreachable(
            f"stage host {host} has no address ({problem}): see whether its pod exists, and whether its headless "
            "Service publishes addresses that are not ready"
        )
    return found[0]


async def system_lookup(host: str) -> Sequence[str]:
    """Ask the resolver of this machine."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
