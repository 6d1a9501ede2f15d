"""The chain without a protocol is a limit that others are held against: it must move every byte and end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvferry_runtime.bench import bare_chain


@pytest.mark.parametrize(("chunk", "slots"), [(64 << 10, 1), (64 << 10, 4), (256 << 10, 16)])
def test_it_moves_all_bytes_and_leaves_nothing(chunk: int, slots: int) -> None:
    before = _descriptors()
    measured = bare_chain.measure(chunk, slots, memory_bytes=1 << 20, rounds=3)
    assert measured.total_bytes == 3 << 20
    assert measured.seconds > 0
    assert measured.cpu_seconds > 0
    assert _descriptors() == before


def _descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}
