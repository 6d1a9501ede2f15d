"""The ring: one file of fixed slots in a memory-backed folder that engine and sidecar both map.

Page 0 says what the file is; slot `i` follows at `PAGE + i * (PAGE + chunk_bytes)`. A slot is one page, of which only
the last `HEADER_BYTES` are used, and the payload. So header and payload are one contiguous message, and every payload
starts on a page of its own.

======  ====  ==============================
offset  type  field of page 0, little-endian
======  ====  ==============================
0       8s    magic
8       u32   version
12      u32   slots
16      u64   chunk_bytes
24      64s   boot id of the sidecar, UTF-8
======  ====  ==============================
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from kvferry_contract import paths
from kvferry_runtime.errors import RingMismatch, RingUnavailable, SettingsError
from kvferry_runtime.wire.data import HEADER_BYTES, MAX_CHUNK_BYTES

MAGIC = b"KVFRING\0"
VERSION = 1
PAGE = 4096
MAX_SLOTS = 1 << 16
MAX_BOOT_ID_BYTES = 64

_FIELDS = struct.Struct(f"<8sIIQ{MAX_BOOT_ID_BYTES}s")
_MODE = 0o660
"""The two containers may run as different users that share the pod's file system group."""


@dataclass(frozen=True, slots=True)
class RingGeometry:
    """slots of `chunk_bytes` payload each; sizes in bytes."""

    slots: int
    chunk_bytes: int

    @property
    def file_bytes(self) -> int:
        return PAGE + self.slots * (PAGE + self.chunk_bytes)

    def check(self) -> None:
        """Raises SettingsError when no ring can have this geometry."""
        if not 1 <= self.slots <= MAX_SLOTS:
            raise SettingsError(
                f"ring of {self.slots} slots: 1 to {MAX_SLOTS} are possible; "
                "change transfer.bufferBytes or transfer.overlap.chunkBytes"
            )
        if not PAGE <= self.chunk_bytes <= MAX_CHUNK_BYTES or self.chunk_bytes % PAGE:
            raise SettingsError(
                f"ring with chunks of {self.chunk_bytes} bytes: transfer.overlap.chunkBytes must be a multiple of "
                f"{PAGE} from {PAGE} to {MAX_CHUNK_BYTES}"
            )


