"""The stand-in of the kubelet in a thread of its own, for tests that wait without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping

import kubelet_stand_in
from cluster_api import Access
from kubelet_stand_in import KubeletStandIn
from pod_behaviours import Policy

START_SECONDS = 30.0

Steer = Callable[[Policy], None]
"""Sets the stand-in's policy, from any thread."""


@contextlib.contextmanager
def playing(access: Access, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Steer]:
    """Every pod on these nodes becomes ready, until it is steered otherwise. nodes: extended resources by name."""
    loop = asyncio.new_event_loop()
    up, end = threading.Event(), asyncio.Event()
    played: list[KubeletStandIn] = []

    async def play() -> None:
        async with kubelet_stand_in.playing(access, {name: dict(offers) for name, offers in nodes.items()}) as kubelet:
            played.append(kubelet)
            up.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(play(),))
    thread.start()
    try:
        assert up.wait(START_SECONDS), "the stand-in of the kubelet did not start"
        yield lambda policy: steer(loop, played[0], policy)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


def steer(loop: asyncio.AbstractEventLoop, kubelet: KubeletStandIn, policy: Policy) -> None:
    """From another thread than the loop's."""

    def act() -> None:
        kubelet.policy = policy

    loop.call_soon_threadsafe(act)
