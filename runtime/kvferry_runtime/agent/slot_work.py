"""What the agent asks of whoever copies chunks between an engine's memory and slots, at once or in the background."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from kvferry_runtime.agent.base import KvMemory
from kvferry_runtime.auto.speeds import MethodSpeed
from kvferry_runtime.layout import KvLayout, LayerShape
from kvferry_runtime.plan import Chunk
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import Check
from kvferry_runtime.wire.data import DataHeader

Result = TypeVar("Result")


class SlotWork(ABC, Generic[Result]):
    """A copy that goes on after the call that began it, as a device does it.

    Until `result` has returned something or raised, the slot stays lent and the engine's memory in use.
    """

    @abstractmethod
    def result(self) -> Result | None:
        """The result, None while the work goes on. Never blocks; only for the agent's thread.

        Raises:
            What the call itself would have raised, had it waited; the work is then over.
        """

    @property
    @abstractmethod
    def seconds(self) -> float:
        """What the copy took so far, without what it had to wait for: the engine's kernels, the copies before it."""

    @abstractmethod
    def when_ready(self, look: Callable[[], None]) -> None:
        """Have `look` called, from any thread, each time that `result` may have changed."""


class Method(Protocol):
    """What agents ask of a codec, whatever memory it works on: see `codec.base.Codec`."""

    @property
    def name(self) -> str: ...
    @property
    def lossy(self) -> bool: ...
    def supports(self, shape: LayerShape) -> str | None: ...


class SlotCopier(Protocol):
    """Only for the agent's thread. codecs: those that can be decoded, by name."""

    @property
    def method(self) -> Method: ...
    @property
    def codecs(self) -> Mapping[str, Method]: ...

    @property
    def busy(self) -> bool:
        """Whether copies from or into slots of the attached ring go on, also those for which nobody waits any more."""
        ...

    def attached(self, ring: RingMemory) -> None:
        """This ring's slots will be lent from now on, and those of no ring before it."""
        ...

    def fill(
        self, ring: RingMemory, slot: int, layout: KvLayout, memory: KvMemory, transfer_id: str, generation: int,
        chunk: Chunk, method: str,
    ) -> DataHeader | SlotWork[DataHeader]:  # fmt: skip
        """Write payload and header into the slot, or begin to. method, errors: see `SlotCodec.fill`."""
        ...

    def take_check(self, slot: int) -> Check | None:
        """See `SlotCodec.take_check`; asked when the chunk is written."""
        ...

    def speed(self, method: str, shape: LayerShape) -> MethodSpeed:
        """How fast one of `codecs` is on one layer's values."""
        ...

    def read(
        self, ring: RingMemory, slot: int, header: DataHeader, shape: LayerShape, memory: KvMemory
    ) -> SlotWork[bool] | None:
        """Check a slot's payload and write its rows, or begin to. Raises: see `SlotCodec.read`."""
        ...
