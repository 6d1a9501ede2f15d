"""Ten thousand transfers in a row through four real processes leave nothing behind."""

from __future__ import annotations

import pytest

from kvferry_contract.config import TransportKind
from kvferry_runtime.bench.chain import running
from kvferry_runtime.bench.pods import Rings

pytest.importorskip("ucxx")

WARM_UP = 2000
"""Then every bounded table is full: the sidecars remember the last 1024 transfers."""
TRANSFERS = 10_000
AT_A_TIME = 200
"""All of them are offered at once: they must be through within an offer's lease on a slow machine too."""
SIZE = 64 << 10
SLACK_BYTES = 4 << 20
"""Of the allocator; a leak of half a KiB a transfer is more."""


@pytest.mark.slow
def test_ten_thousand_transfers_leave_no_memory_descriptors_or_slots_behind() -> None:
    rings = Rings(TransportKind.TCP, chunk_bytes=1 << 20, inflight_chunks=8, buffer_bytes=32 << 20)
    with running("none", stamps=False, rings=rings) as chain:
        chain.prepare(SIZE, paged=False)
        for _ in range(WARM_UP // AT_A_TIME):
            chain.measure(SIZE, AT_A_TIME)
        before = chain.footprint()
        for _ in range(TRANSFERS // AT_A_TIME):
            chain.measure(SIZE, AT_A_TIME)
        after = chain.footprint()
        chain.check(SIZE, "none")
    assert after.descriptors == before.descriptors
    assert after.slots == before.slots
    grown = [now - then for now, then in zip(after.resident_bytes, before.resident_bytes, strict=True)]
    assert max(grown) < SLACK_BYTES, grown
