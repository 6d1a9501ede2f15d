"""The ring's file: geometry, who may make it, and what a reader does with one that is not ours."""

from __future__ import annotations

import itertools
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvferry_contract import paths
from kvferry_runtime.errors import RingMismatch, RingUnavailable, SettingsError
from kvferry_runtime.ring.memory import PAGE, RingMemory
from kvferry_runtime.wire.data import HEADER_BYTES


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[RingMemory]:
    ring = RingMemory.create(tmp_path, 3, 2 * PAGE, "boot-1")
    yield ring
    ring.close()


def test_what_one_side_writes_the_other_reads(ring: RingMemory, tmp_path: Path) -> None:
    opened = RingMemory.open(tmp_path)
    for slot in range(3):
        ring.slot_header(slot)[:] = bytes([slot + 1]) * HEADER_BYTES
        ring.slot_payload(slot)[:] = bytes([slot + 101]) * (2 * PAGE)
    for slot in range(3):
        message = opened.slot_message(slot)
        assert message == bytes([slot + 1]) * HEADER_BYTES + bytes([slot + 101]) * (2 * PAGE)
        assert message.contiguous and not message.readonly
    assert (opened.boot_id, opened.slots, opened.chunk_bytes) == ("boot-1", 3, 2 * PAGE)
    message.release()
    opened.close()


def test_payloads_start_on_pages_and_slots_do_not_overlap(ring: RingMemory) -> None:
    import numpy as np

    spans = []
    for slot in range(3):
        message = np.frombuffer(ring.slot_message(slot), np.uint8)
        start = message.ctypes.data
        assert (start + HEADER_BYTES) % PAGE == 0
        spans.append((start, start + message.size))
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))


@pytest.mark.parametrize("slot", [-1, 3, 1 << 40])
def test_no_view_outside_of_the_ring(ring: RingMemory, slot: int) -> None:
    for view in (ring.slot_header, ring.slot_payload, ring.slot_message):
        with pytest.raises(RingMismatch, match="not in this ring of 3 slots"):
            view(slot)


def test_all_memory_is_allocated_at_start(ring: RingMemory) -> None:
    status = ring.path.stat()
    assert status.st_size == ring.geometry.file_bytes
    assert status.st_blocks * 512 >= status.st_size


def test_too_little_shared_memory_is_an_error_with_numbers_and_leaves_nothing() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with pytest.raises(SettingsError, match=r"needs \d{12,} bytes in .*, of which \d+ are free: lower"):
            RingMemory.create(Path(folder), 1 << 16, 64 << 20, "boot-1")
        assert not list(Path(folder).iterdir())


@pytest.mark.parametrize(
    ("slots", "chunk_bytes", "text"),
    [(0, PAGE, "0 slots"), (1 << 17, PAGE, "slots"), (1, PAGE + 1, "multiple of 4096"), (1, 128 << 20, "67108864")],
)
def test_impossible_geometry(tmp_path: Path, slots: int, chunk_bytes: int, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        RingMemory.create(tmp_path, slots, chunk_bytes, "boot-1")
    assert not list(tmp_path.iterdir())


def test_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="No such file or directory; mount"):
        RingMemory.create(tmp_path / "absent", 1, PAGE, "boot-1")


def test_a_second_sidecar_is_kept_out_until_the_first_is_gone(ring: RingMemory, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="in use by another sidecar"):
        RingMemory.create(tmp_path, 1, PAGE, "boot-2")
    ring.close()
    second = RingMemory.create(tmp_path, 1, PAGE, "boot-2")
    assert RingMemory.open(tmp_path).boot_id == "boot-2"
    ring.unlink()
    assert second.path.exists(), "a ring that another sidecar made since is not removed"
    second.unlink()
    assert not second.path.exists()
    second.close()


def test_views_of_a_dead_sidecars_ring_stay_valid(ring: RingMemory, tmp_path: Path) -> None:
    opened = RingMemory.open(tmp_path)
    payload = opened.slot_payload(0)
    ring.close()
    RingMemory.create(tmp_path, 1, PAGE, "boot-2").close()
    opened.close()
    payload[0] = 7
    assert payload[0] == 7


def test_no_ring_yet(tmp_path: Path) -> None:
    with pytest.raises(RingUnavailable, match="is the sidecar running"):
        RingMemory.open(tmp_path)


@pytest.mark.parametrize(
    ("offset", "data", "text"),
    [
        (0, b"OTHERAPP", "magic"),
        (8, struct.pack("<I", 99), "version 99"),
        (12, struct.pack("<I", 0), "damaged"),
        (12, struct.pack("<I", 4), "its header says"),
        (24, b"\xff\xfe", "damaged"),
    ],
)
def test_a_ring_that_is_not_ours(ring: RingMemory, tmp_path: Path, offset: int, data: bytes, text: str) -> None:
    descriptor = os.open(tmp_path / paths.RING_FILE, os.O_RDWR)
    os.pwrite(descriptor, data, offset)
    os.close(descriptor)
    with pytest.raises(RingMismatch, match=text):
        RingMemory.open(tmp_path)


def test_a_file_without_a_header(tmp_path: Path) -> None:
    (tmp_path / paths.RING_FILE).write_bytes(b"short")
    with pytest.raises(RingMismatch, match="no header"):
        RingMemory.open(tmp_path)
