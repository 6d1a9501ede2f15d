"""The ring between the pods of a group, in a thread of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from kvferry_contract.config import TransportKind
from kvferry_runtime.engine import stage_hosts
from kvferry_runtime.engine.stages.loop_thread import LoopThread
from kvferry_runtime.engine.stages.node import RingNode
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.engine.stages.threaded import ThreadedRing
from kvferry_runtime.transport.base import Transport

CLOSE_SECONDS = 2.0


def ucx() -> Transport:
    """UCX over whatever lanes the container has: `transfer.transport` is about the sidecars, which hold the devices.

    Raises:
        TransportUnavailable: the binding is not installed; says which extra to install.
    """
    from kvferry_runtime.transport.ucx import UcxTransport

    return UcxTransport(TransportKind.AUTO, os.environ)


class NetworkRing(ThreadedRing):
    """Made with its links closed; `connect` opens them, and waits for the whole group.

    Args:
        marks: what has to be the same in all stages beside the group itself: model, revision, dtype, threads, …
        max_activation_bytes: of one pass, the same in all stages.
        make_transport: called in the ring's thread.

    Raises:
        TransportUnavailable: the transport cannot run here.
    """

    def __init__(
        self,
        settings: RingSettings,
        marks: Mapping[str, str],
        max_activation_bytes: int,
        make_transport: Callable[[], Transport] = ucx,
        lookup: stage_hosts.Lookup = stage_hosts.system_lookup,
    ) -> None:
        async def make() -> RingNode:
            return RingNode(settings, marks, max_activation_bytes, make_transport(), lookup)

        thread = LoopThread("kvferry-stages")
        try:
            super().__init__(settings, thread, thread.run(make()))
        except BaseException:
            thread.stop(CLOSE_SECONDS)
            raise

    def connect(self) -> None:
        """Open both links, and wait until all stages of the group have theirs. `close` in another thread ends it.

        Raises:
            StageUnreachable: not within the deadline of the settings; says what is missing. Everything is freed.
            TransportUnavailable: this stage cannot listen on its address. Everything is freed.
        """
        try:
            self._thread.run(self._node.join())
        except BaseException:
            self.close(CLOSE_SECONDS)
            raise

    def _left(self) -> None:
        self._thread.stop(CLOSE_SECONDS)
