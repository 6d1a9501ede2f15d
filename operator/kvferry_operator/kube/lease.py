"""Leadership by a Lease: of several operators one works, the others wait, and a leader that loses it stops at once."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NoReturn

from kvferry_operator.errors import ClusterError, Conflict, OperatorError
from kvferry_operator.kube.client import Cluster
from kvferry_operator.kube.kinds import LEASE
from kvferry_operator.kube.lease_record import Move, Sighting, Terms, decide, held, released

_JITTER = 0.2
"""Share of the pause by which it grows at random, so that those who wait do not all ask at once."""

RELEASE_SECONDS = 2.0
"""For giving it up at the end; the next one waits no longer than the lease runs in any case."""

logger = logging.getLogger(__name__)


class LeaseLost(OperatorError):
    """Another one leads now, or soon will: this process must end."""


@asynccontextmanager
async def hold(cluster: Cluster, terms: Terms, me: str) -> AsyncIterator[Callable[[], bool]]:
    """Wait for the Lease, however long it takes; then hold it while the body runs, and release it when that has ended.

    Gives whether it is held still, by the clock alone. The body asks before each write: a process that stood still for
    a while goes on where it was, and is told only moments later that somebody else has taken over.

    me: unlike the name of any other process, now or before, such as the pod's name and a random part.

    Raises:
        LeaseLost: it could not be renewed in time, or somebody else has it. The body is cancelled where it waits, and
            has the time that `terms` leave between renew_deadline and duration to end.
    """
    lease = _Lease(cluster, terms, me)
    await lease.take()
    renewal = asyncio.create_task(lease.keep(), name="renewal of the lease")
    try:
        async with asyncio.timeout(None) as tenure:
            # renewed while the body winds down, too, so that nobody else begins before it has ended
            with _when_done(renewal, lambda: tenure.reschedule(0.0)):
                yield lease.is_held
    except TimeoutError:
        if tenure.expired():
            await renewal
        raise
    finally:
        renewal.cancel()
        await asyncio.wait({renewal})
        await lease.release()


@contextmanager
def _when_done(task: asyncio.Task[NoReturn], tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` should the task end before the body does."""

    def ended(_: asyncio.Task[NoReturn]) -> None:
        tell()

    task.add_done_callback(ended)
    try:
        yield
    finally:
        task.remove_done_callback(ended)


class _Lease:
    """One Lease from the point of view of one process."""

    def __init__(self, cluster: Cluster, terms: Terms, me: str) -> None:
        self._cluster = cluster
        self._terms = terms
        self._me = me
        self._place = f"{terms.namespace}/{terms.name}"
        self._seen: Sighting | None = None
        self._trouble = ""
        self._deadline = -math.inf
        """Own clock; until then nobody else takes it."""

    def is_held(self) -> bool:
        return time.monotonic() < self._deadline

    async def take(self) -> None:
        """Return as the holder."""
        while True:
            begun = time.monotonic()
            if await self._succeeds(self._try_to_take):
                break
            await asyncio.sleep(self._terms.retry * (1 + random.uniform(0, _JITTER)))  # noqa: S311
        self._deadline = begun + self._terms.renew_deadline
        logger.info("leads as %s, by the lease %s", self._me, self._place)

    async def keep(self) -> NoReturn:
        """Renew for ever.

        Raises:
            LeaseLost: another holds it, it was removed, or renewing failed until the deadline.
        """
        while True:
            begun = time.monotonic()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._deadline - begun):
                    if await self._succeeds(self._try_to_renew):
                        self._deadline = begun + self._terms.renew_deadline
            left = self._deadline - time.monotonic()
            if left <= 0:
                why = self._trouble or "no answer"
                raise LeaseLost(f"the lease {self._place} was not renewed in {self._terms.renew_deadline:g} s: {why}")
            await asyncio.sleep(min(self._terms.retry, left))

    async def release(self) -> None:
        """Let the next one have it now; should that fail, they wait until it has run out."""
        try:
            async with asyncio.timeout(max(self._terms.retry, RELEASE_SECONDS)):
                if not await self._let_go():
                    # somebody else wrote since, or a renewal of ours that was cut off before its answer came
                    await self._look()
                    if not await self._let_go():
                        logger.warning("the lease %s was not released: somebody writes it all the time", self._place)
        except (ClusterError, TimeoutError) as error:
            logger.warning("the lease %s was not released: %s", self._place, str(error) or "no answer in time")

    async def _let_go(self) -> bool:
        """False: somebody has written since it was seen."""
        if self._seen is None or not self._is_mine():
            return True
        try:
            await self._cluster.replace(released(self._terms, datetime.now(UTC), self._seen))
        except Conflict:
            return False
        return True

    async def _succeeds(self, attempt: Callable[[], Coroutine[Any, Any, bool]]) -> bool:
        """Whether it worked. Trouble with the API server is told once, not at each attempt."""
        try:
            success = await attempt()
        except ClusterError as error:
            if str(error) != self._trouble:
                logger.warning("trouble with the lease %s: %s", self._place, error)
            self._trouble = str(error)
            return False
        self._trouble = ""
        return success

    async def _try_to_take(self) -> bool:
        await self._look()
        if decide(self._seen, self._me, time.monotonic()) is Move.WAIT:
            return False
        if self._seen is not None:
            return await self._write(self._seen)
        created = await self._cluster.create(held(self._terms, self._me, datetime.now(UTC), None))
        await self._look()
        return created is not None and self._is_mine()

    async def _try_to_renew(self) -> bool:
        assert self._seen is not None
        if await self._write(self._seen):
            return True
        await self._look()
        if not self._is_mine():
            self._deadline = -math.inf
            raise LeaseLost(f"the lease {self._place} {_fate(self._seen)}")
        return False

    def _is_mine(self) -> bool:
        return self._seen is not None and self._seen.holder == self._me

    async def _write(self, seen: Sighting) -> bool:
        """False: somebody has written since it was seen, perhaps we ourselves in an attempt that was given up."""
        try:
            written = await self._cluster.replace(held(self._terms, self._me, datetime.now(UTC), seen))
        except Conflict:
            return False
        self._seen = Sighting.of(written, time.monotonic(), seen)
        return True

    async def _look(self) -> None:
        found = await self._cluster.get(LEASE, self._terms.namespace, self._terms.name)
        self._seen = None if found is None else Sighting.of(found, time.monotonic(), self._seen)


def _fate(seen: Sighting | None) -> str:
    if seen is None:
        return "was removed"
    return f"was taken by {seen.holder}" if seen.holder else "was taken away"
