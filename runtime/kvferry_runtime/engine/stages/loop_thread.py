"""An event loop in a thread of its own, for code that has neither."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs from the start on, until `stop`. May be used from any other thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # the resolver's threads: not awaited at the end, a question to it cannot be taken back
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix=f"{name}-resolver")
        self._loop.set_default_executor(self._executor)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, Result], timeout: float | None = None) -> Result:
        """What `work` returns or raises.

        Raises:
            TimeoutError: it did not end in time, and was cancelled.
        """
        assert threading.current_thread() is not self._thread, "the thread would wait for itself"
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise

    def stop(self, timeout: float) -> None:
        """Cancel what runs and end the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._executor.shutdown(wait=False, cancel_futures=True)
            self._loop.close()
