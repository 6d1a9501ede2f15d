"""A stage of a ring in a process of its own, with real UCX, until the ring ends.

python stage_process.py STAGE HOSTS PORT KEY SECONDS

Adds one to every byte of an activation and sends it on; the last stage answers with the BLAKE2 digest of what it got,
a byte for each token. Says what happens on stdout, a line each: `complete LANES`, `lost TEXT`, `closed`, `failed TEXT`.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kvferry_runtime.engine.stages.messages import AnyMessage, Pass, Result
from kvferry_runtime.engine.stages.network import NetworkRing
from kvferry_runtime.engine.stages.ring import Activation
from kvferry_runtime.engine.stages.settings import RingSettings
from kvferry_runtime.errors import KvferryError

ACTIVATION_BYTES = 4 << 20
SECONDS = 120.0


def settings(stage: int, hosts: Sequence[str], port: int, key: str, seconds: float = SECONDS) -> RingSettings:
    return RingSettings(stage, tuple(hosts), "ns/m/r/prefill/0", hosts[stage], key.encode(), seconds, port)


def run(own: RingSettings) -> int:
    """Take part until the end; 1 if the group ended, or never came about."""
    ended = threading.Event()
    ring = NetworkRing(own, {"model": "m"}, ACTIVATION_BYTES)
    try:
        ring.connect()
    except KvferryError as error:
        print("failed", error, flush=True)
        return 1

    def on_message(message: AnyMessage, activation: Activation | None) -> None:
        if not isinstance(message, Pass) or activation is None:
            return
        if own.stage == own.stages - 1:
            ring.send(Result(message.number, list(hashlib.blake2b(activation.array.tobytes()).digest())))
        else:
            activation.array.view("uint8")[...] += 1
            ring.send(message, activation.array)
        activation.release()

    def on_lost(text: str) -> None:
        print("lost", text, flush=True)
        ended.set()

    print("complete", *ring.lanes, flush=True)
    ring.start(on_message, on_lost)
    ended.wait()
    ring.close(2.0)
    print("closed", flush=True)
    return 1


class StageProcess:
    """One of these processes, and what it says."""

    def __init__(self, own: RingSettings) -> None:
        self._own = own
        self.process: asyncio.subprocess.Process

    async def start(self) -> None:
        own = self._own
        words = (str(own.stage), ",".join(own.hosts), str(own.port), own.key.decode(), str(own.join_seconds))
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, *words, stdout=asyncio.subprocess.PIPE
        )

    async def said(self, word: str) -> str:
        """The rest of the next line that begins with this word."""
        assert self.process.stdout is not None
        async with asyncio.timeout(SECONDS):
            while line := (await self.process.stdout.readline()).decode():
                if line.startswith(word):
                    return line.removeprefix(word).strip()
        raise AssertionError(f"stage {self._own.stage} ended without a word of {word!r}")

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def running(*each: RingSettings) -> AsyncIterator[list[StageProcess]]:
    """These stages as processes; all are ended at the end."""
    processes = [StageProcess(own) for own in each]
    try:
        for process in processes:
            await process.start()
        yield processes
    finally:
        for process in processes:
            await process.end()


if __name__ == "__main__":
    number, names, at_port, shared, wait = sys.argv[1:]
    sys.exit(run(settings(int(number), names.split(","), int(at_port), shared, float(wait))))
