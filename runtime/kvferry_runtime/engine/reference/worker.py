"""The thread of every stage but the first: does what the first stage orders, and computes passes in their order.

It decides nothing. What is open is the first stage's to end, and a ring that breaks ends this stage too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

import torch

from kvferry_runtime.engine.reference import activations, group_words
from kvferry_runtime.engine.reference.executor import Report, StageExecutor
from kvferry_runtime.engine.stages import messages as group
from kvferry_runtime.engine.stages.ring import Activation, StageRing
from kvferry_runtime.errors import Reason, TransferFailed

IDLE_SECONDS = 0.5
"""How long an idle stage sleeps: it bounds the age that is reported for a healthy one."""

_log = logging.getLogger(__name__)


class StageWorker:
    """All methods may be called from any thread.

    Args:
        build: makes this stage's executor from its `report` and `beat`.
        ended: called when the thread ends.
    """

    def __init__(
        self,
        ring: StageRing,
        build: Callable[[Report, Callable[[], None]], StageExecutor],
        ended: Callable[[], None],
    ) -> None:
        self._ring = ring
        self._ended = ended
        self._condition = threading.Condition()
        self._orders: deque[group.AnyCommand] = deque()
        self._passes: deque[tuple[group.AnyPass, Activation]] = deque()
        self._stopping = False
        self._begun = False
        self._turned = time.monotonic()
        self._executor = build(ring.send, self._beat)
        self._thread = threading.Thread(target=self._run, name="kvferry-stage", daemon=True)

    def start(self) -> None:
        """Say that this stage is ready, and do what is asked."""
        self._thread.start()
        self._ring.start(self._take, self._lose)
        self._ring.send(group.Ready(self._ring.stage, self._executor.pool.total, self._executor.runner.rows))

    def leave(self) -> None:
        """Ask the first stage to bring what is open to its end, and then to leave the ring."""
        self._ring.send(group.Leaving(self._ring.stage))

    @property
    def begun(self) -> bool:
        """Whether all stages of the group are ready."""
        return self._begun

    def blocks(self) -> tuple[int, int]:
        """Of the KV cache: total and free."""
        return self._executor.pool.total, self._executor.pool.free

    def requests(self) -> int:
        """That have blocks here."""
        return self._executor.open_requests

    def age(self) -> float:
        """Seconds since there was progress; stays under `IDLE_SECONDS` when there is nothing to do."""
        return time.monotonic() - self._turned

    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout: float) -> None:
        """End the thread, after the pass that runs. Idempotent."""
        with self._condition:
            self._stopping = True
            self._condition.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # ---- the ring's thread ----

    def _take(self, message: group.AnyMessage, activation: Activation | None) -> None:
        with self._condition:
            if isinstance(message, group.PrefillPass | group.DecodePass) and activation is not None:
                self._passes.append((message, activation))
            elif isinstance(message, group.AnyCommand):
                self._orders.append(message)
            self._condition.notify()

    def _lose(self, _: str) -> None:
        with self._condition:
            self._stopping = True
            self._condition.notify()

    # ---- the stage's own thread ----

    def _run(self) -> None:
        try:
            while not self._stopping:
                orders, work = self._receive()
                for order in orders:
                    self._obey(order)
                if work is not None:
                    self._compute(*work)
        except Exception:
            _log.exception("the stage's thread ended by a defect")
        finally:
            self._stopping = True
            self._ended()

    def _receive(self) -> tuple[list[group.AnyCommand], tuple[group.AnyPass, Activation] | None]:
        """All orders and the next pass; if there is nothing, wait for it at most `IDLE_SECONDS`."""
        with self._condition:
            self._beat()
            if not self._orders and not self._passes and not self._stopping:
                self._condition.wait(IDLE_SECONDS)
                self._beat()
            orders = list(self._orders)
            self._orders.clear()
            return orders, self._passes.popleft() if self._passes else None

    def _obey(self, order: group.AnyCommand) -> None:
        if isinstance(order, group.Begin):
            self._begun = True
            return
        try:
            self._executor.obey(order)
        except Exception as error:
            _log.exception("an order of the first stage could not be obeyed")
            if isinstance(order, group.Place) and order.transfer is not None:
                self._refuse(order, order.transfer, f"{type(error).__name__}: {error}")

    def _refuse(self, order: group.Place, transfer: group.Transfer, message: str) -> None:
        """The first stage awaits a word on this transfer, of which the agent knows nothing."""
        failure = TransferFailed(Reason.INTERNAL, message)
        if transfer.role == "prefill":
            self._ring.send(group_words.sent(self._ring.stage, order.request, failure))
        else:
            self._ring.send(group_words.loaded(self._ring.stage, order.request, failure))

    def _compute(self, work: group.AnyPass, activation: Activation) -> None:
        try:
            try:
                states = activations.to_states(activation.array, self._executor.runner.model.dtype)
            finally:
                activation.release()
            found = self._found(work, states)
        except Exception as error:
            _log.exception("a forward pass failed")
            text = f"stage {self._ring.stage}: {type(error).__name__}: {error}"
            self._ring.send(group.Result(work.number, [], group_words.long(text)))
            return
        if isinstance(found, torch.Tensor):
            self._ring.send(work, activations.to_array(found))
        else:
            self._ring.send(group.Result(work.number, found))

    def _found(self, work: group.AnyPass, states: torch.Tensor) -> torch.Tensor | list[int]:
        if isinstance(work, group.PrefillPass):
            return self._executor.prefill(work, states[None])
        return self._executor.decode(work, states[:, None])

    def _beat(self) -> None:
        self._turned = time.monotonic()
