"""All stages of a group in one process, for tests of an engine: the real ring on a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from kvferry_runtime.engine.stages.loop_thread import LoopThread
from kvferry_runtime.engine.stages.node import RingNode
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.engine.stages.threaded import ThreadedRing
from kvferry_runtime.transport.base import Transport
from kvferry_runtime.transport.memory import MemoryNetwork

SECONDS = 10.0


class LoopbackRing(ThreadedRing):
    """The thread is the group's."""

    def _left(self) -> None:
        return


class LoopbackGroup:
    """`rings` are open. wrap: what to put around a stage's transport, to inject faults."""

    def __init__(
        self,
        stages: int,
        max_activation_bytes: int,
        wrap: Callable[[int, Transport], Transport] = lambda stage, transport: transport,
    ) -> None:
        self._thread = LoopThread("kvferry-stages-loopback")
        hosts = tuple(f"stage-{stage}" for stage in range(stages))
        settings = [RingSettings(stage, hosts, "loopback", hosts[stage], bytes(32), SECONDS) for stage in range(stages)]
        self._nodes: list[RingNode] = []

        async def open_all() -> None:
            network = MemoryNetwork()
            for each in settings:
                transport = wrap(each.stage, network.transport())
                self._nodes.append(RingNode(each, {}, max_activation_bytes, transport, _itself))
            async with asyncio.TaskGroup() as group:
                for node in self._nodes:
                    group.create_task(node.join())

        try:
            self._thread.run(open_all())
        except BaseException:
            self.close()
            raise
        self.rings = tuple(
            LoopbackRing(each, self._thread, node) for each, node in zip(settings, self._nodes, strict=True)
        )

    def close(self) -> None:
        """Close every ring, and end the thread. Idempotent."""
        if self._thread.alive:
            for node in self._nodes:
                self._thread.run(node.close(SECONDS), SECONDS)
            self._thread.stop(SECONDS)

    def __enter__(self) -> LoopbackGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _itself(host: str) -> tuple[str, ...]:
    return (host,)
