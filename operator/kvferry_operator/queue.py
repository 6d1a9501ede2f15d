"""Keys in, passes out: one pass of a key at a time, a bounded number of passes at once."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from kvferry_operator.errors import ClusterError, Throttled
from kvferry_operator.schedule import Key, Schedule

Work = Callable[[Key], Awaitable[float | None]]
"""One pass; gives the seconds until the next one, None for no need of one. A ClusterError that it raises was told to
people by itself; any other error is a defect, and logged here."""

PASS_SECONDS = 120.0
"""A pass that takes longer is given up and counts as failed: each of its requests has a deadline well below."""
_TURN_SECONDS = 5.0
"""The loop turns at least this often, which is what liveness looks at."""

logger = logging.getLogger(__name__)


class Queue:
    """Runs passes for keys that were marked. Passes can be repeated, so that a stop drops what runs."""

    def __init__(
        self, workers: int, clock: Callable[[], float] = time.monotonic, schedule: Schedule | None = None
    ) -> None:
        """workers: passes at once."""
        self._clock = clock
        self._schedule = schedule or Schedule()
        self._slots = asyncio.Semaphore(workers)
        self._news = asyncio.Event()
        self.turned = clock()
        """When the loop last turned, by the clock."""

    def __len__(self) -> int:
        return len(self._schedule)

    def mark(self, key: Key, after: float = 0.0, *, urgent: bool = False) -> None:
        """See `Schedule.mark`."""
        self._schedule.mark(key, self._clock(), after, urgent=urgent)
        self._news.set()

    async def run(self, work: Work) -> None:
        """Until it is cancelled; then passes that run are cancelled too."""
        async with asyncio.TaskGroup() as passes:
            while True:
                self.turned = self._clock()
                self._schedule.forget_rested(self.turned)
                await self._wait_for_slot()
                self._news.clear()
                now = self._clock()
                key = self._schedule.take(now)
                if key is None:
                    self._slots.release()
                    await self._wait_for_news(now)
                else:
                    passes.create_task(self._pass(work, key), name=f"pass of {key[0]}/{key[1]}")

    async def _wait_for_slot(self) -> None:
        """While all workers are busy the loop turns as well: passes end by their own deadline."""
        while True:
            try:
                async with asyncio.timeout(_TURN_SECONDS):
                    await self._slots.acquire()
                    return
            except TimeoutError:
                self.turned = self._clock()

    async def _wait_for_news(self, now: float) -> None:
        due = self._schedule.next_due()
        wait = _TURN_SECONDS if due is None else min(max(due - now, 0.0), _TURN_SECONDS)
        try:
            async with asyncio.timeout(wait):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _pass(self, work: Work, key: Key) -> None:
        try:
            async with asyncio.timeout(PASS_SECONDS):
                again_after = await work(key)
        except ClusterError as error:
            self._failed(key, error.retry_after if isinstance(error, Throttled) else 0.0)
        except TimeoutError:
            logger.error("the pass of %s/%s took longer than %g s and was given up", *key, PASS_SECONDS)
            self._failed(key)
        except Exception:
            logger.exception("the pass of %s/%s failed in a way that nobody foresaw", *key)
            self._failed(key)
        else:
            self._schedule.done(key, self._clock(), again_after)
        finally:
            self._slots.release()
            self._news.set()

    def _failed(self, key: Key, retry_after: float = 0.0) -> None:
        self._schedule.failed(key, self._clock(), retry_after)
