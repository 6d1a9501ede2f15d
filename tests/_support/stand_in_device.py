"""A device without a GPU: streams are threads, memory is the host's, and everything takes as long as a test wants.

It keeps what CUDA promises and nothing more: work on a stream runs in order, later than its submission, and starts
only after the events that the stream waits for; a work's failure shows at every later event of its stream. Kernels run
in Triton's interpreter, one at a time, as it is not made for threads.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable

import torch

from kvferry_runtime.agent.device.streams import Device, Event, Stream

WAIT_SECONDS = 30.0
"""No test lets a device take longer."""

_interpreter = threading.Lock()


class StandInEvent:
    """Passed once `fire` was called. waits: the name of each thread that waits is added."""

    def __init__(self, waits: list[str] | None = None) -> None:
        self._passed = threading.Event()
        self._at = 0.0
        self._failure: Exception | None = None
        self._waits = [] if waits is None else waits

    @property
    def passed(self) -> bool:
        return self._passed.is_set()

    def fire(self, failure: Exception | None = None) -> None:
        self._failure = failure
        self._at = time.perf_counter()
        self._passed.set()

    def elapsed_time(self, end_event: StandInEvent) -> float:
        assert self.passed and end_event.passed
        return (end_event._at - self._at) * 1000

    def synchronize(self) -> None:
        self._waits.append(threading.current_thread().name)
        if not self._passed.wait(WAIT_SECONDS):
            raise TimeoutError(f"an event of the stand-in did not pass within {WAIT_SECONDS} s")
        if self._failure is not None:
            raise self._failure


class StandInStream(Stream):
    """delay: called before each piece of work, in the stream's own thread. waits: see `StandInEvent`."""

    def __init__(self, delay: Callable[[], None], waits: list[str]) -> None:
        self._delay = delay
        self._waits = waits
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="stand-in-stream", daemon=True)
        self._thread.start()

    def wait(self, event: Event) -> None:
        self._work.put(event.synchronize)

    def submit(self, work: Callable[[], None]) -> None:
        def delayed() -> None:
            self._delay()
            with _interpreter:
                work()

        self._work.put(delayed)

    def record(self) -> Event:
        event = StandInEvent(self._waits)

        def fire() -> None:
            event.fire(self._failure)

        self._work.put(fire)
        return event

    def close(self) -> None:
        self._work.put(None)
        self._thread.join(WAIT_SECONDS)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception as error:
                self._failure = error


class StandInDevice(Device):
    """The engine's stream is `compute`. registers: whether host memory can be registered. waits: the name of the thread
    of each call so far that blocks until the device has done something."""

    name = "the stand-in"

    def __init__(self, seed: int = 0, longest_delay: float = 0.0, registers: bool = True) -> None:
        """longest_delay: seconds; work on side streams takes a random time up to it."""
        dice = random.Random(seed)
        self._delay = (lambda: time.sleep(dice.random() * longest_delay)) if longest_delay else (lambda: None)
        self._registers = registers
        self._streams: list[StandInStream] = []
        self.registered: dict[int, int] = {}
        self.waits: list[str] = []
        self.compute = StandInStream(lambda: None, self.waits)

    def record_current(self) -> Event:
        return self.compute.record()

    def stream(self) -> Stream:
        stream = StandInStream(self._delay, self.waits)
        self._streams.append(stream)
        return stream

    def empty(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((size,), 0x5A, dtype=dtype)

    def pinned(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(rows, columns, dtype=dtype)

    def upload(self, values: list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    def register(self, address: int, size: int) -> None:
        if not self._registers:
            raise OSError("the stand-in was told to refuse")
        self.registered[address] = size

    def unregister(self, address: int) -> None:
        del self.registered[address]

    def close(self) -> None:
        for stream in (*self._streams, self.compute):
            stream.close()
