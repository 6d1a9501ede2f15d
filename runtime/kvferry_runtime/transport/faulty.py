"""A transport around another one that injects the faults of a plan, counted and repeatable.

Faults act on what this side sends, except `CORRUPT`, which flips a byte of what this side receives: the sender's slot
stays as it is. A test that wants faults on both sides wraps both.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvferry_runtime.errors import ConnectionLost, TransportError
from kvferry_runtime.transport.base import Connection, Lane, Listener, Transport
from kvferry_runtime.transport.buffers import BufferFuture, lent_view

RESET_SECONDS = 2.0
HEAD_BYTES = 128
"""Part of a message that is always there: a header. Corruption without an offset hits it."""


class Way(StrEnum):
    CONTROL = "control"
    DATA = "data"


class FaultKind(StrEnum):
    DELAY = "delay"
    """The message goes out `seconds` later; control messages behind it wait, so that their order stays."""
    DROP = "drop"
    """The message vanishes; the sender sees success."""
    CORRUPT = "corrupt"
    """One bit flips in the receiver's buffer, or in the control payload handed out."""
    RESET = "reset"
    """The connection is lost instead of carrying the message."""
    STALL = "stall"
    """From this message on nothing goes out on this way for `seconds` (`math.inf`: never again)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to message number `first` of this way, and to every `every`-th after it (0: to that one only).

    Messages count from 0, over all connections of the plan: sent ones, for `CORRUPT` received ones. `offset` is the
    byte that `CORRUPT` flips (None: a random one of the first 128). `probability` thins out, by the plan's seed.
    """

    kind: FaultKind
    way: Way
    first: int = 0
    every: int = 0
    seconds: float = 0.0
    offset: int | None = None
    probability: float = 1.0

    def hits(self, number: int) -> bool:
        """Whether it is this message's turn."""
        if number < self.first:
            return False
        return number == self.first if self.every == 0 else (number - self.first) % self.every == 0


class FaultPlan:
    """Which faults happen when, and how many did."""

    def __init__(self, faults: Sequence[Fault] = (), seed: int = 0) -> None:
        self._faults = tuple(faults)
        self._random = random.Random(seed)  # noqa: S311  repeatable on purpose
        self.injected: Counter[tuple[Way, FaultKind]] = Counter()
        self.sent: Counter[Way] = Counter()
        self.received: Counter[Way] = Counter()

    def heal(self) -> None:
        """No more faults."""
        self._faults = ()

    def on_send(self, way: Way) -> tuple[Fault, ...]:
        """Faults of the next message sent."""
        number = self.sent[way]
        self.sent[way] += 1
        return self._drawn(way, number, corrupt=False)

    def on_receive(self, way: Way) -> tuple[Fault, ...]:
        """Faults of the next message received."""
        number = self.received[way]
        self.received[way] += 1
        return self._drawn(way, number, corrupt=True)

    def corrupt(self, view: memoryview, fault: Fault) -> None:
        """Flip one bit of `view`."""
        if view.nbytes:
            within = self._random.randrange(min(view.nbytes, HEAD_BYTES)) if fault.offset is None else fault.offset
            view[min(within, view.nbytes - 1)] ^= 1 << self._random.randrange(8)

    def _drawn(self, way: Way, number: int, *, corrupt: bool) -> tuple[Fault, ...]:
        drawn = tuple(
            fault
            for fault in self._faults
            if fault.way is way
            and (fault.kind is FaultKind.CORRUPT) is corrupt
            and fault.hits(number)
            and self._random.random() < fault.probability
        )
        self.injected.update((way, fault.kind) for fault in drawn)
        return drawn


