"""A chain without a protocol: what four processes reach that only copy, digest and send, at our size of chunks.

A producer copies into slots of shared memory and digests them, a sender writes each slot to a TCP stream, a receiver
reads it into a slot of its own, a consumer digests it and copies it out. A byte on a socket pair hands a slot on. So it
has the passes, the processes and the caches of a transfer, and nothing of what makes one safe: no session, credits,
acknowledgement, deadline or error.

`python -m kvferry_runtime.bench.bare_chain PART …` runs one part.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import xxhash

from kvferry_runtime.errors import KvferryError

TIMEOUT_S = 60.0
PARTS = ("produce", "send", "receive", "consume")


@dataclass(frozen=True, slots=True)
class BareChain:
    """seconds: for all bytes. cpu_seconds: of the four processes together."""

    total_bytes: int
    seconds: float
    cpu_seconds: float

    @property
    def goodput(self) -> float:
        """GB/s."""
        return self.total_bytes / 1e9 / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        return self.cpu_seconds / (self.total_bytes / 1e9)


@dataclass(frozen=True, slots=True)
class Slots:
    """One side's shared memory: `count` slots of `size` bytes."""

    memory: mmap.mmap
    size: int
    count: int

    def slot(self, number: int) -> memoryview:
        start = (number % self.count) * self.size
        return memoryview(self.memory)[start : start + self.size]


def measure(chunk_bytes: int, slots: int, memory_bytes: int, rounds: int) -> BareChain:
    """Move `memory_bytes`, a multiple of `chunk_bytes`, through the chain so many times.

    Raises:
        KvferryError: a part died or took more than a minute.
    """
    chunks = memory_bytes // chunk_bytes
    with ExitStack() as stack:
        start = stack.enter_context(_pair())
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        stream = stack.enter_context(socket.create_connection(listener.getsockname(), timeout=TIMEOUT_S))
        accepted = stack.enter_context(listener.accept()[0])
        ours, theirs = (stack.enter_context(_pair()) for _ in range(2))
        rings = [stack.enter_context(_ring(chunk_bytes * slots)) for _ in range(2)]
        sizes = [str(number) for number in (chunk_bytes, slots, chunks, rounds)]
        parts = [
            stack.enter_context(_part(name, sizes, descriptors))
            for name, descriptors in zip(
                PARTS,
                (
                    (rings[0], ours[0].fileno(), start[1].fileno()),
                    (rings[0], ours[1].fileno(), stream.fileno()),
                    (rings[1], theirs[0].fileno(), accepted.fileno()),
                    (rings[1], theirs[1].fileno(), start[1].fileno()),
                ),
                strict=True,
            )
        ]
        # the parts alone hold these now, so that one that dies ends its neighbours, and at last `start`
        for end in (*ours, *theirs, start[1], stream, accepted):
            end.close()
        start[0].settimeout(TIMEOUT_S)
        try:
            for _ in ("produce", "consume"):
                _byte(start[0])
            started = time.perf_counter()
            start[0].sendall(b"g")
            _byte(start[0])
            seconds = time.perf_counter() - started
            cpu = sum(float(part.communicate(timeout=TIMEOUT_S)[0]) for part in parts)
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            raise KvferryError(f"the chain of bare processes broke: {error}") from error
    return BareChain(memory_bytes * rounds, seconds, cpu)


@contextmanager
def _pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


@contextmanager
def _ring(size: int) -> Iterator[int]:
    descriptor = os.memfd_create("kvferry-bare-chain")
    try:
        os.ftruncate(descriptor, size)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _part(name: str, sizes: list[str], descriptors: tuple[int, ...]) -> Iterator[subprocess.Popen[str]]:
    arguments = [name, *sizes, *(str(descriptor) for descriptor in descriptors)]
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "kvferry_runtime.bench.bare_chain", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        pass_fds=descriptors,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def _byte(stream: socket.socket) -> None:
    if not stream.recv(1):
        raise OSError("a part ended early")


def _produce(slots: Slots, hand: socket.socket, start: socket.socket, chunks: int, rounds: int) -> float:
    source = np.random.default_rng(0).integers(0, 256, chunks * slots.size, np.uint8)
    start.sendall(b"r")
    _byte(start)
    cpu = time.process_time()
    for number in range(chunks * rounds):
        if number >= slots.count:
            _byte(hand)
        slot = slots.slot(number)
        first = number % chunks * slots.size
        np.copyto(np.frombuffer(slot, np.uint8), source[first : first + slots.size])
        xxhash.xxh3_64_intdigest(slot)
        hand.sendall(b"f")
    return time.process_time() - cpu


def _send(slots: Slots, hand: socket.socket, stream: socket.socket, chunks: int, rounds: int) -> float:
    cpu = time.process_time()
    for number in range(chunks * rounds):
        _byte(hand)
        stream.sendall(slots.slot(number))
        hand.sendall(b"e")
    return time.process_time() - cpu


def _receive(slots: Slots, hand: socket.socket, stream: socket.socket, chunks: int, rounds: int) -> float:
    cpu = time.process_time()
    for number in range(chunks * rounds):
        if number >= slots.count:
            _byte(hand)
        rest = slots.slot(number)
        while rest:
            rest = rest[stream.recv_into(rest) :]
        hand.sendall(b"f")
    return time.process_time() - cpu


def _consume(slots: Slots, hand: socket.socket, start: socket.socket, chunks: int, rounds: int) -> float:
    target = np.zeros(chunks * slots.size, np.uint8)
    start.sendall(b"r")
    cpu = time.process_time()
    for number in range(chunks * rounds):
        _byte(hand)
        slot = slots.slot(number)
        xxhash.xxh3_64_intdigest(slot)
        first = number % chunks * slots.size
        np.copyto(target[first : first + slots.size], np.frombuffer(slot, np.uint8))
        hand.sendall(b"e")
    cpu = time.process_time() - cpu
    start.sendall(b"d")
    return cpu


Part = Callable[[Slots, socket.socket, socket.socket, int, int], float]
_RUN: dict[str, Part] = dict(zip(PARTS, (_produce, _send, _receive, _consume), strict=True))


def main(arguments: list[str]) -> None:
    size, count, chunks, rounds, ring, hand, other = map(int, arguments[1:])
    with (
        mmap.mmap(ring, size * count) as memory,
        socket.socket(fileno=hand) as hands,
        socket.socket(fileno=other) as stream,
    ):
        stream.setblocking(True)
        cpu = _RUN[arguments[0]](Slots(memory, size, count), hands, stream, chunks, rounds)
        sys.stdout.write(f"{cpu}\n")
        sys.stdout.flush()
        sys.stdin.read()  # until all parts are through: its neighbours may still have a slot to hand back
        os._exit(0)  # numpy still looks at the memory map, which so cannot be closed


if __name__ == "__main__":
    main(sys.argv[1:])
