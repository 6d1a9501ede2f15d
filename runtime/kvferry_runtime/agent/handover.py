"""What an offered and a fetched transfer share: a deadline, the wish to stop, exactly one last word to the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from kvferry_contract.transfer import TransferParams
from kvferry_runtime.agent.base import KvMemory

DEADLINE_MARGIN_S = 5.0
"""The sidecar keeps the deadline; when it has said nothing for this long after it, the agent ends the transfer."""

Outcome = TypeVar("Outcome")

_log = logging.getLogger(__name__)


class Handover(Generic[Outcome]):
    """`cancel` is the engine's, the rest the agent's thread's. on_change: called when the agent should look again; from
    then on `changed`, which any thread may call."""

    def __init__(
        self,
        params: TransferParams,
        memory: KvMemory,
        on_done: Callable[[Outcome], None],
        on_change: Callable[[], None],
    ) -> None:
        self.params = params
        self.expires = time.monotonic() + params.deadline_ms / 1000 + DEADLINE_MARGIN_S
        self.cancelled: str | None = None
        self._memory: KvMemory | None = memory
        self._on_done = on_done
        self.changed = on_change
        self._done = False

    @property
    def done(self) -> bool:
        return self._done

    @property
    def memory(self) -> KvMemory | None:
        """None once it is the engine's again."""
        return self._memory

    def cancel(self, reason: str) -> None:
        """Ask for the end; `finish` still comes. Idempotent."""
        if not self._done and self.cancelled is None:
            self.cancelled = reason
            self.changed()

    def finish(self, outcome: Outcome) -> None:
        """Give the memory to the engine and tell it; only the first call counts."""
        if self._done:
            return
        self._done = True
        self._memory = None
        try:
            self._on_done(outcome)
        except Exception:
            _log.exception("the engine's on_done raised", extra={"transfer_id": self.params.transfer_id})
