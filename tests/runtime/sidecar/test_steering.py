"""In which bands a transfer goes out, and when a place to end it is looked for at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_settings import transfer_config
from kvferry_runtime.ring.messages import Cut, ManifestLayer, Offer, OfferedMethod
from kvferry_runtime.sidecar.metrics import Metrics
from kvferry_runtime.sidecar.sending import Sending
from kvferry_runtime.sidecar.steering import MAX_BANDS, band_tokens
from kvferry_runtime.wire.effects import Effect

ID = "ab" * 16
MEASURED = [OfferedMethod("none", 1.0, 6e9, 6e9)]


def offer(tokens: int = 1000, codec: str = "auto", compute_us: int = 1000) -> Offer:
    return Offer(
        transfer_id=ID, first_layer=0, layer_count=1, tokens=tokens, estimated_bytes=tokens * 100, codec=codec,
        layerwise=None, deadline_ms=1000, methods=MEASURED, compute_us=compute_us,
    )  # fmt: skip


@given(tokens=st.integers(1, 2**24), resume=st.integers(1, 2**20))
def test_few_bands_whatever_the_peer_asks_for(tokens: int, resume: int) -> None:
    """Of the fewest tokens that will do, and each ends where decode's engine can go on."""
    band = band_tokens(offer(tokens), resume)
    if resume >= tokens:
        assert band == 0
        return
    assert band % resume == 0 and 0 < band <= 2**31
    assert -(-tokens // band) <= MAX_BANDS
    assert band == resume or -(-tokens // (band - resume)) > MAX_BANDS


@pytest.mark.parametrize("wanted", [{"codec": "int8"}, {"codec": "none"}])
def test_no_bands_where_the_method_is_named(wanted: dict[str, Any]) -> None:
    assert band_tokens(offer(**wanted), 16) == 0


@dataclass
class Asked:
    """A transfer of two bands, all of which waits. asked: how often it was asked what that is."""

    asked: int = 0

    def waiting_bytes(self, chunks: int) -> int:
        self.asked += 1
        return min(chunks, 2) * 10**6

    def shortened(self, chunks: int, layers: object) -> list[Effect]:
        return []


@pytest.mark.parametrize(
    ("wanted", "rate", "looks"),
    [
        pytest.param({}, 1.0, True, id="a slow link"),
        pytest.param({"codec": "none"}, 1.0, False, id="the method is named"),
        pytest.param({"compute_us": 0}, 1.0, False, id="nothing is known of the pass"),
        pytest.param({}, None, False, id="nothing is known of the link"),
    ],
)
def test_nothing_is_counted_where_a_transfer_cannot_end_early(
    wanted: dict[str, Any], rate: float | None, looks: bool
) -> None:
    sending = Sending.begin(offer(**wanted), transfer_config(), 0, 0.0)
    sending.resume_tokens = 500
    sending.cuts.append(Cut(500, 1, [ManifestLayer(0, 500, 1)]))
    sending.machine = machine = Asked()  # type: ignore[assignment]
    sending.shortened(rate, Metrics())
    assert (machine.asked > 0) is looks
    assert (sending.record.shortened_to == 500) is looks
