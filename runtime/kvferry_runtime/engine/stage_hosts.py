"""The names of the pods that make up one group of pipeline stages, and the wait until each of them has an address.

A pod's name appears in DNS some seconds after the pod, and the pods of a group start in any order. So a stage waits
for the names of all stages, with a deadline, and never goes on with a name that has no address.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kvferry_contract import env
from kvferry_runtime.errors import SettingsError, StageUnreachable

WAIT_SECONDS = 300.0
"""A pod of the group may first have to get a node and pull its image; a name that is wrong should still be told."""
PAUSE_SECONDS = 1.0
LOOKUP_SECONDS = 5.0

Lookup = Callable[[str], Awaitable[Sequence[str]]]
"""Addresses of a name; raises OSError if it has none."""

_log = logging.getLogger(__name__)


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


async def addresses(
    hosts: Sequence[str],
    lookup: Lookup,
    wait_seconds: float = WAIT_SECONDS,
    pause_seconds: float = PAUSE_SECONDS,
) -> tuple[str, ...]:
    """The first address of each host, once all of them have one.

    Raises:
        StageUnreachable: a name still had no address after `wait_seconds`.
    """
    return tuple(await asyncio.gather(*(_address(host, lookup, wait_seconds, pause_seconds) for host in hosts)))


async def system_lookup(host: str) -> Sequence[str]:
    """Ask the resolver of this machine."""
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def _address(host: str, lookup: Lookup, wait_seconds: float, pause_seconds: float) -> str:
    said = False
    problem = "the resolver did not answer"
    try:
        async with asyncio.timeout(wait_seconds):
            while True:
                try:
                    async with asyncio.timeout(LOOKUP_SECONDS):
                        found = [address for address in await lookup(host) if address]
                    if found:
                        return found[0]
                    problem = "the name has no address"
                except (OSError, TimeoutError) as error:
                    problem = str(error) or "the resolver did not answer"
                if not said:
                    _log.info("waiting for a stage of this group", extra={"host": host, "problem": problem})
                    said = True
                await asyncio.sleep(pause_seconds)
    except TimeoutError:
        raise StageUnreachable(
            f"stage host {host} has no address after {wait_seconds:g} s ({problem}): see whether its pod exists, "
            "and whether its headless Service publishes addresses that are not ready"
        ) from None