class RingMemory:
    """A mapped ring. The sidecar creates it and owns every slot; the agent opens it and touches only what is lent."""

    def __init__(self, path: Path, mapping: mmap.mmap, geometry: RingGeometry, boot_id: str, lock: int | None) -> None:
        """Use `create` or `open`. lock: descriptor that keeps other sidecars out, None for an opened ring."""
        self.path = path
        self.geometry = geometry
        self.boot_id = boot_id
        self._map = mapping
        self._view = memoryview(mapping)
        self._lock = lock

    @classmethod
    def create(cls, directory: Path, slots: int, chunk_bytes: int, boot_id: str) -> RingMemory:
        """Make `directory/ring`, all of its memory allocated, in place of one that a dead sidecar left.

        Raises:
            SettingsError: impossible geometry, another sidecar uses the folder, no such folder, too little memory.
        """
        geometry = RingGeometry(slots, chunk_bytes)
        geometry.check()
        name = boot_id.encode()
        if not 1 <= len(name) <= MAX_BOOT_ID_BYTES:
            raise SettingsError(f"boot id of {len(name)} bytes: 1 to {MAX_BOOT_ID_BYTES} are possible")
        lock = _lock(directory)
        path = directory / paths.RING_FILE
        draft = directory / f".{paths.RING_FILE}.{os.getpid()}"
        try:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
            try:
                os.fchmod(descriptor, _MODE)
                _allocate(descriptor, directory, geometry.file_bytes)
                os.pwrite(descriptor, _FIELDS.pack(MAGIC, VERSION, slots, chunk_bytes, name), 0)
                mapping = _map(descriptor, geometry)
            finally:
                os.close(descriptor)
            draft.replace(path)
        except BaseException as error:
            draft.unlink(missing_ok=True)
            os.close(lock)
            if isinstance(error, OSError):
                raise SettingsError(f"cannot make the ring in {directory}: {error.strerror}") from error
            raise
        return cls(path, mapping, geometry, boot_id, lock)

    @classmethod
    def open(cls, directory: Path) -> RingMemory:
        """Map the ring that a sidecar made.

        Raises:
            RingUnavailable: there is none (yet).
            RingMismatch: it is of another version, or shorter than it says.
        """
        path = directory / paths.RING_FILE
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise RingUnavailable(f"cannot open the ring {path}: {error.strerror}; is the sidecar running?") from error
        try:
            geometry, boot_id = _read(os.pread(descriptor, _FIELDS.size, 0), path)
            found = os.fstat(descriptor).st_size
            if found != geometry.file_bytes:
                raise RingMismatch(f"ring {path} has {found} bytes, its header says {geometry.file_bytes}")
            mapping = _map(descriptor, geometry)
        finally:
            os.close(descriptor)
        return cls(path, mapping, geometry, boot_id, None)

    @property
    def slots(self) -> int:
        return self.geometry.slots

    @property
    def chunk_bytes(self) -> int:
        return self.geometry.chunk_bytes

    def slot_header(self, slot: int) -> memoryview:
        """The `HEADER_BYTES` in front of the payload, writable."""
        start = self._payload_start(slot)
        return self._view[start - HEADER_BYTES : start]

    def slot_payload(self, slot: int) -> memoryview:
        """`chunk_bytes` bytes on a page boundary, writable."""
        start = self._payload_start(slot)
        return self._view[start : start + self.geometry.chunk_bytes]

    def slot_message(self, slot: int) -> memoryview:
        """Header and payload as one: `HEADER_BYTES + chunk_bytes` bytes, writable."""
        start = self._payload_start(slot)
        return self._view[start - HEADER_BYTES : start + self.geometry.chunk_bytes]

    def close(self) -> None:
        """Let go of the mapping; a view that somebody still holds keeps its memory valid. Idempotent."""
        with contextlib.suppress(BufferError):  # a view is still out: the mapping goes with the last one
            self._view.release()
            self._map.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def unlink(self) -> None:
        """Remove the file, unless another sidecar has already put its own in its place."""
        with contextlib.suppress(OSError, RingMismatch):
            with self.path.open("rb") as file:
                _, boot_id = _read(file.read(_FIELDS.size), self.path)
            if boot_id == self.boot_id:
                self.path.unlink()

    def _payload_start(self, slot: int) -> int:
        if not 0 <= slot < self.geometry.slots:
            raise RingMismatch(f"slot {slot} is not in this ring of {self.geometry.slots} slots")
        return 2 * PAGE + slot * (PAGE + self.geometry.chunk_bytes)


def _lock(directory: Path) -> int:
    """Keep other sidecars out of this folder for as long as the descriptor is open, however this process ends."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise SettingsError(
            f"ring folder {directory}: {error.strerror}; mount a memory-backed volume there or set KVFERRY_RING_DIR"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SettingsError(
            f"ring folder {directory} is in use by another sidecar: stop it, or set KVFERRY_RING_DIR to another folder"
        ) from error
    return descriptor


def _allocate(descriptor: int, directory: Path, size: int) -> None:
    """Take the memory now: a sparse file would end in SIGBUS at the first write that finds none left."""
    space = os.fstatvfs(descriptor)
    free = space.f_bavail * space.f_frsize
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            raise
        raise SettingsError(
            f"the ring needs {size} bytes in {directory}, of which {free} are free: "
            "lower transfer.bufferBytes or give the volume more memory"
        ) from error


def _map(descriptor: int, geometry: RingGeometry) -> mmap.mmap:
    """All page table entries at once, so that no transfer pays for page faults."""
    flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
    return mmap.mmap(descriptor, geometry.file_bytes, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _read(page: bytes, path: Path) -> tuple[RingGeometry, str]:
    if len(page) < _FIELDS.size:
        raise RingMismatch(f"ring {path} has no header")
    magic, version, slots, chunk_bytes, name = _FIELDS.unpack(page)
    if magic != MAGIC or version != VERSION:
        raise RingMismatch(
            f"ring {path} has version {version} (magic {magic!r}), this runtime uses {VERSION}: "
            "engine and sidecar must be of the same release"
        )
    geometry = RingGeometry(slots, chunk_bytes)
    try:
        geometry.check()
        return geometry, name.rstrip(b"\0").decode()
    except (SettingsError, UnicodeDecodeError) as error:
        raise RingMismatch(f"ring {path}: damaged header: {error}") from error
