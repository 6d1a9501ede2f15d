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

START_SECONDS = 120.0

Steer = Callable[[Policy], None]
"""Sets the stand-in's policy, from any thread."""


@contextlib.contextmanager
def playing(access: Access, nodes: Mapping[str, Mapping[str, str]]) -> Iterator[Steer]:
    """Every pod on these nodes becomes ready, until it is steered otherwise. nodes: extended resources by name."""
    up = threading.Event()
    started: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, KubeletStandIn]] = []

    async def play() -> None:
        end = asyncio.Event()
        async with kubelet_stand_in.playing(access, {name: dict(offers) for name, offers in nodes.items()}) as kubelet:
            started.append((asyncio.get_running_loop(), end, kubelet))
            up.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(play(),))
    thread.start()
    try:
        assert up.wait(START_SECONDS), "the stand-in of the kubelet did not start"
        loop, _, kubelet = started[0]
        yield lambda policy: steer(loop, kubelet, policy)
    finally:
        for loop, end, _ in started:
            loop.call_soon_threadsafe(end.set)
        thread.join()


def steer(loop: asyncio.AbstractEventLoop, kubelet: KubeletStandIn, policy: Policy) -> None:
    """From another thread than the loop's; returns when the policy holds."""
    holds = threading.Event()

    def act() -> None:
        kubelet.policy = policy
        holds.set()

    loop.call_soon_threadsafe(act)
    assert holds.wait(START_SECONDS), "the stand-in of the kubelet does not react"
