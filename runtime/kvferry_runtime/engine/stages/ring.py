"""What the engine sees of its group's ring."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from kvferry_runtime.engine.stages.messages import AnyMessage

Array = npt.NDArray[Any]
DTYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))
"""Of an activation; bfloat16, which numpy does not know, goes as the uint16 of its bits."""


def in_flight(stages: int) -> int:
    """Passes that may be under way in a group; the first stage sees to it, so nothing in the ring needs credits.

    One at each stage, and two on their way, so that a stage that is done finds the next one there.
    """
    return stages + 2


class Activation:
    """What came with a pass. `array` may be read and written until `release`, which gives its memory back."""

    def __init__(self, array: Array, give_back: Callable[[], None]) -> None:
        self.array = array
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        """The callee is done with `array`. Idempotent; any thread."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


OnMessage = Callable[[AnyMessage, Activation | None], None]
"""Called in the ring's thread, in the order of arrival: must only hand over. A `Pass` always has an activation."""
OnLost = Callable[[str], None]
"""Called in the ring's thread, once: the group is at its end. The text names the stage and says what happened."""


class StageRing(ABC):
    """One stage's place in the ring of its group, with both links open.

    At the first stage `OnMessage` gets reports, at every other one commands and passes.
    """

    stage: int
    stages: int

    @abstractmethod
    def start(self, on_message: OnMessage, on_lost: OnLost) -> None:
        """Hand over what comes, and what came already. To be called once."""

    @abstractmethod
    def send(self, message: AnyMessage, activation: Array | None = None) -> None:
        """Queue a message for the next stage. Any thread; never blocks; copies the activation before it returns.

        After the loss of the ring, and after `close`, it does nothing.

        Raises:
            LayoutError: an activation that is not C-contiguous, of another dtype than `DTYPES`, larger than agreed on,
                or missing where the message is a `Pass`, or there where it is not.
        """

    @abstractmethod
    def close(self, timeout: float) -> None:
        """Leave the ring, which ends the group; done when everything is freed, at the latest after `timeout` seconds.

        What was sent before goes out, as far as the next stage takes it. `on_lost` is not called any more.
        Idempotent; any thread but the ring's own.
        """