class FaultyTransport(Transport):
    """`inner` with the faults of `plan`; owns `inner`."""

    def __init__(self, inner: Transport, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan

    @property
    def name(self) -> str:
        return f"faulty-{self._inner.name}"

    async def listen(self, host: str, port: int, on_connection: Callable[[Connection], None]) -> Listener:
        return await self._inner.listen(host, port, lambda inner: on_connection(FaultyConnection(inner, self._plan)))

    async def connect(self, host: str, port: int, timeout: float) -> Connection:
        return FaultyConnection(await self._inner.connect(host, port, timeout), self._plan)

    async def close(self) -> None:
        await self._inner.close()


class FaultyConnection(Connection):
    """One connection of a `FaultyTransport`."""

    def __init__(self, inner: Connection, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._free_at = dict.fromkeys(Way, 0.0)
        self._timers: set[asyncio.TimerHandle] = set()
        self._queued: deque[bytes] = deque()
        self._held: list[BufferFuture] = []
        self._lost: ConnectionLost | None = None
        self._resetting: asyncio.Task[None] | None = None

    @property
    def peer(self) -> str:
        return self._inner.peer

    def send_control(self, payload: bytes) -> None:
        faults = self._struck(Way.CONTROL)
        if self._lost is None and not _has(faults, FaultKind.DROP):
            self._queued.append(payload)
            self._at(self._release(Way.CONTROL, faults), self._deliver_control)
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))

    async def receive_control(self, limit: int) -> bytes:
        if self._lost is not None:
            raise ConnectionLost(str(self._lost))
        payload = await self._inner.receive_control(limit)
        changed = bytearray(payload)
        for fault in self._plan.on_receive(Way.CONTROL):
            self._plan.corrupt(memoryview(changed), fault)
        return bytes(changed)

    def data_address(self) -> bytes:
        return self._inner.data_address()

    async def open_data(self, peer_address: bytes, timeout: float) -> None:
        await self._inner.open_data(peer_address, timeout)

    def send_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        lent_view(buffer, writable=False)
        faults = self._struck(Way.DATA)
        future = BufferFuture(loop=self._loop)
        if self._lost is not None or _has(faults, FaultKind.DROP):
            future.give_back(self._lost)
            return future
        self._held.append(future)
        self._at(self._release(Way.DATA, faults), lambda: self._deliver_data(buffer, tag, future))
        return future

    def receive_data(self, buffer: memoryview, tag: int) -> BufferFuture:
        future = BufferFuture(loop=self._loop)

        def arrived(error: TransportError | None) -> None:
            if error is None:
                for fault in self._plan.on_receive(Way.DATA):
                    self._plan.corrupt(lent_view(buffer, writable=True), fault)
            future.give_back(error)

        self._inner.receive_data(buffer, tag).when_back(arrived)
        return future

    def lanes(self) -> tuple[Lane, ...]:
        return self._inner.lanes()

    async def close(self, timeout: float) -> None:
        self._lose(ConnectionLost(f"connection to {self.peer} is closed"))
        await self._inner.close(timeout)
        if self._resetting is not None:
            await asyncio.wait((self._resetting,), timeout=timeout)

    @property
    def leaked(self) -> int:
        return self._inner.leaked

    def _struck(self, way: Way) -> tuple[Fault, ...]:
        """Faults of the message now to be sent; loses the connection when one of them says so."""
        if self._lost is not None:
            return ()
        faults = self._plan.on_send(way)
        if _has(faults, FaultKind.RESET):
            self._lose(ConnectionLost(f"connection to {self.peer} was lost: injected reset"))
            self._resetting = self._loop.create_task(self._inner.close(RESET_SECONDS))
        return faults

    def _release(self, way: Way, faults: tuple[Fault, ...]) -> float:
        """When the message may go out, in the loop's time."""
        now = self._loop.time()
        stall = sum(fault.seconds for fault in faults if fault.kind is FaultKind.STALL)
        delay = sum(fault.seconds for fault in faults if fault.kind is FaultKind.DELAY)
        self._free_at[way] = max(self._free_at[way], now) + stall
        release = self._free_at[way] + delay
        if way is Way.CONTROL:
            self._free_at[way] = release
        return release

    def _at(self, when: float, deliver: Callable[[], None]) -> None:
        if when <= self._loop.time():
            deliver()
        elif not math.isinf(when):

            def due() -> None:
                self._timers.discard(timer)
                deliver()

            timer = self._loop.call_at(when, due)
            self._timers.add(timer)

    def _deliver_control(self) -> None:
        """The oldest one, whosever turn it is: timers that are due at once come in any order, and late."""
        try:
            self._inner.send_control(self._queued.popleft())
        except ConnectionLost as error:
            self._lose(error)

    def _deliver_data(self, buffer: memoryview, tag: int, future: BufferFuture) -> None:
        self._held.remove(future)
        self._inner.send_data(buffer, tag).when_back(future.give_back)

    def _lose(self, error: ConnectionLost) -> None:
        if self._lost is None:
            self._lost = error
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._queued.clear()
        for future in self._held:
            future.give_back(self._lost)
        self._held.clear()


def _has(faults: tuple[Fault, ...], kind: FaultKind) -> bool:
    return any(fault.kind is kind for fault in faults)
