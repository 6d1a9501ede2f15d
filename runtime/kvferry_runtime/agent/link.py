"""The agent's connection to one run of the sidecar: the control socket, and the ring once the sidecar has accepted."""

from __future__ import annotations

from pathlib import Path

from kvferry_runtime.errors import RingError, RingMismatch
from kvferry_runtime.ring.memory import RingMemory
from kvferry_runtime.ring.messages import PROTOCOL_VERSION, Attach, Attached, FromAgent, FromSidecar
from kvferry_runtime.ring.socket import SidecarSocket


class SidecarLink:
    """Only to be used by the agent's thread."""

    def __init__(self, directory: Path, socket: SidecarSocket) -> None:
        self._directory = directory
        self._socket = socket
        self._ring: RingMemory | None = None

    @classmethod
    def connect(cls, directory: Path, attach: Attach) -> SidecarLink:
        """Connect and say who we are; the sidecar answers with `Attached` or `Refused`.

        Raises:
            RingUnavailable: no sidecar is there (yet).
        """
        link = cls(directory, SidecarSocket.connect(directory))
        try:
            link.send(attach)
            link.flush()
        except RingError:
            link.close()
            raise
        return link

    @property
    def attached(self) -> bool:
        return self._ring is not None

    @property
    def ring(self) -> RingMemory:
        """Raises RingMismatch: the sidecar uses the ring before it accepted us."""
        if self._ring is None:
            raise RingMismatch("the sidecar speaks of slots before it accepted this agent")
        return self._ring

    def accept(self, message: Attached) -> None:
        """Map the ring that the sidecar speaks of.

        Raises:
            RingUnavailable, RingMismatch: it is gone, another one, or of another version.
        """
        if message.version != PROTOCOL_VERSION:
            raise RingMismatch(
                f"the sidecar speaks ring protocol {message.version}, this agent {PROTOCOL_VERSION}: "
                "use engine and sidecar images of the same release"
            )
        if self._ring is not None:
            raise RingMismatch("the sidecar accepted this agent twice")
        ring = RingMemory.open(self._directory)
        found, said = (
            (ring.boot_id, ring.slots, ring.chunk_bytes),
            (message.sidecar_boot_id, message.slots, message.chunk_bytes),
        )
        if found != said:
            ring.close()
            raise RingMismatch(f"ring with boot id, slots, chunk size {found}; the sidecar speaks of {said}")
        self._ring = ring

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return self._socket.wants_write

    def send(self, message: FromAgent) -> None:
        """Queue a message for the next `flush`. Raises RingUnavailable: the sidecar went away or does not read."""
        self._socket.send(message, more=True)

    def flush(self) -> None:
        """Raises RingUnavailable: the sidecar went away."""
        self._socket.flush()

    def receive(self) -> list[FromSidecar]:
        """What came in one packet, nothing if there is none now. Raises RingError as `SidecarSocket.receive` does."""
        return self._socket.receive()

    def close(self) -> None:
        """Idempotent. Only after the last copy from or into a slot has ended."""
        self._socket.close()
        if self._ring is not None:
            self._ring.close()
            self._ring = None
